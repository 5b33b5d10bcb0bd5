package kvcache

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// qwen is Qwen2.5-7B-Instruct with blocks of 16.
var qwen = Geometry{Layers: 28, KVHeads: 4, HeadDim: 128, ElemBytes: 2, BlockTokens: 16, HiddenSize: 3584}

// small has rows of 24 and of 72 bytes, so that turns of eight words and single
// words both occur; odd has rows of 15 and of 77, which end inside a word.
var (
	small = Geometry{Layers: 3, KVHeads: 2, HeadDim: 6, ElemBytes: 2, BlockTokens: 4, HiddenSize: 36}
	odd   = Geometry{Layers: 2, KVHeads: 3, HeadDim: 5, ElemBytes: 1, BlockTokens: 3, HiddenSize: 77}
)

func testTokens(n int) []Token {
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	tokens := make([]Token, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(151_936) // Qwen2.5's vocabulary
	}
	return tokens
}

// sequence is the bytes of a whole sequence as a prefill node writes them.
type sequence struct {
	content *Content
	layers  [][][]byte // [block][layer]
	hidden  [][]byte   // [block]
}

func writeSequence(g Geometry, tokens []Token) *sequence {
	s := &sequence{content: NewContent(g, "", "", tokens)}
	for b := range g.Blocks(len(tokens)) {
		var layers [][]byte
		for l := range g.Layers {
			buf := make([]byte, g.LayerBytes())
			s.content.Fill(buf, b, l)
			layers = append(layers, buf)
		}
		hidden := make([]byte, g.HiddenBytes())
		s.content.FillHidden(hidden, b)
		s.layers = append(s.layers, layers)
		s.hidden = append(s.hidden, hidden)
	}
	return s
}

// check judges what has been written by c: every layer of every block.
func (s *sequence) check(c *Content) error {
	var errs []error
	for b, layers := range s.layers {
		for l, buf := range layers {
			errs = append(errs, c.check(buf, b, l))
		}
		errs = append(errs, c.checkHidden(s.hidden[b], b))
	}
	return errors.Join(errs...)
}

// check compares a layer of a block with what Fill writes. Rows beyond the end of the sequence are not looked at.
func (c *Content) check(src []byte, block, layer int) error {
	want := bytes.Clone(src)
	c.Fill(want, block, layer)
	return equal(src, want)
}

func (c *Content) checkHidden(src []byte, block int) error {
	want := bytes.Clone(src)
	c.FillHidden(want, block)
	return equal(src, want)
}

func equal(got, want []byte) error {
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %#02x, want %#02x", i, got[i], want[i])
		}
	}
	return nil
}

func TestContentRoundTrip(t *testing.T) {
	for _, g := range []Geometry{qwen, small, odd} {
		for _, n := range []int{1, g.BlockTokens - 1, g.BlockTokens, g.BlockTokens + 1, 2*g.BlockTokens + 1} {
			tokens := testTokens(n)
			if err := writeSequence(g, tokens).check(NewContent(g, "", "", tokens)); err != nil {
				t.Errorf("%+v, %d tokens: %v", g, n, err)
			}
		}
	}
}

// All rows of a sequence are pairwise distinct: so any two blocks, layers, positions
// or halves that are exchanged are found.
func TestContentRowsDiffer(t *testing.T) {
	g := small
	tokens := testTokens(3 * g.BlockTokens)
	s := NewContent(g, "", "", tokens)
	rows := map[string]string{}
	planes := []uint64{hiddenPlane}
	for layer := range g.Layers {
		planes = append(planes, planeK(layer), planeV(layer))
	}
	for position, state := range s.states {
		for _, p := range planes {
			row := make([]byte, g.rowBytes())
			fillRow(row, seed(state, p))
			name := fmt.Sprintf("plane %d of token %d", p, position)
			if other, taken := rows[string(row)]; taken {
				t.Fatalf("%s has the bytes of %s", name, other)
			}
			rows[string(row)] = name
		}
	}
}

// A token that differs makes every row from its position on differ, in every
// plane, and none before it.
func TestContentDependsOnAllTokensBefore(t *testing.T) {
	g := small
	tokens := testTokens(5 * g.BlockTokens)
	s := writeSequence(g, tokens)
	for changed := range tokens {
		other := append([]Token(nil), tokens...)
		other[changed]++
		c := NewContent(g, "", "", other)
		for b := range s.layers {
			for l, buf := range s.layers[b] {
				err := c.check(buf, b, l)
				if (b+1)*g.BlockTokens <= changed {
					if err != nil {
						t.Fatalf("token %d changed: an earlier block fails: %v", changed, err)
					}
					continue
				}
				row := max(changed, b*g.BlockTokens) % g.BlockTokens * g.rowBytes()
				if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("byte %d is", row)) {
					t.Fatalf("token %d changed, block %d layer %d: %v", changed, b, l, err)
				}
			}
		}
	}
}

// Repeating one token must not repeat its rows: a position is part of the content.
func TestContentDependsOnPosition(t *testing.T) {
	for _, token := range []Token{0, 1, 1<<32 - 1} {
		c := NewContent(small, "", "", make([]Token, 0))
		seen := map[uint64]int{}
		for i := range 10_000 {
			c.Append(token)
			if at, taken := seen[c.states[i]]; taken {
				t.Fatalf("token %d at positions %d and %d has the same rows", token, at, i)
			}
			seen[c.states[i]] = i
		}
	}
}

func TestContentPartialBlock(t *testing.T) {
	g := small
	tokens := testTokens(g.BlockTokens + 1)
	c := NewContent(g, "", "", tokens)
	buf := bytes.Repeat([]byte{0xee}, g.LayerBytes())
	c.Fill(buf, 1, 2)
	row, n := g.rowBytes(), g.planeBytes()
	for _, rest := range [][]byte{buf[row:n], buf[n+row:]} {
		if !bytes.Equal(rest, bytes.Repeat([]byte{0xee}, len(rest))) {
			t.Error("Fill wrote rows of tokens that do not exist")
		}
	}
	if err := c.check(buf, 1, 2); err != nil {
		t.Errorf("rows beyond the end were checked: %v", err)
	}
	// Decoding appends; the old rows stay, the new ones are now required.
	before := NewContent(g, "", "", tokens)
	c.Append(7)
	if err := c.check(buf, 1, 2); err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("byte %d is", row)) {
		t.Errorf("after Append: got %v, want the second row wrong", err)
	}
	c.Fill(buf, 1, 2)
	if err := before.check(buf, 1, 2); err != nil {
		t.Errorf("Append changed rows before it: %v", err)
	}
	whole := NewContent(g, "", "", append(tokens, 7))
	if err := whole.check(buf, 1, 2); err != nil {
		t.Errorf("appended and constructed contents differ: %v", err)
	}
}

// The bytes are the same on every machine of a cluster, whatever its byte order
// and version. This row was computed from the definition in Content's comment by
// a program in another language.
func TestContentIsFixed(t *testing.T) {
	c := NewContent(small, "", "", []Token{1, 2, 3})
	buf := make([]byte, small.LayerBytes())
	c.Fill(buf, 0, 1)
	want := []byte{
		0x8a, 0x67, 0xbe, 0x7a, 0x0e, 0x3d, 0x14, 0x80,
		0x9f, 0xe3, 0x08, 0xfa, 0xc7, 0xb6, 0x4b, 0x1e,
		0xb4, 0x5f, 0x53, 0x79, 0x81, 0x30, 0x83, 0xbc,
	}
	if got := buf[2*small.rowBytes() : 3*small.rowBytes()]; !bytes.Equal(got, want) {
		t.Errorf("layer 1 K of token 2 is %#v, want %#v", got, want)
	}
}

// Fill only reads the Content: the race detector watches.
func TestContentConcurrentUse(t *testing.T) {
	c := NewContent(small, "", "", testTokens(64))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, small.LayerBytes())
			for b := range 16 {
				for l := range small.Layers {
					c.Fill(buf, b, l)
					if err := c.check(buf, b, l); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}
