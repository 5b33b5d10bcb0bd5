package tooldraws

import (
	"encoding/binary"
	"math/bits"
)

// PythonHash is hash(s) of a str of ASCII in CPython 3.11 or later that runs with
// PYTHONHASHSEED=0: SipHash-1-3 with a key of zeros. Without it each process has a key of
// its own, and nobody can say what it hashes to.
func PythonHash(s string) int64 {
	if s == "" {
		return 0
	}
	v0, v1, v2, v3 := uint64(0x736f6d6570736575), uint64(0x646f72616e646f6d), uint64(0x6c7967656e657261), uint64(0x7465646279746573)
	round := func() {
		v0 += v1
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v3
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 += v3
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v2 = bits.RotateLeft64(v2, 32)
	}
	word := func(m uint64) {
		v3 ^= m
		round()
		v0 ^= m
	}
	text := []byte(s)
	for ; len(text) >= 8; text = text[8:] {
		word(binary.LittleEndian.Uint64(text))
	}
	var last [8]byte
	copy(last[:], text)
	last[7] = byte(len(s))
	word(binary.LittleEndian.Uint64(last[:]))
	v2 ^= 0xff
	round()
	round()
	round()
	h := int64(v0 ^ v1 ^ v2 ^ v3)
	if h == -1 { // which CPython keeps for errors
		h = -2
	}
	return h
}
