package immediate

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// numbered are a message's immediates of one source.
func numbered(source, seq uint64, name string, message []byte) []Imm {
	parts := Cut(name, message)
	for i := range parts {
		parts[i].Source, parts[i].Seq = source, seq
	}
	return parts
}

func TestCut(t *testing.T) {
	for _, n := range []int{0, 1, MaxText - 3, MaxText - 2, MaxText - 1, MaxText, 5 * MaxText, MaxMessage} {
		for _, name := range []string{"", "n", strings.Repeat("n", MaxName)} {
			message := bytes.Repeat([]byte{7}, n)
			parts := numbered(1, 3, name, message)
			if want := (1 + len(name) + n + MaxText - 1) / MaxText; len(parts) != want {
				t.Errorf("%d bytes of %q: %d parts, not %d", n, name, len(parts), want)
			}
			b := Inbox{}
			for i, m := range parts {
				if err := m.check(); err != nil || m.Part() != (i < len(parts)-1) {
					t.Fatalf("part %d of %d: %v, others come: %v", i, len(parts), err, m.Part())
				}
				from, got, err := b.Message(m)
				if last := i == len(parts)-1; err != nil || (got != nil) != last || last && (from != name || !bytes.Equal(got, message)) {
					t.Fatalf("part %d of %d: %d bytes of %q, %v", i, len(parts), len(got), from, err)
				}
			}
			if b.held != 0 {
				t.Errorf("%d bytes are held in the end", b.held)
			}
		}
	}
}

// The parts of several messages in any order, most of them more than once, and then the last of each.
func TestMessagesInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := Inbox{}
		var parts, last []Imm
		for i := range uint64(6) {
			all := numbered(i%2+1, i, "who", bytes.Repeat([]byte{byte(i)}, rng.IntN(4000)))
			parts = append(parts, all[:len(all)-1]...)
			last = append(last, all[len(all)-1])
		}
		again := parts[:rng.IntN(len(parts)+1)]
		parts = append(parts, again...)
		rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		for _, m := range parts {
			if _, got, err := b.Message(m); got != nil || err != nil {
				t.Fatalf("a part: %d bytes, %v", len(got), err)
			}
		}
		for _, m := range last {
			if name, got, err := b.Message(m); got == nil || err != nil || name != "who" || !bytes.Equal(got, bytes.Repeat([]byte{byte(m.Seq)}, len(got))) {
				t.Fatalf("the last of %d: %d bytes, %v", m.Seq, len(got), err)
			}
		}
		for _, m := range append(parts, last...) { // late
			if _, got, err := b.Message(m); got != nil || err != nil {
				t.Fatalf("again: %d bytes, %v", len(got), err)
			}
		}
		if b.held != 0 {
			t.Fatalf("%d bytes are held in the end", b.held)
		}
		if !b.Has(last[0]) {
			t.Error("asked for a message that was delivered, it says no")
		}
	}
}

// What makes room is refused when its last part comes, and delivered when all is sent again; so is one of which a part
// has not come. What a source has ended is let go of.
func TestUnfinished(t *testing.T) {
	b := Inbox{}
	long := make([]byte, MaxMessage)
	first := numbered(1, 0, "a", long)
	last := first[len(first)-1]
	if _, _, err := b.Message(last); !errors.Is(err, ErrFull) {
		t.Errorf("the last part alone: %v", err)
	}
	for _, m := range first[:len(first)-1] {
		b.Message(m)
	}
	some := numbered(7, 0, "d", long)
	b.Message(some[3])
	if _, got, err := b.Message(some[len(some)-1]); got != nil || !errors.Is(err, ErrFull) {
		t.Errorf("one of which most has not come: %d bytes, %v", len(got), err)
	}
	b.Accept(Imm{Source: 7, Seq: 1, Floor: 1})
	const others = maxUnfinished / MaxMessage
	for i := range uint64(others) {
		b.Message(numbered(2+i%3, i+1, "b", long)[0])
		if b.held > maxUnfinished {
			t.Fatalf("%d bytes are held", b.held)
		}
	}
	if _, got, err := b.Message(last); got != nil || !errors.Is(err, ErrFull) {
		t.Errorf("one that had to make room: %d bytes, %v", len(got), err)
	}
	for _, m := range first[:len(first)-1] {
		b.Message(m)
	}
	if _, got, err := b.Message(last); len(got) != len(long) || err != nil {
		t.Errorf("sent again: %d bytes, %v", len(got), err)
	}
	for source := range uint64(3) {
		b.Accept(Imm{Source: 2 + source, Seq: 1 << 20, Floor: 1 << 20})
	}
	if b.held != 0 {
		t.Errorf("%d bytes of batches that have ended are held", b.held)
	}
	b.Message(numbered(9, 0, "c", long)[0])
	for i := range uint64(maxSources) {
		b.Accept(Imm{Source: 100 + i})
	}
	if b.held != 0 {
		t.Errorf("%d bytes of a source that was forgotten are held", b.held)
	}
}

// As many messages of one source as there is memory for, then as many that push those out, which end one by one: each
// takes as long as if it were alone. If it took as long as a look at all of them, this would be minutes.
func TestManyUnfinished(t *testing.T) {
	b, n := Inbox{}, uint64(maxUnfinished/(MaxText+2+overhead))
	began := time.Now()
	parts := func(seq uint64) []Imm { return numbered(1, seq, "a", make([]byte, MaxText)) }
	for seq := range 2 * n {
		b.Message(parts(seq)[0])
	}
	if len(b.sources[1].unfinished) != int(n) || b.idle.Len() != int(n) {
		t.Fatalf("%d are unfinished, %d in order, not %d", len(b.sources[1].unfinished), b.idle.Len(), n)
	}
	for seq := n; seq < 2*n; seq++ {
		last := parts(seq)[1]
		last.Floor = seq
		if _, got, err := b.Message(last); len(got) != MaxText || err != nil {
			t.Fatalf("message %d: %d bytes, %v", seq, len(got), err)
		}
	}
	if took := time.Since(began); b.held != 0 || b.idle.Len() != 0 || took > 30*time.Second {
		t.Errorf("%d bytes are held, %d in order, after %v", b.held, b.idle.Len(), took)
	}
}

// FuzzMessage feeds what peers say of parts: what is held is bounded, and what is delivered is no longer than allowed.
func FuzzMessage(f *testing.F) {
	f.Add(uint64(1), uint64(5)<<32, "\x02abcd", uint64(0))
	f.Add(uint64(1), uint64(600)<<32, strings.Repeat("x", MaxText), uint64(1<<63))
	f.Add(uint64(3), uint64(600)<<32|MaxText, strings.Repeat("x", 600-MaxText), uint64(2))
	f.Add(uint64(3), uint64(1<<32-1)<<32|(1<<32-1), "x", uint64(2))
	f.Fuzz(func(t *testing.T, seq, value uint64, text string, floor uint64) {
		if text == "" {
			return
		}
		b := Inbox{}
		for _, m := range []Imm{{Source: 1, Seq: seq, Value: value, Text: text}, {Source: 1, Seq: seq, Floor: floor, Value: value ^ MaxText, Text: text}, {Source: 1, Seq: seq, Value: value ^ 1<<32, Text: text}} {
			_, got, err := b.Message(m)
			if len(got) > maxWhole || err != nil && got != nil || b.held > maxUnfinished || b.held < 0 {
				t.Fatalf("%d bytes, %v; %d held", len(got), err, b.held)
			}
		}
	})
}

// What there is no room for has not come: with room it comes, once, and then it has, room or not.
func TestNoRoom(t *testing.T) {
	room := 0
	b := Inbox{HasRoom: func(n int) bool { return n <= room }}
	for seq, text := range [][]byte{{}, make([]byte, MaxMessage)} {
		parts := numbered(1, uint64(seq), "a", text)
		last := parts[len(parts)-1]
		for _, m := range parts[:len(parts)-1] {
			b.Message(m)
		}
		if room = 1 + len(text); b.Has(last) {
			t.Error("has what has not come")
		}
		if _, got, err := b.Message(last); got != nil || !errors.Is(err, ErrFull) || b.Has(last) {
			t.Errorf("room for a byte less than %d: %d bytes, %v", room+1, len(got), err)
		}
		room++
		if _, got, err := b.Message(last); len(got) != len(text) || got == nil || err != nil {
			t.Errorf("room for %d bytes: %d bytes, %v", room, len(got), err)
		}
		room = 0
		if _, got, err := b.Message(last); got != nil || err != nil {
			t.Errorf("again, without room: %d bytes, %v", len(got), err)
		}
	}
	if b.held != 0 {
		t.Errorf("%d bytes are held in the end", b.held)
	}
}

// BenchmarkBeside takes messages of one part while a thousand others of their source are unfinished.
func BenchmarkBeside(b *testing.B) {
	in := Inbox{}
	for i := range uint64(1000) {
		in.Message(numbered(1, i+1, "n", make([]byte, 2*MaxText))[0])
	}
	short := numbered(1, 2000, "n", nil)[0]
	for b.Loop() {
		in.Message(short)
	}
}
