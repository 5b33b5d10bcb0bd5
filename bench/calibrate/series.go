package calibrate

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/serve"
	"kvferry/sim"
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
	// AfterRound is called when a round is over: the first, which is not counted, is 0.
	AfterRound func(round int) error
	// OnPoint is told of each point that is over: how many are, of how many, and how long the
	// others will take; both are 0 in the first round.
	OnPoint func(p Point, over, of int, left time.Duration)
}

// Measured is what a series came to.
type Measured struct {
	Points []Point
	Values [][][][]float64 // of each point in each round, by Point.Measures: the times that it is the mean of
	Ways   [][][]float64   // of each point of Prompts, in each round in which the server told: see ways
	Sent   [][][]float64   // of each point that is not even, in each round: when its requests were sent, in milliseconds after the first
}

// rpc is what the way to the engine takes, there or back: half of what both do, as typical has it of TTFT.
func (m *Measured) rpc() time.Duration {
	var all []float64
	for _, rounds := range m.Ways {
		for k := range repeats * min(len(rounds), 1) {
			var way []float64
			for _, ways := range rounds {
				way = append(way, ways[k])
			}
			all = append(all, quartile(way))
		}
	}
	if len(all) == 0 {
		return sim.DefaultRPC
	}
	return max(milliseconds(mean(all)/2), 0)
}

// accounts reports whether the server says how long it had a request.
func (m *Measured) accounts() bool { return len(slices.Concat(m.Ways...)) > 0 }

// told are the values of a point in all rounds, of Prompts without their ways and with what the simulator
// has in their place: so what disturbs these is in no cost.
func (m *Measured) told(i int, rpc time.Duration) [][][]float64 {
	values := m.Values[i]
	if len(m.Ways[i]) < len(values) {
		return values
	}
	var all [][][]float64
	for r, ways := range m.Ways[i] {
		var without []float64
		for k, ttft := range slices.Concat(values[r]...) {
			without = append(without, ttft-ways[k]+2e3*rpc.Seconds())
		}
		all = append(all, [][]float64{without[:1], without[1:]})
	}
	return all
}

// Run asks the series.
func (s *Series) Run(ctx context.Context) (*Measured, error) {
	rng := rand.New(rand.NewPCG(s.Seed, 1))
	m := &Measured{}
	var round time.Duration // takes so long
	ask := func(p Point) ([]*client.Record, time.Duration, error) {
		began := time.Now()
		records, took, err := s.ask(ctx, p, rng)
		round += time.Since(began)
		return records, took, err
	}
	// walk asks points that grow, and returns the first measure of each.
	walk := func(points []Point) (first []float64, err error) {
		for _, p := range points {
			if p.tokens() > s.KV {
				break
			}
			records, took, err := ask(p)
			if err != nil {
				return nil, err
			}
			if p.Kind == Relay && !relayed(records) {
				continue
			}
			m.Points, first = append(m.Points, p), append(first, mean(p.measure(records)[0]))
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
	m.Values, m.Ways, m.Sent = make([][][][]float64, len(m.Points)), make([][][]float64, len(m.Points)), make([][][]float64, len(m.Points))
	over, each := 0, round/time.Duration(len(m.Points))
	if err := s.AfterRound(0); err != nil {
		return nil, err
	}
	for round := range s.Rounds {
		for _, i := range rng.Perm(len(m.Points)) {
			p := m.Points[i]
			records, _, err := ask(p)
			if err != nil {
				return nil, err
			}
			m.Values[i] = append(m.Values[i], p.measure(records))
			if ways := ways(records); p.Kind == Prompts && ways != nil {
				m.Ways[i] = append(m.Ways[i], ways)
			}
			if !p.even() {
				m.Sent[i] = append(m.Sent[i], sent(records))
			}
			over++
			of := s.Rounds * len(m.Points)
			s.OnPoint(p, over, of, each*time.Duration(of-over))
		}
		if err := s.AfterRound(round + 1); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// tries is how often a point is asked whose tokens come together.
const tries = 10

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// ask asks a point once.
func (s *Series) ask(ctx context.Context, p Point, rng *rand.Rand) (records []*client.Record, took time.Duration, err error) {
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
		records, took, err = p.ask(ctx, s.Target, p.requests(rng, s.Vocab))
		if !errors.Is(err, errChunks) {
			break
		}
	}
	return records, took, err
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

// Two prompts at a time have so many lengths, from one on whose TTFT is so many times the shortest one's:
// then what surrounds a request takes less than a prompt is computed.
const (
	relays  = 3
	passing = 3
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
	var relay, decodes, contexts, beside, burst, crowd []Point
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
		batch := repeats
		if n == short {
			batch = joining
		}
		// Between two of the prompts it decodes as long as a request takes to come.
		output := 4*trigger + batch*(2+n/1000+int((2*ttft[0]+1e3*rest.Seconds())/itl))
		if n >= short && short+output < s.Longest {
			beside = append(beside, Point{Kind: Beside, Batch: batch, Prompt: n, Output: output})
		}
	}
	for i := atLeast(passing * ttft[0]); i < len(ttft) && len(relay) < relays && ttft[i] >= passing*ttft[0]; i++ {
		relay = append(relay, Point{Kind: Relay, Batch: turns, Prompt: known[i].Prompt, Delay: milliseconds(ttft[i] / 2)})
	}
	wait := milliseconds(0.4 * ttft[hold]).Round(time.Millisecond)
	for _, b := range []int{4, 16, 48} {
		if b < s.Batch {
			burst = append(burst, Point{Kind: Burst, Batch: b, Prompt: short, Long: known[hold].Prompt, Delay: wait})
		}
	}
	for _, every := range []time.Duration{7, 5, 3, 2, 1} {
		crowd = append(crowd, Point{Kind: Crowd, Batch: min(32, s.Batch), Prompt: short, Delay: every * time.Millisecond})
	}
	return [][]Point{relay, decodes, contexts, beside, burst, crowd}
}
