package placement

import "kvferry/kvcache"

// prefixes are the prefixes that a node is believed to have, a bounded number of
// blocks, least recently used out first.
//
// Invariant: a block is at least as recently used as every block that follows it
// in a prompt, because a prompt's blocks are touched from the last to the first.
// So a block goes before those in front of it, and of any prompt the blocks that
// are there are its first ones: how many is found by bisection.
type prefixes struct {
	limit int
	index *kvcache.Index // of slots
	slots []slot         // 0 is the end of the list: next is the least recent, prev the most
	seen  int            // turn of the policy in which the node was last a candidate
}

type slot struct {
	hash       kvcache.Hash
	prev, next int32
}

func newPrefixes(limit int) *prefixes {
	p := &prefixes{limit: limit, slots: make([]slot, 1)}
	p.index = kvcache.NewIndex(func(i uint32) kvcache.Hash { return p.slots[i].hash })
	return p
}

// match is how many of the first blocks are there.
func (p *prefixes) match(prefix []kvcache.Hash) int {
	low, high := 0, len(prefix) // prefix[:low] is there, prefix[high] is not
	for low < high {
		middle := (low + high) / 2
		if _, ok := p.index.Find(prefix[middle]); ok {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// add touches a prompt's blocks. Of a prompt longer than the limit the first
// blocks stay.
func (p *prefixes) add(prefix []kvcache.Hash) {
	for i := min(len(prefix), p.limit) - 1; i >= 0; i-- {
		at, ok := p.index.Find(prefix[i])
		s := int32(at)
		if ok {
			p.unlink(s)
		} else {
			if len(p.slots) <= p.limit {
				s = int32(len(p.slots))
				p.slots = append(p.slots, slot{})
			} else {
				s = p.slots[0].next
				p.unlink(s)
				p.index.Remove(p.slots[s].hash)
			}
			p.slots[s].hash = prefix[i]
			p.index.Add(prefix[i], uint32(s))
		}
		last := p.slots[0].prev
		p.slots[s].prev, p.slots[s].next = last, 0
		p.slots[last].next, p.slots[0].prev = s, s
	}
}

func (p *prefixes) unlink(s int32) {
	prev, next := p.slots[s].prev, p.slots[s].next
	p.slots[prev].next, p.slots[next].prev = next, prev
}
