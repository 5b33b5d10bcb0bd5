package ahead

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Path is the credentials of a connection to a node, none, which show what connection gRPC has
// made: the kernel knows its round trip from the handshake on, without a message of ours.
type Path struct {
	credentials.TransportCredentials

	mu   sync.Mutex
	conn net.Conn // the last
}

// NewPath has no connection yet.
func NewPath() *Path { return &Path{TransportCredentials: insecure.NewCredentials()} }

// ClientHandshake implements credentials.TransportCredentials.
func (p *Path) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p.mu.Lock()
	p.conn = conn
	p.mu.Unlock()
	return p.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials: all connections of a node are seen.
func (p *Path) Clone() credentials.TransportCredentials { return p }

// RoundTrip is the least that a packet of the last connection took there and back in the last
// minutes, what the kernel has measured; 0 if it does not say.
func (p *Path) RoundTrip() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return roundTrip(p.conn)
}
