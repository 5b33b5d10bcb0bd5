package load

import (
	"time"

	"kvferry/internal/config"
)

// burstSize is how many requests come at once.
const burstSize = 8

// burstsKind is a load that comes in bursts: 8 requests at once, as often as gives the
// rate. What they ask is random.
var burstsKind = Kind{
	Name:  "bursts",
	About: "random requests, 8 at once",
	Reads: []string{"Rate", "InputLen", "OutputLen", "RangeRatio", "PrefixLen", "Seed"},
	Check: func(s Spec, bad *config.Faults) {
		randomKind.Check(s, bad)
		checkRate(s, bad)
	},
	Open: func(s Spec) (Load, error) {
		return Load{Source: Paced(newDraws(s), &bursts{rate: s.Rate})}, nil
	},
}

// bursts are the times.
type bursts struct {
	rate float64 // requests a second, on average
	n    int     // requests so far
}

func (b *bursts) Next() (time.Duration, error) {
	first := b.n / burstSize * burstSize // of its burst
	b.n++
	return due(b.n, float64(first)/b.rate)
}
