package immediate

import (
	"math/rand/v2"
	"testing"
)

// The span against a set of everything seen.
func TestSpan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var w span
	seen := make(map[uint64]bool)
	floor, next := uint64(0), uint64(0)
	for range 300_000 {
		switch rng.IntN(10) {
		case 0:
			if next > floor {
				floor += rng.Uint64N(next-floor) / 8
			}
			w.raise(floor)
		default:
			seq := next
			if rng.IntN(3) == 0 && next > 0 { // an old one again
				seq = next - 1 - rng.Uint64N(min(next, 1000))
			} else {
				next += 1 + rng.Uint64N(3)
			}
			if next-floor > immSpan/2 {
				floor = next - immSpan/2
				w.raise(floor)
			}
			if want := seq >= floor && !seen[seq]; w.add(seq) != want {
				t.Fatalf("add(%d) with floor %d is not %v", seq, floor, want)
			}
			seen[seq] = true
		}
	}
	// Far beyond the span the floor follows, and nothing old is new again.
	far := next + 10*immSpan
	if !w.add(far) || w.add(far) || w.add(next) || w.floor != far-immSpan+1 || w.width() != immSpan {
		t.Errorf("floor %d and room for %d after %d", w.floor, w.width(), far)
	}
}

func TestOutboxIsBounded(t *testing.T) {
	o := NewOutbox(1)
	first, ok := o.Start(1)
	if !ok || first.Source == 0 {
		t.Fatalf("%+v", first)
	}
	for range immSpan - 1 {
		m, ok := o.Start(2)
		if !ok {
			t.Fatal("full too early")
		}
		o.End(m)
	}
	if _, ok := o.Start(3); ok {
		t.Error("more outstanding than the target can tell apart")
	}
	o.End(first)
	if m, ok := o.Start(4); !ok || m.Floor != m.Seq {
		t.Errorf("after the oldest ended: %+v, %v", m, ok)
	}
}

func TestInbox(t *testing.T) {
	b := Inbox{}
	// Ended before it was sent: it is not delivered, and nothing of it is believed.
	if b.Accept(Imm{Source: 1, Seq: 4, Floor: 1 << 40}) || len(b.sources) > 0 {
		t.Errorf("a floor above the number is accepted, %d sources", len(b.sources))
	}
	if !b.Accept(Imm{Source: 1, Seq: 4, Floor: 4}) || b.Accept(Imm{Source: 1, Seq: 5, Floor: 6}) || !b.Accept(Imm{Source: 1, Seq: 5, Floor: 5}) {
		t.Error("a floor above the number forgets others")
	}
	for i := range uint64(maxSources + 10) {
		if !b.Accept(Imm{Source: i, Seq: 7, Floor: 7}) || b.Accept(Imm{Source: i, Seq: 7, Floor: 7}) || b.Accept(Imm{Source: i, Seq: 6, Floor: 6}) {
			t.Fatalf("source %d", i)
		}
	}
	if len(b.sources) != maxSources {
		t.Errorf("remembers %d sources", len(b.sources))
	}
	for id, s := range b.sources {
		if len(s.seen.bits) > 1 {
			t.Fatalf("source %d with one immediate takes %d words", id, len(s.seen.bits))
		}
	}
	if _, kept := b.sources[maxSources+9]; !kept {
		t.Error("the newest source was forgotten")
	}
}
