package rail

import (
	"strings"
	"testing"

	"kvferry/internal/config"
	"kvferry/transport"
)

// TestBlocksAreApart: no byte of the memory belongs to two blocks, every block is
// inside, and each block of one end goes with one of the other.
func TestBlocksAreApart(t *testing.T) {
	for _, p := range []plan{
		{Block: 1, Batch: 3, Threads: 1, Depth: 1, Segment: 1000},
		{Block: 4096, Batch: 2, Threads: 3, Depth: 4, Segment: 1<<20 + 13},
		{Block: 777, Batch: 1, Threads: 7, Depth: 1, Segment: 60_001},
		{Block: 10, Batch: 1, Threads: 1, Depth: 1, Segment: 16},
	} {
		if err := p.validate(); err != nil {
			t.Error(err)
			continue
		}
		for _, target := range []bool{false, true} {
			owned := make([]bool, p.Segment)
			for thread := range p.Threads {
				order := p.order(thread, target)
				if len(order) != p.blocks() {
					t.Fatalf("%+v: %d blocks in the order, %d in the plan", p, len(order), p.blocks())
				}
				for _, i := range order {
					for at := p.offset(thread, i); at < p.offset(thread, i)+p.Block; at++ {
						if owned[at] {
							t.Fatalf("%+v: byte %d belongs to two blocks", p, at)
						}
						owned[at] = true
					}
				}
			}
		}
	}
	small := plan{Block: 64, Batch: 1, Threads: 1, Depth: 1, Segment: config.MaxSize}
	if small.blocks() != maxBlocks {
		t.Errorf("%d blocks, want at most %d", small.blocks(), maxBlocks)
	}
}

// TestCheck: a transfer done by hand is right to the last byte, and one wrong byte
// anywhere is found and named.
func TestCheck(t *testing.T) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		p := plan{Number: 1, Op: op, Block: 21, Batch: 2, Threads: 2, Depth: 1, Segment: 1000}
		src, dst := make([]byte, p.Segment), make([]byte, p.Segment)
		landed := make([]landing, p.Threads)
		for thread := range p.Threads {
			p.source(src, thread)
			local, remote := p.order(thread, false), p.order(thread, true)
			from, to := local, remote
			if op == transport.Read {
				from, to = remote, local
			}
			for i := range p.blocks() {
				copy(dst[p.offset(thread, to[i]):][:p.Block], src[p.offset(thread, from[i]):])
			}
			landed[thread] = landing{Blocks: p.blocks()}
		}
		want := int64(p.Threads * p.blocks())
		if v, err := p.check(dst, landed); err != nil || v.Checked != want || v.Bad != 0 {
			t.Errorf("%v: %+v, %v", op, v, err)
		}
		for _, wrong := range []int64{0, 7, 8, 20} {
			side := p.order(1, op == transport.Write)
			at := p.offset(1, side[3]) + wrong
			dst[at] ^= 1
			v, err := p.check(dst, landed)
			if err != nil || v.Checked != want || v.Bad != 1 || !strings.Contains(v.First, "thread 1, block 3, byte") {
				t.Errorf("%v, byte %d wrong: %+v, %v", op, wrong, v, err)
			}
			landed[1].Lost = []int{3}
			if v, err := p.check(dst, landed); err != nil || v.Checked != want-1 || v.Bad != 0 {
				t.Errorf("%v, byte %d wrong in a block that is lost: %+v, %v", op, wrong, v, err)
			}
			landed[1].Lost = nil
			dst[at] ^= 1
		}
		// The next point's pattern is another one.
		p.Number++
		if v, err := p.check(dst, landed); err != nil || v.Bad != want {
			t.Errorf("%v: %+v, %v", op, v, err)
		}
		landed[0].Blocks = p.blocks() + 1
		if _, err := p.check(dst, landed); err == nil {
			t.Error("more blocks than there are")
		}
	}
}
