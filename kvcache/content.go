package kvcache

import (
	"encoding/binary"
	"fmt"
)

// Content is what the KV cache of one sequence must contain, byte for byte: a
// function of the adapter and the cache salt, the tokens, the position, the layer and K or V, as
// in a real model but computable from these alone. It shares no code with Root, so that it finds
// blocks that Root has mixed up.
//
// A row is what one token has in one plane: K or V of a layer, or the hidden
// state. Its bytes are the little-endian words
//
//	seed, seed + step, seed + 2*step, ...   mod 2^64
//
// where seed mixes the plane into the token's state, and the state chains from the root over
// all tokens up to and including the position. Two rows that differ in any of
// those have seeds that agree with probability 2^-64, and then differ in every
// word. Producing a word is one addition beside the memory access, which keeps Fill
// near the speed of memory.
//
// Any number of goroutines may use Fill, and none beside Append.
type Content struct {
	geometry Geometry
	root     uint64   // state before the first token: of adapter and salt, 0 without both
	states   []uint64 // of each token, in order
}

// NewContent derives the contents for a sequence that begins with tokens, at
// 8 bytes of memory a token.
func NewContent(g Geometry, adapter, salt string, tokens []Token) *Content {
	c := &Content{geometry: g, states: make([]uint64, 0, len(tokens))}
	for i, name := range [...]string{adapter, salt} {
		for _, b := range []byte(name) {
			c.root = mix(c.root + uint64(1+i<<8+int(b))*step)
		}
	}
	c.Append(tokens...)
	return c
}

// Append adds tokens at the end of the sequence, as decoding does.
func (c *Content) Append(tokens ...Token) {
	state := c.root
	if n := len(c.states); n > 0 {
		state = c.states[n-1]
	}
	for _, t := range tokens {
		// The position enters too, lest a repeated token reach a fixed point.
		state = mix(state + uint64(t)*step + uint64(len(c.states)+1)<<32)
		c.states = append(c.states, state)
	}
}

// Tokens is the length of the sequence.
func (c *Content) Tokens() int { return len(c.states) }

// Fill writes one layer of one block into dst, LayerBytes long. Rows of tokens
// beyond the end of the sequence are left alone. It panics if dst is too short
// or there is no such layer.
func (c *Content) Fill(dst []byte, blockIndex, layer int) {
	g := c.geometry
	if layer < 0 || layer >= g.Layers {
		panic(fmt.Sprintf("kvcache: fill layer %d of a model of %d layers", layer, g.Layers))
	}
	states, n, row := c.block(blockIndex), g.planeBytes(), g.rowBytes()
	fillPlane(dst[:n:n], states, row, planeK(layer))
	fillPlane(dst[n:2*n], states, row, planeV(layer))
}

// FillToken writes one layer of one token into dst, the LayerBytes of its block.
func (c *Content) FillToken(dst []byte, token, layer int) {
	g := c.geometry
	state, at, n, row := c.states[token], token%g.BlockTokens, g.planeBytes(), g.rowBytes()
	fillRow(dst[at*row:(at+1)*row], seed(state, planeK(layer)))
	fillRow(dst[n+at*row:n+(at+1)*row], seed(state, planeV(layer)))
}

// FillHidden writes the hidden states of one block into dst, HiddenBytes long.
func (c *Content) FillHidden(dst []byte, blockIndex int) {
	g := c.geometry
	fillPlane(dst[:g.HiddenBytes()], c.block(blockIndex), g.HiddenTokenBytes(), hiddenPlane)
}

// block returns the states of the block's tokens: none beyond the end.
func (c *Content) block(index int) []uint64 {
	bt := c.geometry.BlockTokens
	if index < 0 || index >= blocksFor(len(c.states), bt) {
		return nil
	}
	return c.states[index*bt : min((index+1)*bt, len(c.states))]
}

func fillPlane(dst []byte, states []uint64, row int, pl uint64) {
	for i, state := range states {
		fillRow(dst[i*row:(i+1)*row], seed(state, pl))
	}
}

// Planes of a token are numbered from 1: the hidden state, layer 0 K, layer 0 V, layer 1 K, ...
const hiddenPlane = 1

func planeK(layer int) uint64 { return 2 + 2*uint64(layer) }
func planeV(layer int) uint64 { return 3 + 2*uint64(layer) }

// seed is the first word of a token's row in a plane. For one state it is a
// bijection of the plane, so no two planes of a token share a row.
func seed(state, pl uint64) uint64 { return mix(state ^ pl*step) }

// step is 2^64 divided by the golden ratio, made odd: its multiples take all
// 2^64 values before they repeat, and neighbours differ in about half their bits.
const step = 0x9e3779b97f4a7c15

// mix is a bijection of the 64-bit words in which each bit of the argument
// changes each bit of the result about half the time (the finaliser of
// splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fillRow writes the words from x on; the last one in part if row is not a
// multiple of 8. Eight words a turn, each an addition of a constant to the same
// x, so that the turn's stores do not wait for one another.
//
//go:norace
func fillRow(row []byte, x uint64) {
	raceWrite(row)
	for len(row) >= 64 {
		w := (*[64]byte)(row)
		binary.LittleEndian.PutUint64(w[0:], x)
		binary.LittleEndian.PutUint64(w[8:], x+step)
		binary.LittleEndian.PutUint64(w[16:], x+2*step&words)
		binary.LittleEndian.PutUint64(w[24:], x+3*step&words)
		binary.LittleEndian.PutUint64(w[32:], x+4*step&words)
		binary.LittleEndian.PutUint64(w[40:], x+5*step&words)
		binary.LittleEndian.PutUint64(w[48:], x+6*step&words)
		binary.LittleEndian.PutUint64(w[56:], x+7*step&words)
		x += 8 * step & words
		row = row[64:]
	}
	for ; len(row) >= 8; row = row[8:] {
		binary.LittleEndian.PutUint64(row, x)
		x += step
	}
	for i := range row {
		row[i] = byte(x >> (8 * i))
	}
}

// words keeps the multiples of step, constants to the compiler, within 64 bits.
const words = 1<<64 - 1
