package transport

import "kvferry/transport/selection"

// standsBy says which paths to one peer are used, the least first: those of rails from memory to memory, and
// of them the one-sided. The others are for when none of those is up. Where no process is
// beside the other, all are alike.
func (r Reach) standsBy() int {
	switch r {
	case OneSided:
		return 0
	case Beside:
		return 1
	}
	return 2
}

// active is how many paths the target's memory may be reached over, without those that stand by.
func (t *Target) active() (n int) {
	now := t.peer.e.cfg.Clock.Now()
	first := -1
	for _, p := range t.peer.paths {
		if first >= 0 && p.order >= first || !p.up.Load() || t.ranks[p.addr()] == selection.Unusable {
			continue
		}
		if resting, _ := p.trusted(now); !resting {
			first = p.order
		}
	}
	for _, p := range t.peer.paths {
		if first < 0 || p.order <= first {
			n++
		}
	}
	return n
}
