package kvcache

import (
	"bytes"
	"errors"
	"math/rand/v2"
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
	s := &sequence{content: NewContent(g, tokens)}
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

// check is the consumer's: every layer of every block, derived anew.
func (s *sequence) check(c *Content) error {
	var errs []error
	for b, layers := range s.layers {
		for l, buf := range layers {
			errs = append(errs, c.Check(buf, b, l))
		}
		errs = append(errs, c.CheckHidden(s.hidden[b], b))
	}
	return errors.Join(errs...)
}

func TestContentRoundTrip(t *testing.T) {
	for _, g := range []Geometry{qwen, small, odd} {
		for _, n := range []int{1, g.BlockTokens - 1, g.BlockTokens, g.BlockTokens + 1, 2*g.BlockTokens + 1} {
			tokens := testTokens(n)
			if err := writeSequence(g, tokens).check(NewContent(g, tokens)); err != nil {
				t.Errorf("%+v, %d tokens: %v", g, n, err)
			}
		}
	}
}

// Every bit of every byte of a small sequence, flipped alone, is found where it is.
func TestContentFindsEveryBit(t *testing.T) {
	for _, g := range []Geometry{small, odd} {
		n := g.BlockTokens + g.BlockTokens/2
		s := writeSequence(g, testTokens(n))
		flip := func(buf []byte, offset, bit int, block, layer int, part Part, row int, check func() error) {
			t.Helper()
			good := buf[offset]
			buf[offset] ^= 1 << bit
			var ce *ContentError
			if err := check(); !errors.As(err, &ce) {
				t.Fatalf("block %d layer %d byte %d bit %d flipped: got %v", block, layer, offset, bit, err)
			}
			inPlane := offset
			if part == V {
				inPlane -= len(buf) / 2
			}
			want := ContentError{
				Block: block, Layer: layer, Part: part, Position: block*g.BlockTokens + inPlane/row,
				Offset: offset, Got: good ^ 1<<bit, Want: good,
			}
			if *ce != want {
				t.Fatalf("got %+v, want %+v", *ce, want)
			}
			buf[offset] = good
		}
		for b := range s.layers {
			held := min(g.BlockTokens, n-b*g.BlockTokens)
			for bit := range 8 {
				for l, buf := range s.layers[b] {
					for off := range buf {
						part, inPlane := K, off
						if off >= g.planeBytes() {
							part, inPlane = V, off-g.planeBytes()
						}
						if inPlane/g.rowBytes() >= held {
							continue
						}
						flip(buf, off, bit, b, l, part, g.rowBytes(), func() error { return s.content.Check(buf, b, l) })
					}
				}
				for off := range held * g.HiddenTokenBytes() {
					flip(s.hidden[b], off, bit, b, -1, Hidden, g.HiddenTokenBytes(),
						func() error { return s.content.CheckHidden(s.hidden[b], b) })
				}
			}
		}
		if err := s.check(s.content); err != nil {
			t.Fatalf("after every flip was undone: %v", err)
		}
	}
}

// All rows of a sequence, and of one that differs in one token, are pairwise
// distinct wherever they may differ: so any two blocks, layers, positions or
// halves that are exchanged are found, and the error names what was found.
func TestContentSwaps(t *testing.T) {
	g := small
	tokens := testTokens(3 * g.BlockTokens)
	s := writeSequence(g, tokens)
	rows := map[string]string{}
	for position, state := range s.content.states {
		for layer := range g.Layers {
			for _, part := range []Part{K, V} {
				row := make([]byte, g.rowBytes())
				fillRow(row, seed(state, plane(layer, part)))
				name := rowName(layer, part)
				if other, taken := rows[string(row)]; taken {
					t.Fatalf("%s of token %d has the bytes of %s", name, position, other)
				}
				rows[string(row)] = name
			}
		}
	}

	rng := rand.New(rand.NewPCG(2, 2))
	for range 2000 {
		block, layer := rng.IntN(3), rng.IntN(g.Layers)
		buf := bytes.Clone(s.layers[block][layer])
		what := ""
		switch rng.IntN(5) {
		case 0:
			what = "another block's layer"
			copy(buf, s.layers[(block+1+rng.IntN(2))%3][layer])
		case 1:
			what = "another layer of the block"
			copy(buf, s.layers[block][(layer+1+rng.IntN(2))%3])
		case 2:
			what = "K and V exchanged"
			n := g.planeBytes()
			copy(buf, s.layers[block][layer][n:])
			copy(buf[n:], s.layers[block][layer][:n])
		case 3:
			what = "two tokens' rows exchanged"
			i := rng.IntN(g.BlockTokens)
			j := (i + 1 + rng.IntN(g.BlockTokens-1)) % g.BlockTokens
			r, src := g.rowBytes(), s.layers[block][layer]
			copy(buf[i*r:(i+1)*r], src[j*r:])
			copy(buf[j*r:(j+1)*r], src[i*r:])
		case 4:
			what = "the end of the layer never written"
			clear(buf[rng.IntN(len(buf)-16):])
		}
		var ce *ContentError
		if err := s.content.Check(buf, block, layer); !errors.As(err, &ce) {
			t.Fatalf("block %d layer %d: %s: got %v", block, layer, what, err)
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
		c := NewContent(g, other)
		for b := range s.layers {
			for l, buf := range s.layers[b] {
				err := c.Check(buf, b, l)
				if (b+1)*g.BlockTokens <= changed {
					if err != nil {
						t.Fatalf("token %d changed: an earlier block fails: %v", changed, err)
					}
					continue
				}
				var ce *ContentError
				if !errors.As(err, &ce) || ce.Position != max(changed, b*g.BlockTokens) || ce.Part != K {
					t.Fatalf("token %d changed, block %d layer %d: %v", changed, b, l, err)
				}
			}
		}
	}
}

// Repeating one token must not repeat its rows: a position is part of the content.
func TestContentDependsOnPosition(t *testing.T) {
	for _, token := range []Token{0, 1, 1<<32 - 1} {
		c := NewContent(small, make([]Token, 0))
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
	c := NewContent(g, tokens)
	buf := bytes.Repeat([]byte{0xee}, g.LayerBytes())
	c.Fill(buf, 1, 2)
	row, n := g.rowBytes(), g.planeBytes()
	for _, rest := range [][]byte{buf[row:n], buf[n+row:]} {
		if !bytes.Equal(rest, bytes.Repeat([]byte{0xee}, len(rest))) {
			t.Error("Fill wrote rows of tokens that do not exist")
		}
	}
	if err := c.Check(buf, 1, 2); err != nil {
		t.Errorf("rows beyond the end were checked: %v", err)
	}
	// Decoding appends; the old rows stay, the new ones are now required.
	before := *c
	c.Append(7)
	if err := before.Check(buf, 1, 2); err != nil {
		t.Errorf("the copy made before Append: %v", err)
	}
	var ce *ContentError
	if err := c.Check(buf, 1, 2); !errors.As(err, &ce) || ce.Position != g.BlockTokens+1 {
		t.Errorf("after Append: got %v, want token %d", err, g.BlockTokens+1)
	}
	c.Fill(buf, 1, 2)
	if err := before.Check(buf, 1, 2); err != nil {
		t.Errorf("Append changed rows before it: %v", err)
	}
	whole := NewContent(g, append(tokens, 7))
	if err := whole.Check(buf, 1, 2); err != nil {
		t.Errorf("appended and constructed contents differ: %v", err)
	}
}

// A question that cannot be answered is an error, never "nothing wrong found".
func TestContentCheckRefuses(t *testing.T) {
	c := NewContent(small, testTokens(5)) // two blocks
	bare := small
	bare.HiddenSize = 0
	layer, hidden := make([]byte, small.LayerBytes()), make([]byte, small.HiddenBytes())
	c.Fill(layer, 0, 0)
	c.FillHidden(hidden, 0)
	for name, err := range map[string]error{
		"block beyond the end":        c.Check(layer, 2, 0),
		"negative block":              c.Check(layer, -1, 0),
		"layer beyond the last":       c.Check(layer, 0, small.Layers),
		"negative layer":              c.Check(layer, 0, -1),
		"short layer":                 c.Check(layer[1:], 0, 0),
		"long layer":                  c.Check(append(layer, 0), 0, 0),
		"nothing":                     c.Check(nil, 0, 0),
		"hidden: block beyond":        c.CheckHidden(hidden, 2),
		"hidden: short":               c.CheckHidden(hidden[1:], 0),
		"hidden: no such plane":       NewContent(bare, testTokens(5)).CheckHidden(nil, 0),
		"hidden: negative block":      c.CheckHidden(hidden, -1),
		"huge block, would overflow":  c.Check(layer, 1<<62, 0),
		"hidden: huge block":          c.CheckHidden(hidden, 1<<62),
		"empty sequence has no block": NewContent(small, nil).Check(layer, 0, 0),
	} {
		var ce *ContentError
		if err == nil || errors.As(err, &ce) {
			t.Errorf("%s: got %v, want an error that is no *ContentError", name, err)
		}
	}
}

func TestContentErrorText(t *testing.T) {
	s := writeSequence(small, testTokens(8))
	n := small.planeBytes()
	swapped := append(bytes.Clone(s.layers[1][2][n:]), s.layers[1][2][:n]...)
	torn := bytes.Clone(s.layers[1][2])
	clear(torn[n+2*small.rowBytes():])
	flipped := bytes.Clone(s.hidden[0])
	flipped[73] ^= 0x10
	for _, tc := range []struct {
		err    error
		suffix string
	}{
		{s.content.Check(swapped, 1, 2), "; the row holds layer 2 V of token 4"},
		{s.content.Check(s.layers[0][1], 1, 1), "; the row holds layer 1 K of token 0"},
		{s.content.Check(torn, 1, 2), "; the row holds zeros: never written"},
		{s.content.CheckHidden(s.hidden[0], 1), "; the row holds hidden state of token 0"},
	} {
		if tc.err == nil || !bytes.HasSuffix([]byte(tc.err.Error()), []byte(tc.suffix)) {
			t.Errorf("got %q, want ...%q", tc.err, tc.suffix)
		}
	}
	var ce *ContentError
	if err := s.content.CheckHidden(flipped, 0); !errors.As(err, &ce) || ce.Found != "" || ce.Offset != 73 {
		t.Errorf("a flipped bit of a hidden state: %v", err)
	}
}

// The bytes are the same on every machine of a cluster, whatever its byte order
// and version. This row was computed from the definition in Content's comment by
// a program in another language.
func TestContentIsFixed(t *testing.T) {
	c := NewContent(small, []Token{1, 2, 3})
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

// Fill and Check only read the Content: the race detector watches.
func TestContentConcurrentUse(t *testing.T) {
	c := NewContent(small, testTokens(64))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, small.LayerBytes())
			for b := range 16 {
				for l := range small.Layers {
					c.Fill(buf, b, l)
					if err := c.Check(buf, b, l); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// FuzzContentCheck feeds Check bytes from a peer: it must accept exactly what
// Fill writes, and never panic.
func FuzzContentCheck(f *testing.F) {
	good := make([]byte, odd.LayerBytes())
	NewContent(odd, testTokens(5)).Fill(good, 1, 1)
	f.Add(good, 1, 1)
	f.Add(good, 0, 1)
	f.Add(good[:7], 1, 1)
	f.Add([]byte{}, -5, 99)
	f.Fuzz(func(t *testing.T, src []byte, block, layer int) {
		c := NewContent(odd, testTokens(5))
		err := c.Check(src, block, layer)
		answerable := block >= 0 && block < 2 && layer >= 0 && layer < odd.Layers && len(src) == odd.LayerBytes()
		if !answerable {
			if err == nil {
				t.Fatalf("Check(%d bytes, %d, %d) found nothing wrong", len(src), block, layer)
			}
			return
		}
		want := bytes.Clone(src)
		c.Fill(want, block, layer)
		if (err == nil) != bytes.Equal(src, want) {
			t.Fatalf("Check says %v, Fill says equal=%v", err, bytes.Equal(src, want))
		}
	})
}
