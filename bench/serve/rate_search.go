package serve

// This file finds the highest request rate, or concurrency, at which a server
// keeps an SLO: a share of the requests, the attainment, has TTFT, TPOT and E2EL within
// their bounds (DistServe, OSDI '24, calls the answer the goodput of the server). It is a
// pure machine: who owns it runs the load at the value that [RateSearch.Next] names and says
// with [RateSearch.Add] how many requests kept the SLO; it needs no clock, so a live server
// and the simulator are searched alike.
//
//	Start ──▶ double while it is kept, halve while it is missed ──▶ bisect ──▶ repeat both ends ──▶ answer
//
// A run of n requests of which k kept the SLO is a draw: its share k/n is not that of the
// server. The share's 95 % interval is Wilson's (1927), which holds for shares near 1,
// where the usual k/n ± 1.96 sqrt(...) does not. A value is sure when the attainment that is
// wanted lies outside its interval. On the way an unsure value counts by its share: its
// other side is a bisection away. When the ends of the bracket are as near as the precision
// asks, both are run again until they are sure or have had their repeats, and their runs
// count as one large one; an end that turns out to be wrong moves the bracket, and the
// search goes on. So repeats are spent near the limit only. The interval takes the
// requests for independent; those that waited in one queue are not, so the true one is
// wider.
//
// A run whose client could not keep up says nothing of the server. Its value is void, is
// tried once more, and then bounds the search from above like a miss; if the answer lies
// below it, the limit that was found is the client's.
//
// A miss below a value that was kept is no limit that one can trust: the answer is the
// highest kept value below the lowest miss, and the result says what was kept above it.

import (
	"fmt"
	"math"
	"slices"

	"kvferry/internal/config"
)

// A RateQuantity is the quantity that is searched: a request rate or a concurrency.
type RateQuantity string

// The quantities. A concurrency is a whole number.
const (
	Rate        RateQuantity = "rate"        // requests/s, of an open loop
	Concurrency RateQuantity = "concurrency" // requests in flight, of a closed loop
)

// RateQuantities lists all quantities, for flags.
var RateQuantities = []RateQuantity{Rate, Concurrency}

// unit is what a value of it is counted in, for texts.
func (q RateQuantity) unit() string {
	if q == Concurrency {
		return "requests in flight"
	}
	return "requests/s"
}

// RateConfig configures a search. A zero value of a field is its default.
type RateConfig struct {
	Quantity   RateQuantity // default Rate
	Attainment float64      // share of requests that must keep the SLO, above 0 up to 1; default 0.99
	Precision  float64      // the answer's bracket is this share of it wide at most; default 0.05
	Start      float64      // tried first; default 1
	Min        float64      // the lowest that is tried; default Start/16, and 1 of a concurrency
	Max        float64      // the highest that is tried; default 1e6
	Repeats    int          // runs more of a value near the limit; default 3, none if negative
	Runs       int          // after so many the search ends, as it stands; default 50
}

func (c RateConfig) defaults() RateConfig {
	config.Default(&c.Quantity, Rate)
	config.Default(&c.Attainment, 0.99)
	config.Default(&c.Precision, 0.05)
	config.Default(&c.Start, 1)
	config.Default(&c.Max, 1e6)
	config.Default(&c.Repeats, 3)
	config.Default(&c.Runs, 50)
	if c.Min == 0 {
		c.Min = min(c.Start, c.Max) / 16
		if c.Quantity == Concurrency {
			c.Min = 1
		}
	}
	c.Repeats = max(c.Repeats, 0)
	return c
}

// Validate lists what is wrong with it as config.Faults do.
func (c RateConfig) Validate() error {
	var f config.Faults
	c = c.defaults()
	if !slices.Contains(RateQuantities, c.Quantity) {
		f.Add("Quantity", string(c.Quantity), "use %s or %s", Rate, Concurrency)
	}
	if !(c.Attainment > 0 && c.Attainment <= 1) {
		f.Add("Attainment", c.Attainment, "use a share of the requests above 0 and up to 1, like 0.99")
	}
	config.Between(&f, "Precision", c.Precision, 0.001, 1)
	for _, v := range []struct {
		field string
		value float64
	}{{"Min", c.Min}, {"Start", c.Start}, {"Max", c.Max}} {
		switch {
		case !(v.value > 0 && v.value <= 1e9):
			f.Add(v.field, v.value, "use a number above 0")
		case c.Quantity == Concurrency && v.value != math.Trunc(v.value):
			f.Add(v.field, v.value, "use a whole number: it is requests in flight")
		}
	}
	if len(f) == 0 && !(c.Min <= c.Start && c.Start <= c.Max) {
		f.Add("Start", c.Start, "use a value from the lowest, %v, to the highest, %v", c.Min, c.Max)
	}
	if c.Runs < 1 {
		f.Add("Runs", c.Runs, "use 1 or more")
	}
	return f.Err("ratesearch.Config")
}

// A RateSearch is the state of a search. It is for one goroutine.
type RateSearch struct {
	cfg    RateConfig
	points []*RatePoint // in ascending order of Value
	runs   int
}

// NewRateSearch returns a search that has run nothing yet. Its error is that of RateConfig.Validate.
func NewRateSearch(c RateConfig) (*RateSearch, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &RateSearch{cfg: c.defaults()}, nil
}

// A RateTry is the run that a search wants next.
type RateTry struct {
	Value float64
	// Repeat is how many runs of this value there were. Each needs a load of its own, or it
	// tells nothing: use seed + Repeat. Runs of different values are best compared with the
	// same seed.
	Repeat int
}

// Next is the run to do next, or false if there is an answer. It is the same until Add.
func (s *RateSearch) Next() (RateTry, bool) {
	if s.runs >= s.cfg.Runs {
		return RateTry{}, false
	}
	v, ok := s.next()
	if !ok {
		return RateTry{}, false
	}
	t := RateTry{Value: v}
	if i, found := s.find(v); found {
		t.Repeat = s.points[i].Runs
	}
	return t, true
}

// next is Next's value.
func (s *RateSearch) next() (float64, bool) {
	c := &s.cfg
	kept, above := s.bracket()
	switch {
	case above != nil && above.void() && above.Runs < 2:
		return above.Value, true // the machine may have been disturbed once
	case kept == nil && above == nil:
		return c.Start, true
	case above == nil && kept.Value < c.Max:
		return s.round(min(kept.Value*2, c.Max)), true
	case kept == nil && above.Value > c.Min:
		return s.round(max(above.Value/2, c.Min)), true
	case kept != nil && above != nil && !s.near(kept.Value, above.Value):
		return s.middle(kept.Value, above.Value), true
	}
	for _, p := range []*RatePoint{kept, above} {
		if p != nil && !p.void() && !p.sure(c.Attainment) && p.Runs <= c.Repeats {
			return p.Value, true
		}
	}
	return 0, false
}

// bracket is the lowest value that is no good, missed or void, and the highest kept one
// below it; nil if there is none.
func (s *RateSearch) bracket() (kept, above *RatePoint) {
	for _, p := range s.points {
		if p.void() || !p.kept(s.cfg.Attainment) {
			return kept, p
		}
		kept = p
	}
	return kept, nil
}

// near reports whether two ends of a bracket are as near as they need to be, or can be.
func (s *RateSearch) near(low, high float64) bool {
	m := s.middle(low, high)
	return high <= low*(1+s.cfg.Precision)*(1+1e-9) || m <= low || m >= high
}

// middle is the value between two: their geometric mean, as the precision is relative.
func (s *RateSearch) middle(low, high float64) float64 {
	if s.cfg.Quantity == Concurrency {
		return max(math.Floor(math.Sqrt(low*high)), low+1)
	}
	m := math.Sqrt(low * high)
	if r := s.round(m); low < r && r < high {
		return r
	}
	return m
}

// round keeps two digits more than the precision has, so that a value can be read and
// given to another tool: 4 digits at 5 %. A bound is left as it is.
func (s *RateSearch) round(v float64) float64 {
	if s.cfg.Quantity == Concurrency {
		return max(math.Floor(v), 1)
	}
	if v == s.cfg.Min || v == s.cfg.Max {
		return v
	}
	digits := math.Ceil(-math.Log10(s.cfg.Precision)) + 2
	scale := math.Pow(10, digits-1-math.Floor(math.Log10(v)))
	return min(max(math.Round(v*scale)/scale, s.cfg.Min), s.cfg.Max)
}

// find is where a value is among the points, or belongs.
func (s *RateSearch) find(v float64) (int, bool) {
	return slices.BinarySearchFunc(s.points, v, func(p *RatePoint, v float64) int {
		switch {
		case p.Value < v:
			return -1
		case p.Value > v:
			return 1
		}
		return 0
	})
}

// A RateRun is the outcome of a RateTry.
type RateRun struct {
	Value    float64
	Requests int // that the run had, failed ones too
	Attained int // of these: answered, and within the SLO
	// Void says why the run tells nothing of the server, such as "the client sent 12 ms
	// late"; empty if it does.
	Void string
}

// Add takes a run into account. It need not be the one that was asked for: what is known
// of the server from before may be added too. The error names what cannot be.
func (s *RateSearch) Add(r RateRun) error {
	switch {
	case !(r.Value > 0 && r.Value <= 1e9):
		return fmt.Errorf("a run at %v %s", r.Value, s.cfg.Quantity.unit())
	case s.cfg.Quantity == Concurrency && r.Value != math.Trunc(r.Value):
		return fmt.Errorf("a run with %v %s: it is a whole number", r.Value, s.cfg.Quantity.unit())
	case r.Void == "" && r.Requests < 1:
		return fmt.Errorf("the run at %v %s had no requests", r.Value, s.cfg.Quantity.unit())
	case r.Attained < 0 || r.Attained > max(r.Requests, 0):
		return fmt.Errorf("the run at %v %s: %d of %d requests kept the SLO", r.Value, s.cfg.Quantity.unit(), r.Attained, r.Requests)
	}
	i, found := s.find(r.Value)
	if !found {
		s.points = slices.Insert(s.points, i, &RatePoint{Value: r.Value})
	}
	p := s.points[i]
	p.Runs++
	s.runs++
	if r.Void != "" {
		p.VoidRuns, p.Why = p.VoidRuns+1, r.Void
		return nil
	}
	p.Requests += r.Requests
	p.Attained += r.Attained
	return nil
}
