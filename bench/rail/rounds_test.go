package rail

import (
	"strings"
	"testing"

	"kvferry/transport"
)

// TestRounds: two and a half rounds done by hand are right to the last byte of the
// memory; a block that was lost, one of an earlier round applied late, one in the
// wrong place and a byte between the threads' blocks are found and named.
func TestRounds(t *testing.T) {
	const untouched = 77
	p := plan{Number: 1, Op: transport.Write, Block: 24, Batch: 2, Threads: 2, Depth: 1, Segment: 1000, Check: true, Rounds: true}
	src, dst := make([]byte, p.Segment), make([]byte, p.Segment)
	FillPattern(dst, untouched, 0)
	n := p.blocks()
	write := func(thread, place int) {
		at, from := p.sourceOf(place)
		to, source := p.order(thread, true), p.order(thread, false)
		copy(dst[p.offset(thread, to[at]):][:p.Block], src[p.offset(thread, source[from]):])
	}
	landed := make([]landing, p.Threads)
	for thread := range p.Threads {
		p.source(src, thread)
		next := 2*n + n/2
		if thread == 1 {
			next = n / 2 // half of it is as it was
		}
		for place := range next {
			write(thread, place)
		}
		landed[thread] = landing{Next: next}
	}
	check := func(what, want string) {
		t.Helper()
		v, err := p.checkAll(dst, landed, untouched)
		switch {
		case err != nil || want == "" && v != verdict{Checked: int64(2 * n)}:
			t.Errorf("%s: %+v, %v", what, v, err)
		case want != "" && (v.Bad != 1 || !strings.Contains(v.First, want)):
			t.Errorf("%s: %+v, want %q", what, v, want)
		}
	}
	check("sound", "")
	write(0, n+3) // place 3 of the round before, once more
	check("late", "thread 0, block 3 of round 2, byte 0 of 24")
	write(0, 2*n+3)
	write(1, n-1)
	check("astray", "that nobody has written")
	landed[1].Lost = []int{n - 1}
	if v, err := p.checkAll(dst, landed, untouched); err != nil || v.Bad != 0 || v.Checked != int64(2*n-1) {
		t.Errorf("in doubt: %+v, %v", v, err)
	}
	landed[1].Lost = nil
	FillPattern(dst, untouched, 0) // all is lost but for what nobody has written
	if v, _ := p.checkAll(dst, landed, untouched); v.Bad != int64(n+n/2) {
		t.Errorf("lost: %+v", v)
	}
	for thread := range p.Threads {
		for place := range landed[thread].Next {
			write(thread, place)
		}
	}
	check("once more", "")
	dst[len(dst)-1] ^= 1
	check("behind", "thread 1, behind its last block")
	if p.lastRound(3, 3) != -1 || p.lastRound(2, 3) != 2 || p.lastRound(0, n+1) != n {
		t.Error("last rounds")
	}
}
