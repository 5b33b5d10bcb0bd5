package calibration

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/bench/serve"
)

// A Series is the points that a server is asked, several times each. The first round warms up,
// finds how far each kind of point can go on this server, and is not counted; so what is compiled
// or tuned on first use is not measured.
type Series struct {
	Target   serve.Target // open
	Vocab    int          // token ids are below it
	Longest, // tokens of a request, prompt and output
	Batch, // requests at once
	KV int // tokens that the KV pool holds
	Rounds   int           // that count
	Patience time.Duration // a point that takes longer is the last of its kind
	Pause    time.Duration // before each point: the GPU cools, and the server ends what it has begun
	Seed     uint64        // of prompts, and of the order of points
	// OnPoint is told of each point that is over: how many are, of how many, and how long the
	// others will take; both are 0 in the first round.
	OnPoint func(p Point, over, of int, left time.Duration)
}

// Measured is what a series came to.
type Measured struct {
	Points []Point
	Values [][][]float64 // of each point in each round, by Point.Measures
}

// Run asks the series.
func (s *Series) Run(ctx context.Context) (*Measured, error) {
	rng := rand.New(rand.NewPCG(s.Seed, 1))
	m := &Measured{}
	var round time.Duration // takes so long
	ask := func(p Point) ([]float64, time.Duration, error) {
		began := time.Now()
		values, took, err := s.ask(ctx, p, rng)
		round += time.Since(began)
		return values, took, err
	}
	// walk asks points that grow, and returns the first measure of each.
	walk := func(points []Point) (first []float64, err error) {
		for _, p := range points {
			if p.tokens() > s.KV {
				break
			}
			values, took, err := ask(p)
			if err != nil {
				return nil, err
			}
			m.Points, first = append(m.Points, p), append(first, values[0])
			s.OnPoint(p, 0, 0, 0)
			if took > s.Patience {
				break
			}
		}
		return first, nil
	}
	ttft, err := walk(s.prompts())
	if err != nil {
		return nil, err
	}
	known := m.Points
	itl, err := walk([]Point{{Kind: Decodes, Batch: 1, Prompt: short, Output: decoded}})
	if err != nil {
		return nil, err
	}
	for _, group := range s.others(known, ttft, itl[0]) {
		if _, err := walk(group); err != nil {
			return nil, err
		}
	}
	m.Values = make([][][]float64, len(m.Points))
	over, each := 0, round/time.Duration(len(m.Points))
	for range s.Rounds {
		for _, i := range rng.Perm(len(m.Points)) {
			values, _, err := ask(m.Points[i])
			if err != nil {
				return nil, err
			}
			m.Values[i] = append(m.Values[i], values)
			over++
			of := s.Rounds * len(m.Points)
			s.OnPoint(m.Points[i], over, of, each*time.Duration(of-over))
		}
	}
	return m, nil
}

// tries is how often a point is asked whose tokens come together.
const tries = 3

// ask measures a point once.
func (s *Series) ask(ctx context.Context, p Point, rng *rand.Rand) (values []float64, took time.Duration, err error) {
	if s.Pause > 0 {
		pause := time.NewTimer(s.Pause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, 0, context.Cause(ctx)
		}
	}
	for range tries {
		values, took, err = p.ask(ctx, s.Target, p.requests(rng, s.Vocab))
		if !errors.Is(err, errChunks) {
			break
		}
	}
	return values, took, err
}

// prompts are the first points: from few tokens to as many as a prompt may have.
func (s *Series) prompts() []Point {
	all := []Point{{Kind: Prompts, Batch: repeats, Prompt: 8}}
	for n := 32; n < s.Longest; n *= 2 {
		all = append(all, Point{Kind: Prompts, Batch: repeats, Prompt: n})
	}
	return all
}

// Times that the lengths of prompts are chosen by, in milliseconds: one behind which others wait,
// and those of which several are computed in a point.
const (
	holding = 100
	several = 500
)

// others are the other points, in groups that grow: prompts as long as known took ttft, and one
// sequence decodes a token in itl.
func (s *Series) others(known []Point, ttft []float64, itl float64) [][]Point {
	// atLeast is the shortest prompt that takes so long, or the longest one.
	atLeast := func(ms float64) int {
		i := slices.IndexFunc(ttft, func(t float64) bool { return t >= ms })
		if i < 0 {
			i = len(ttft) - 1
		}
		return i
	}
	long, some, hold := known[len(ttft)-1].Prompt, known[atLeast(several)].Prompt, atLeast(holding)
	var decodes, contexts, beside, burst, crowd []Point
	for b := 2; b <= min(s.Batch, 64); b *= 2 {
		// Those that come first go on until the last is there.
		decodes = append(decodes, Point{Kind: Decodes, Batch: b, Prompt: short, Output: min(decoded+int(float64(b)*ttft[0]/itl/2), s.Longest-short)})
	}
	for _, c := range [][2]int{{1, some}, {1, long}, {4, some / 2}, {4, some}} {
		if b, n := c[0], min(c[1], s.Longest-decoded); n > 8*short && b <= s.Batch {
			contexts = append(contexts, Point{Kind: Decodes, Batch: b, Prompt: n, Output: decoded})
		}
	}
	for _, n := range []int{short, some / 4, some} {
		// Between two of the prompts it decodes as long as a request takes to come.
		output := 4*trigger + repeats*(2+n/1000+int(2*ttft[0]/itl))
		if n >= short && short+output < s.Longest {
			beside = append(beside, Point{Kind: Beside, Batch: repeats, Prompt: n, Output: output})
		}
	}
	wait := time.Duration(0.4 * ttft[hold] * float64(time.Millisecond)).Round(time.Millisecond)
	for _, b := range []int{4, 16, 48} {
		if b < s.Batch {
			burst = append(burst, Point{Kind: Burst, Batch: b, Prompt: short, Long: known[hold].Prompt, Delay: wait})
		}
	}
	for _, every := range []time.Duration{7, 5, 3, 2, 1} {
		crowd = append(crowd, Point{Kind: Crowd, Batch: min(32, s.Batch), Prompt: short, Delay: every * time.Millisecond})
	}
	return [][]Point{decodes, contexts, beside, burst, crowd}
}
