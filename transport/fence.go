package transport

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
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

// fenced is the secret that fence was made of.
func fenced(m *Imm) (s Secret) {
	binary.LittleEndian.PutUint64(s[:], m.Seq)
	binary.LittleEndian.PutUint64(s[8:], m.Value)
	return s
}
