package connection

import (
	"slices"
	"sync"
	"time"

	"kvferry/transport"
)

// MaxLost is how many connections to one peer are remembered: the latest.
const MaxLost = 7

// Losses are the connections that a rail has lost while writes were unanswered: by
// address, until a new connection there has had them ended. The zero value is none. The
// methods may be called from any goroutine.
type Losses struct {
	mu     sync.Mutex
	byAddr map[string]*losses
}

type losses struct {
	secrets []transport.Secret
	at      time.Time // of the last
}

const (
	// lossesFor is how long they are. A peer that is not connected for so long is one
	// that nothing here has open; the batches that were on the connection have ended
	// long ago, and are not retried.
	lossesFor = time.Hour
	// manyLosses is when what is too old is looked for.
	manyLosses = 64
)

// Add remembers a connection.
func (l *Losses) Add(addr string, s transport.Secret) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.byAddr == nil {
		l.byAddr = make(map[string]*losses)
	}
	if len(l.byAddr) >= manyLosses {
		for a, of := range l.byAddr {
			if now.Sub(of.at) > lossesFor {
				delete(l.byAddr, a)
			}
		}
	}
	of := l.byAddr[addr]
	if of == nil {
		of = &losses{}
		l.byAddr[addr] = of
	}
	of.secrets = append(of.secrets, s)
	of.secrets, of.at = of.secrets[max(0, len(of.secrets)-MaxLost):], now
}

// Of returns the connections to a peer, MaxLost at most.
func (l *Losses) Of(addr string) []transport.Secret {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byAddr[addr]; of != nil {
		return slices.Clone(of.secrets)
	}
	return nil
}

// Ended forgets connections that the peer has ended.
func (l *Losses) Ended(addr string, ended []transport.Secret) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.byAddr[addr]
	if of == nil {
		return
	}
	of.secrets = slices.DeleteFunc(of.secrets, func(s transport.Secret) bool { return slices.Contains(ended, s) })
	if len(of.secrets) == 0 {
		delete(l.byAddr, addr)
	}
}
