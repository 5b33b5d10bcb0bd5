package transport

import "slices"

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

// standby says that a path that is used before this one is up, and does not rest.
func (p *path) standby() bool {
	return slices.ContainsFunc(p.peer.paths, func(q *path) bool {
		if q.order >= p.order || !q.up.Load() {
			return false
		}
		resting, _ := q.trusted(p.e.cfg.Clock.Now())
		return !resting
	})
}

// active is how many paths do not stand by.
func (g *peer) active() (n int) {
	for _, p := range g.paths {
		if !p.standby() {
			n++
		}
	}
	return n
}
