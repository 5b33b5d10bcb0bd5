package load

import (
	"slices"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/knob"
)

// burstOptions are the options of bursts.
type burstOptions struct{ Size int }

// burstsKind is a load that comes in bursts: --burst-size requests at once, as often as gives the
// rate. What they ask is random.
var burstsKind = Kind{
	Name:  "bursts",
	About: "random requests, several at once",
	Knobs: slices.Concat(Knobs{
		{Name: "burst-size", Group: AskedGroup, Fields: []string{"Bursts.Size"}, Default: "8", Positive: true, Value: knob.Int(func(s *Spec) *int { return &OptionsOf[burstOptions](s).Size }), Help: "requests that come at once"},
		seedKnob,
	}, randomKnobs, arrivalKnobs[:1]),
	Check: func(s Spec, bad *config.Faults) {
		checkDraws(s, bad)
		checkRate(s, bad)
		config.Between(bad, "Bursts.Size", OptionsOf[burstOptions](&s).Size, 1, 1<<20)
	},
	Open: func(s Spec) (Load, error) {
		return Load{Source: Paced(newDraws(s), &bursts{rate: s.Rate, size: OptionsOf[burstOptions](&s).Size})}, nil
	},
}

// bursts are the times.
type bursts struct {
	rate float64 // requests a second, on average
	size int     // requests at once
	n    int     // requests so far
}

func (b *bursts) Next() (time.Duration, error) {
	first := b.n / b.size * b.size // of its burst
	b.n++
	return due(b.n, float64(first)/b.rate)
}
