package proto

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// The messages of the control plane are bounded by what the other side can have to say.
// gRPC reads a message's length first and refuses one that is longer before it has taken
// or parsed a byte of it: a Submit of 60 MB cost a node 350 MB when its prompt was looked
// at only after all of it was there. Who sends one loses the stream it came over.
const (
	// MessageSize bounds a message with no list that grows with the model: registrations,
	// heartbeats with some hundred rails, questions between nodes. Of other messages it is
	// the part beside their list. Bytes.
	MessageSize = 64 << 10
	// IterationSize is what a node puts into one FromNode, besides the last report. Bytes.
	IterationSize = 1 << 20
	// MaxModelLen is the longest model a proxy takes, in tokens: it bounds what the proxy
	// takes from its nodes. A prompt of that length is 4 MiB.
	MaxModelLen = 1 << 20

	// blockSize is the most that a Block takes: three numbers of five bytes with a tag each, two
	// digests of eight with a tag of two, and the tag and length of all.
	blockSize = 3*6 + 2*10 + 2
)

// SubmitSize bounds a message with one request's prompt or block table, in bytes: a Submit
// to a node of that model length, or a report from it.
func SubmitSize(modelLen, blockTokens uint32) int {
	blocks := int(modelLen/max(blockTokens, 1)) + 1
	return MessageSize + 4*int(modelLen) + blockSize*blocks
}

// FromNodeSize bounds what a proxy takes from a node, in bytes.
func FromNodeSize(info *NodeInfo) int {
	return IterationSize + SubmitSize(info.MaxModelLen, info.BlockTokens)
}

// Between RedialMin and RedialMax lies the wait before a broken stream is opened again: short
// at first, since most peers are back at once and a lease is a few seconds, and long enough
// that one that refuses the stream costs nothing.
const (
	RedialMin = 20 * time.Millisecond
	RedialMax = time.Second
)

// Microseconds is d for the wire, where a uint32 holds 71 minutes.
func Microseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), 1<<32-1))
}

// RoleName is a role as flags, logs and metrics call it.
func RoleName(role Role) string {
	switch role {
	case Role_ROLE_PREFILL:
		return "prefill"
	case Role_ROLE_DECODE:
		return "decode"
	case Role_ROLE_NONDISAGG:
		return "nondisagg"
	}
	return "unknown"
}

// ServerKeepalive lets clients ask as often as nodes and proxies do whether a server is
// there still.
func ServerKeepalive() grpc.ServerOption {
	return grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true})
}

// RemainingMS is how many milliseconds are left until a context's deadline, as a Submit
// carries them: 1 at least, since a node takes 0 for its default.
func RemainingMS(ctx context.Context) uint32 {
	at, ok := ctx.Deadline()
	if !ok {
		return math.MaxUint32
	}
	return uint32(min(max(time.Until(at).Milliseconds(), 1), math.MaxUint32))
}
