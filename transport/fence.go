package transport

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// A Secret ends one connection, at the rail that serves it: see Rail.Fence. The
// initiator makes it up, and says only its name over the connection itself; the
// secret travels once, over another connection, when the first has been given up.
// So who overhears a connection learns nothing that ends it, and who overhears the
// secret only what has ended. It is never zero.
type Secret [16]byte

// A Name is what a connection is known by to those who do not have its secret.
type Name [16]byte

// NewSecret returns a secret no peer can guess.
func NewSecret() Secret {
	var s Secret
	for s == (Secret{}) {
		_, _ = rand.Read(s[:]) // never fails
	}
	return s
}

// Name is half of the SHA-256 of the secret, which cannot be had from it.
func (s Secret) Name() Name {
	sum := sha256.Sum256(s[:])
	return Name(sum[:16])
}

// fence is the immediate that asks for a connection to be ended: one without a source.
func (s Secret) fence() Imm {
	return Imm{Seq: binary.LittleEndian.Uint64(s[:]), Value: binary.LittleEndian.Uint64(s[8:])}
}

// secret is what fence was made of.
func (m *Imm) secret() (s Secret) {
	binary.LittleEndian.PutUint64(s[:], m.Seq)
	binary.LittleEndian.PutUint64(s[8:], m.Value)
	return s
}

// AwaitFence waits for a connection that was cut to be over. It is over at once,
// unless a hostile peer has two connections fence each other: then neither waits
// for ever.
func AwaitFence(over <-chan struct{}) {
	t := time.NewTimer(10 * time.Second)
	defer t.Stop()
	select {
	case <-over:
	case <-t.C:
	}
}

// MaxLost is how many connections to one peer are remembered: the latest.
const MaxLost = 7

// Losses are the connections that a rail has lost while writes were unanswered: by
// address, until a new connection there has had them ended. The zero value is none.
type Losses struct {
	mu     sync.Mutex
	byAddr map[string]*losses
}

type losses struct {
	secrets []Secret
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
func (l *Losses) Add(addr string, s Secret) {
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
func (l *Losses) Of(addr string) []Secret {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byAddr[addr]; of != nil {
		return slices.Clone(of.secrets)
	}
	return nil
}

// Ended forgets connections that the peer has ended.
func (l *Losses) Ended(addr string, ended []Secret) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.byAddr[addr]
	if of == nil {
		return
	}
	of.secrets = slices.DeleteFunc(of.secrets, func(s Secret) bool { return slices.Contains(ended, s) })
	if len(of.secrets) == 0 {
		delete(l.byAddr, addr)
	}
}
