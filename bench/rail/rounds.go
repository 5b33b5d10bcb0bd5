package rail

import (
	"fmt"
)

// A point of rounds goes through the blocks of the target again and again, and each
// time a block gets another block of the source: in round r the one r places further
// on. So a write of an earlier round that is applied late, over one of a later round,
// leaves the wrong bytes, and so does one that is applied elsewhere or not at all.

// sourceOf is which block of the order here goes to place at of the order there, for
// the place'th block that a thread submits: place = round * blocks + at.
func (p *plan) sourceOf(place int) (at, from int) {
	n := p.blocks()
	at = place % n
	return at, (at + place/n) % n
}

// lastRound is the last place that was submitted for the block at, before the place
// next; -1 if there is none.
func (p *plan) lastRound(at, next int) int {
	n := p.blocks()
	round := next / n
	if at >= next%n {
		round--
	}
	if round < 0 {
		return -1
	}
	return round*n + at
}

// checkAll compares all of the target's memory with what the threads have written;
// what was never written has the pattern of untouched still. The blocks of batches
// that failed may be either.
func (p *plan) checkAll(mem []byte, landed []landing, untouched uint64) (verdict, error) {
	return verdicts(p.Threads, func(i int) (verdict, error) { return p.checkThread(mem, i, landed[i], untouched) })
}

func (p *plan) checkThread(mem []byte, thread int, l landing, untouched uint64) (v verdict, err error) {
	if l.Next < 0 {
		return v, fmt.Errorf("thread %d claims %d blocks", thread, l.Next)
	}
	at, from := p.order(thread, true), p.order(thread, false)
	unsure := l.lost()
	bad := func(what string, where int64) {
		v.Bad++
		if v.First == "" {
			v.First = fmt.Sprintf("thread %d, %s, at %#x of the segment", thread, what, where)
		}
	}
	for i := range at {
		if unsure[i] {
			continue
		}
		o := p.offset(thread, at[i])
		salt, address := untouched, o
		place := p.lastRound(i, l.Next)
		if place >= 0 {
			_, k := p.sourceOf(place)
			salt, address = p.salt(), p.offset(thread, from[k])
		}
		v.Checked++
		if wrong := PatternDiffers(mem[o:o+p.Block], salt, address); wrong >= 0 {
			what := fmt.Sprintf("block %d that nobody has written", i)
			if place >= 0 {
				what = fmt.Sprintf("block %d of round %d", i, place/len(at))
			}
			bad(fmt.Sprintf("%s, byte %d of %d", what, wrong, p.Block), o+int64(wrong))
		}
	}
	// What follows the last block belongs to none.
	end, until := p.offset(thread, int32(len(at))), int64(len(mem))
	if thread+1 < p.Threads {
		until = p.offset(thread+1, 0)
	}
	if wrong := PatternDiffers(mem[end:until], untouched, end); wrong >= 0 {
		bad("behind its last block", end+int64(wrong))
	}
	return v, nil
}
