package load

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"kvferry/internal/config"
)

// Arrivals of other tools: values of Spec.ArrivalMode.
const (
	// ArrivalNormalized is vllm bench serve's: gaps of a gamma distribution, the first
	// request after its own gap, and all times scaled so that the last of N requests is at
	// N/rate exactly.
	ArrivalNormalized = "normalized"
	// ArrivalLegacy is that of vLLM's benchmark_serving.py in 2024, and of
	// sglang.bench_serving to this day: the first request at 0, then a gap after each, the
	// last one too, before the client waits for the answers (Load.End).
	ArrivalLegacy = "legacy"
)

// A RampUp is a rate that grows from the first request to the last: vLLM's --ramp-up-strategy.
type RampUp struct {
	Strategy   string // RampLinear or RampExponential; empty for none
	Start, End float64
}

// Strategies of a RampUp, by how far the request is from the first (0) to the last (1).
const (
	RampLinear      = "linear"
	RampExponential = "exponential"
)

// check notes what is wrong with the fields that every load reads, or that Times brings.
func (s Spec) check(k Kind, bad *config.Faults) {
	bad.Refuse(s.InFlight < 0, "InFlight", s.InFlight, "use 1 or more, 0 for any number")
	bad.Refuse(s.Duration < 0, "Duration", s.Duration, "use more than 0, 0 for no limit")
	switch s.Compat {
	case "", CompatVLLM, CompatSGLang:
	default:
		bad.Add("Compat", s.Compat, "use %s or %s, nothing for our own draws", CompatVLLM, CompatSGLang)
	}
	if s.paced(k) {
		s.checkArrivals(bad)
	}
	switch s.EOS {
	case "", IgnoreEOS, HeedEOS:
	default:
		bad.Add("EOS", string(s.EOS), "use %s or %s, nothing for what the kind has", IgnoreEOS, HeedEOS)
	}
	s.Adapters.check(s, bad)
	s.Workers.check(bad)
}

// paced reports whether the Spec's arrivals come on the requests.
func (s Spec) paced(k Kind) bool { return k.Times == Arriving || k.Times == Recorded && s.Untimed }

// checkArrivals notes what is wrong with what s.arrivals reads.
func (s Spec) checkArrivals(bad *config.Faults) {
	mode := s.arrivalMode()
	ramp := s.RampUp.Strategy != ""
	if !ramp && (s.RampUp.Start != 0 || s.RampUp.End != 0) {
		bad.Add("RampUp.Strategy", nil, "say how the rate grows from one to the other: %s or %s", RampLinear, RampExponential)
	}
	switch {
	case s.Functions.File != "":
		s.checkFunctions(bad)
		return
	case ramp:
		s.checkRamp(bad)
		s.checkBurstiness(bad)
	default:
		checkRate(s, bad)
	}
	switch s.ArrivalMode {
	case "", ArrivalNormalized, ArrivalLegacy:
	default:
		bad.Add("ArrivalMode", s.ArrivalMode, "use %s or %s", ArrivalNormalized, ArrivalLegacy)
	}
	if (ramp || mode != "") && s.Seed > math.MaxUint32 {
		config.Between(bad, "Seed", s.Seed, 0, math.MaxUint32) // as numpy has them
	}
	if s.Requests == 0 && (ramp || mode == ArrivalNormalized) && s.Duration > 0 && s.File == "" {
		bad.Add("Requests", s.Requests, "use 1 or more: these arrivals depend on how many there are, those of --compat none do not")
	}
	if s.Compat == CompatSGLang && s.ArrivalMode == "" && !ramp && s.Burstiness != 1 && !math.IsInf(s.Rate, 1) {
		bad.Add("Burstiness", s.Burstiness, "use 1, or --arrival-mode normalized: SGLang's arrivals are Poisson")
	}
}

// checkRate checks the arrivals of a rate.
func checkRate(s Spec, bad *config.Faults) {
	bad.Refuse(!(s.Rate > 0), "Rate", s.Rate, "use more than 0 requests a second, inf for all at once")
	if !math.IsInf(s.Rate, 1) {
		s.checkBurstiness(bad)
	}
}

// checkBurstiness checks the shape of the gaps.
func (s Spec) checkBurstiness(bad *config.Faults) {
	// Below 0.001 nearly every gap is too short for a float64, and one is for ever.
	constant := math.IsInf(s.Burstiness, 1)
	if !(s.Burstiness >= 1e-3 && s.Burstiness <= 1e6) && !constant {
		bad.Add("Burstiness", s.Burstiness, "use 0.001 to 1e6, or inf for equal gaps; 1 is Poisson")
	}
}

// checkRamp checks a rate that grows. vLLM takes a start of 0 and then stops, because the first
// request's rate is 0; it is refused here before anything is sent.
func (s Spec) checkRamp(bad *config.Faults) {
	r := s.RampUp
	switch r.Strategy {
	case RampLinear, RampExponential:
	default:
		bad.Add("RampUp.Strategy", r.Strategy, "use %s or %s", RampLinear, RampExponential)
	}
	// At 0 the first gap would have no end.
	bad.Refuse(!(r.Start > 0) || math.IsInf(r.Start, 1), "RampUp.Start", r.Start, "use more than 0 requests a second")
	bad.Refuse(!(r.End >= r.Start) || math.IsInf(r.End, 1), "RampUp.End", r.End, "use as many requests a second as at the start, or more")
	bad.Refuse(s.Rate != 0 && !math.IsInf(s.Rate, 1), "Rate", s.Rate, "leave it out, or --ramp-up-strategy: the rate grows from one to another")
}

// arrivalMode is whose arrivals they are; empty for ours.
func (s Spec) arrivalMode() string {
	switch {
	case s.ArrivalMode != "":
		return s.ArrivalMode
	case s.Compat == CompatVLLM:
		return ArrivalNormalized
	case s.Compat == CompatSGLang:
		return ArrivalLegacy
	}
	return ""
}

// arrange gives the requests of a load what the kind does not: times, adapters, workers and
// an end.
func (s Spec) arrange(k Kind, l Load) (Load, error) {
	if s.InFlight > 0 {
		l.InFlight = s.InFlight
	}
	if s.File != "" {
		r, ok, err := l.Next()
		if !ok {
			_ = l.Close()
			return Load{}, cmp.Or(err, fmt.Errorf("%q: it has no requests", s.File))
		}
		l.Source = &peeked{Source: l.Source, first: &r}
	}
	// A kind that draws nothing of a tool's leaves the generators as the seed made them: so do
	// the tools' data sets that read a file and choose nothing.
	if l.Generators == nil {
		g := newGenerators(s.Seed)
		l.Generators = &g
	}
	if s.paced(k) {
		paced, err := s.pace(k, l)
		if err != nil {
			_ = l.Close()
			return Load{}, err
		}
		l = paced
	}
	if len(s.Adapters.Names) > 0 && s.Functions.File == "" {
		l.Source = s.Adapters.assign(s, l.Source, l.Generators)
	}
	if s.EOS != "" {
		l.Source = edit(l.Source, func(r *Request) (bool, error) { r.MayStop = s.EOS == HeedEOS; return true, nil })
	}
	if s.IDPrefix != "" {
		n := 0
		l.Source = edit(l.Source, func(r *Request) (bool, error) { r.ID = s.IDPrefix + strconv.Itoa(n); n++; return true, nil })
	}
	if s.Workers.Count > 1 {
		l.Source = s.Workers.assign(s, l.Source)
	}
	if s.Duration > 0 {
		l.Source, l.Until = until(l.Source, s.Duration), s.Duration
		l.End = min(l.End, s.Duration)
	}
	return l, nil
}

// pace puts the Spec's arrivals on the requests.
func (s Spec) pace(k Kind, l Load) (Load, error) {
	if s.Functions.File != "" {
		return s.replay(k, l)
	}
	a, err := s.arrivals(k, &l)
	if err != nil {
		return Load{}, err
	}
	l.Source = Paced(l.Source, a)
	return l, nil
}

// arrivals are when the requests of a load come, or the conversations; it sets the load's
// End.
func (s Spec) arrivals(k Kind, l *Load) (Arrivals, error) {
	mode := s.arrivalMode()
	if s.RampUp.Strategy == "" && mode == "" {
		rng := l.rng
		if rng == nil {
			rng = rand.New(rand.NewPCG(s.Seed, 0x6b76666172726976))
		}
		return &gammaGaps{rate: s.Rate, burstiness: s.Burstiness, rng: rng}, nil
	}
	n, err := s.count(k, *l)
	if err != nil {
		return nil, err
	}
	gaps := gaps{from: l.Generators.Numpy, rate: s.Rate, burstiness: s.Burstiness}
	switch {
	case s.RampUp.Strategy != "":
		return newRamp(s.RampUp, n, gaps), nil
	case mode == ArrivalNormalized:
		return newNormalized(n, gaps), nil
	}
	if n > 0 { // SGLang draws an adapter from the same generator between two gaps
		l.End = legacyEnd(n, gaps, s.Adapters.chooser(s), l.Generators.clone())
	}
	return &legacy{gaps: gaps}, nil
}

// count is how many requests a load has; where it does not say so, a second stream of the
// same is taken to its end. 0 is a load without one.
func (s Spec) count(k Kind, l Load) (n int, err error) {
	if l.Count > 0 || s.Requests == 0 && s.File == "" {
		return l.Count, nil
	}
	again, err := k.Open(s)
	if err != nil {
		return 0, err
	}
	defer again.Close()
	for {
		r, ok, err := again.Next()
		if !ok || err != nil {
			return n, err
		}
		if len(r.After) == 0 {
			n++
		}
	}
}

// until ends a source with the requests that are due at a time. What follows others has no
// time yet: Load.Until is for it.
func until(s Source, end time.Duration) Source {
	return edit(s, func(r *Request) (bool, error) { return len(r.After) > 0 || r.At < end, nil })
}

// peeked is a source whose first request has been taken, to see whether there is one.
type peeked struct {
	Source
	first *Request // nil when it has been asked for
}

func (p *peeked) Next() (Request, bool, error) {
	if p.first == nil {
		return p.Source.Next()
	}
	r := *p.first
	p.first = nil
	return r, true, nil
}

// Close closes the source.
func (p *peeked) Close() error { return Close(p.Source) }
