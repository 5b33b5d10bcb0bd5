package transporttest

import (
	"sync/atomic"
	"time"

	"kvferry/transport"
)

// A gauged endpoint knows more of its path than completions show, as TCP does: what it is poked
// for is answered at once, unless the rail is a black hole.
type gauged struct {
	*endpoint
	answers, owed atomic.Uint64
}

// Poke implements transport.Gauge.
func (g *gauged) Poke() {
	if g.rail.isHole() {
		g.owed.Add(1)
		return
	}
	g.answers.Add(1)
}

// Gauge implements transport.Gauge.
func (g *gauged) Gauge() transport.Flow {
	return transport.Flow{Moved: g.answers.Load(), Asked: g.owed.Load() > 0, Unheard: time.Hour}
}
