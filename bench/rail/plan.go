package rail

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"kvferry/internal/config"
	"kvferry/transport"
)

// A plan is one point as both ends know it: from it each computes where the blocks
// lie and what is in them.
type plan struct {
	Number  int          `json:"number"` // from 1
	Op      transport.Op `json:"op"`
	Block   int64        `json:"block"`
	Batch   int          `json:"batch"`
	Threads int          `json:"threads"`
	Depth   int          `json:"depth"`
	Segment int64        `json:"segment"`
	Seed    uint64       `json:"seed"`
	Check   bool         `json:"check,omitempty"`
	Corrupt []int        `json:"corrupt,omitempty"`
	// Rounds has each round write other bytes to a block than the round before, and
	// the check compare all of the memory: a block that was lost, that came twice, or
	// that went astray is found. It is for writes, of the only point of a session.
	Rounds bool `json:"rounds,omitempty"`

	// The initiator's own.
	setup setup
	imm   bool // each batch has an immediate
	alone bool // latency is the caller's, see Config.Latency
}

// maxBlocks bounds a thread's blocks, and with them the memory of their order: 1 GiB
// of 4 KiB blocks. Smaller blocks use the front of the memory.
const maxBlocks = 1 << 18

// stride is the distance of two blocks: words of a pattern have 8 bytes.
func (p *plan) stride() int64 { return (p.Block + 7) &^ 7 }

// blocks is how many each thread has.
func (p *plan) blocks() int { return int(min(p.Segment/int64(p.Threads)/p.stride(), maxBlocks)) }

// offset is where block i of a thread lies.
func (p *plan) offset(thread int, i int32) int64 {
	each := p.Segment / int64(p.Threads) / p.stride() * p.stride()
	return int64(thread)*each + int64(i)*p.stride()
}

// validate is the check of both ends; the target's plan comes from a peer.
func (p *plan) validate() error {
	if p.Op != transport.Write && p.Op != transport.Read || p.Block < 1 || p.Block > config.MaxSize ||
		p.Batch < 1 || p.Threads < 1 || p.Threads > config.MaxCount || p.Depth < 1 || p.Segment < 1 {
		return fmt.Errorf("a point of %+v makes no sense", *p)
	}
	if p.Rounds && (p.Op != transport.Write || !p.Check || len(p.Corrupt) > 0) {
		return fmt.Errorf("a point of rounds is of writes that are checked, and nothing else: %+v", *p)
	}
	if p.blocks() < p.Batch {
		return fmt.Errorf("a batch takes %d of a thread's %d blocks: raise the segment's size, or lower block, batch or threads", p.Batch, p.blocks())
	}
	return nil
}

// order is the order in which a thread goes through its blocks, at the target or
// here. The i-th of one goes with the i-th of the other.
func (p *plan) order(thread int, target bool) []int32 {
	side := uint64(0)
	if target {
		side = 1
	}
	rng := rand.New(rand.NewPCG(p.Seed+uint64(p.Number)<<32, uint64(thread)<<1|side))
	order := make([]int32, p.blocks())
	for i := range order {
		order[i] = int32(i)
	}
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// source fills the source's memory of a thread: for a write the initiator's, where
// the i-th block gets the pattern of its place at the target.
func (p *plan) source(mem []byte, thread int) {
	at := p.order(thread, true)
	from := at
	if p.Op == transport.Write {
		from = p.order(thread, false)
	}
	for i := range at {
		o := p.offset(thread, from[i])
		b := mem[o : o+p.Block]
		if p.Rounds {
			FillPattern(b, p.salt(), o) // where it goes differs from round to round
			continue
		}
		FillPattern(b, p.salt(), p.offset(thread, at[i]))
		if thread == 0 && slices.Contains(p.Corrupt, i) {
			b[len(b)/2] ^= 0xff
		}
	}
}

// A landing says which blocks of a thread were transferred: the first Blocks in its
// order, without those in Lost.
type landing struct {
	Blocks int   `json:"blocks"`
	Lost   []int `json:"lost,omitempty"`
	Next   int   `json:"next,omitempty"` // of a point of rounds: the next place, counted on past the last block
}

func (l *landing) lost() map[int]bool {
	set := make(map[int]bool, len(l.Lost))
	for _, i := range l.Lost {
		set[i] = true
	}
	return set
}

// A verdict is what a check has found.
type verdict struct {
	Checked int64  `json:"checked"`
	Bad     int64  `json:"bad"`
	First   string `json:"first,omitempty"` // the first bad block
}

func (v *verdict) add(o verdict) {
	v.Checked += o.Checked
	v.Bad += o.Bad
	v.First = cmp.Or(v.First, o.First)
}

// destination compares the transferred blocks of a thread: for a read in the
// initiator's memory, for a write in the target's.
func (p *plan) destination(mem []byte, thread int, l landing) (v verdict, err error) {
	at := p.order(thread, true)
	in := at
	if p.Op == transport.Read {
		in = p.order(thread, false)
	}
	if l.Blocks < 0 || l.Blocks > len(at) {
		return v, fmt.Errorf("thread %d claims %d blocks of %d", thread, l.Blocks, len(at))
	}
	lost := l.lost()
	for i := range l.Blocks {
		if lost[i] {
			continue
		}
		o := p.offset(thread, in[i])
		v.Checked++
		if wrong := PatternDiffers(mem[o:o+p.Block], p.salt(), p.offset(thread, at[i])); wrong >= 0 {
			v.Bad++
			if v.First == "" {
				v.First = fmt.Sprintf("thread %d, block %d, byte %d of %d, at %#x of the segment", thread, i, wrong, p.Block, o+int64(wrong))
			}
		}
	}
	return v, nil
}

// salt differs from point to point, so that no block is right from the one before.
func (p *plan) salt() uint64 { return PatternWord(p.Seed, uint64(p.Number)) }
