package calibrate

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/bench/serve"
	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/load"
)

// blank is the profile without its costs.
func blank(base *engine.Profile) (*engine.Profile, error) {
	p := *base
	p.Costs = engine.Costs{Experts: base.Costs.Experts}
	p.Costs.Experts.ReadMS = 0
	p.Disagg = engine.DisaggCosts{}
	return &p, p.Validate()
}

// fitting is a fit to some of the points.
type fitting struct {
	base   *engine.Profile
	points []Point
	rpc    time.Duration // see Measured.rpc
	asked  []load.List   // the points' requests: tokens cost the same whatever they are
	sights []sight
	share  float64 // see scale
}

func newFitting(base *engine.Profile, m *Measured, which func(Point) bool) *fitting {
	f := &fitting{base: base, share: most, rpc: m.rpc()}
	for i, p := range m.Points {
		if !which(p) {
			continue
		}
		for k := range p.Measures() {
			s := sight{even: p.even()}
			s.value, s.off = p.typical(m.told(i, f.rpc), k, m.accounts())
			f.sights = append(f.sights, s)
		}
		f.points = append(f.points, p)
		asked := p.requests(rand.New(rand.NewPCG(1, uint64(i))), base.Vocab)
		if !p.even() {
			asWereSent(asked, m.Sent[i])
		}
		f.asked = append(f.asked, asked)
	}
	return f
}

// asWereSent has requests come when they were sent, as the median of the rounds has it, and not when they
// were due: where a measure jumps, what the client's timers add decides which requests share a step.
func asWereSent(list load.List, rounds [][]float64) {
	at, last := make([]float64, len(rounds)), time.Duration(0)
	for i := range list {
		for r, sent := range rounds {
			at[r] = sent[i]
		}
		last = max(last, milliseconds(stats.Median(at)))
		list[i].At, list[i].After, list[i].Delay = last, nil, 0
	}
}

// typical is a measure of a point in several rounds: the mean of times that are each the median of its
// rounds, so that neither a request that was late counts nor a round that was. Of TTFT it is the lower quartile,
// where the server's account leaves to the machine what is late: what disturbs makes TTFT longer. Where
// measures jump, each round is taken as a whole: which requests share a step is another in each, and the
// earliest of each request came together in none. off is about how far that is from the same of many
// rounds, by what is between quartile and median, as of a normal distribution.
func (p Point) typical(rounds [][][]float64, measure int, accounts bool) (value, off float64) {
	of := stats.Median
	if accounts && (p.Kind == Prompts || !p.even()) {
		of = quartile
	}
	times, round := make([]float64, len(rounds[0][measure])), make([]float64, len(rounds))
	for i := range times {
		for r, values := range rounds {
			round[r] = values[measure][i]
		}
		times[i] = of(round)
	}
	for r, values := range rounds {
		round[r] = mean(values[measure])
	}
	off = 2 * (stats.Median(round) - quartile(round)) / math.Sqrt(float64(len(rounds)))
	if !p.even() {
		return of(round), off
	}
	return mean(times), off
}

func quartile(values []float64) float64 {
	return stats.Percentile(slices.Sorted(slices.Values(values)), 25)
}

// A state is costs with their values, and what a model with them gives.
type state struct {
	costs []cost
	x     []float64
	got   []float64   // by measure
	slope [][]float64 // of each measure, by each cost
	loss  float64
	whole float64 // with all measures in it: see look
}

// profile is that of a state.
func (f *fitting) profile(s *state) (*engine.Profile, error) {
	values := map[string]float64{}
	for i, c := range s.costs {
		values["costs."+c.field] = s.x[i]
	}
	return WithFields(f.base, values)
}

// Model is a server with that profile, in virtual time, as kvferry sim has it. rpc is how long
// a request is on its way to its engine, and a token on its way back.
func Model(p *engine.Profile, rpc time.Duration) serve.Target {
	return serve.Model(cluster.Spec{Costs: p, Nondisagg: 1, RPC: config.OrNone(rpc)})
}

// predict computes the measures of a state, several points at once.
func (f *fitting) predict(ctx context.Context, s *state) ([]float64, error) {
	p, err := f.profile(s)
	if err != nil {
		return nil, err
	}
	values, errs := make([][]float64, len(f.points)), make([]error, len(f.points))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(f.points)); i = next.Add(1) - 1 {
				records, _, err := f.points[i].ask(ctx, Model(p, f.rpc), f.asked[i])
				if errs[i] = err; err != nil {
					continue
				}
				for _, times := range f.points[i].measure(records) {
					values[i] = append(values[i], mean(times))
				}
			}
		})
	}
	workers.Wait()
	return slices.Concat(values...), errors.Join(errs...)
}

// weigh returns the weight of a sight in the least squares, and its loss: see [loss].
func (f *fitting) weigh(got float64, o sight) (weight, loss float64) {
	s := f.scale(&o)
	h := math.Hypot(1, (got-o.value)/s)
	return 1 / (s * s * h), 2 * (h - 1)
}

// look fills in what a state's model gives, and its loss. Of measures that are not even the quarter
// that is worst does not count: a request more or less in a step makes some of them another.
func (f *fitting) look(ctx context.Context, s *state) (err error) {
	if s.got, err = f.predict(ctx, s); err != nil {
		return err
	}
	s.loss = 0
	var jumpy []float64
	for i, o := range f.sights {
		_, loss := f.weigh(s.got[i], o)
		if o.even {
			s.loss += loss
		} else {
			jumpy = append(jumpy, loss)
		}
	}
	slices.Sort(jumpy)
	s.whole = s.loss
	for i, loss := range jumpy {
		if s.whole += loss; i < len(jumpy)-len(jumpy)/4 {
			s.loss += loss
		}
	}
	return nil
}

// differentiate fills in the slopes.
func (f *fitting) differentiate(ctx context.Context, s *state) error {
	s.slope = make([][]float64, len(s.got))
	for i, c := range s.costs {
		next := state{costs: s.costs, x: slices.Clone(s.x)}
		step := max(c.step, 0.01*s.x[i])
		next.x[i] += step
		got, err := f.predict(ctx, &next)
		if err != nil {
			return err
		}
		for k := range got {
			s.slope[k] = append(s.slope[k], (got[k]-s.got[k])/step)
		}
	}
	return nil
}

// linear is the least squares around a state, with measures that are more by off, if that is not nil.
func (f *fitting) linear(s *state, off []float64) *normal {
	n := newNormal(len(s.x))
	for k, o := range f.sights {
		y := o.value - s.got[k]
		if off != nil {
			y += off[k]
		}
		for i, slope := range s.slope[k] {
			y += slope * s.x[i]
		}
		w, _ := f.weigh(s.got[k], o)
		n.add(s.slope[k], y, w)
	}
	return n
}

// solved is where the least squares have their least within what a profile may have. What they say
// nothing of stays.
func (s *state) solved(n *normal) []float64 {
	x := n.solve()
	for i, c := range s.costs {
		if n.a[i][i] == 0 {
			x[i] = s.x[i]
		}
		x[i] = min(max(x[i], c.least), cmp.Or(c.most, 1e5))
	}
	return x
}

// search goes from a state to the least loss near it: Gauss and Newton's steps, held back as
// Levenberg and Marquardt do where they lead up. A model's times jump where one event comes before
// another, so the last steps may find nothing.
func (f *fitting) search(ctx context.Context, s state) (state, error) {
	if err := f.look(ctx, &s); err != nil {
		return s, err
	}
	hold := 1e-6
	for range 40 {
		if err := f.differentiate(ctx, &s); err != nil {
			return s, err
		}
		n := f.linear(&s, nil)
		better := false
		for ; hold < 100 && !better; hold *= 10 {
			next := state{costs: s.costs, x: s.solved(n.damped(s.x, hold))}
			if err := f.look(ctx, &next); err != nil {
				return s, err
			}
			if next.loss < s.loss*(1-1e-4)-1e-6 {
				next.slope, s, better = s.slope, next, true
			}
		}
		if !better {
			return s, nil
		}
		hold = max(hold/100, 1e-6)
	}
	return s, f.differentiate(ctx, &s)
}

// evenly searches the even costs by the measures that change evenly, from tokens that leave at once
// and from such as leave late, and leaves out what is not needed.
func (f *fitting) evenly(ctx context.Context, all []cost) (best state, err error) {
	for _, delay := range []float64{0, 1} {
		s, err := f.search(ctx, state{costs: all, x: f.guess(all, delay)})
		if err != nil {
			return s, err
		}
		if best.x == nil || s.loss < best.loss {
			best = s
		}
	}
	if best, err = f.sharpen(ctx, best); err != nil {
		return best, err
	}
	return f.simplify(ctx, best)
}

// sharpen searches once more, with measures that may be off by what they are off as a rule: of a
// server that a model is right for, each says more than if all might be off by the most.
func (f *fitting) sharpen(ctx context.Context, s state) (state, error) {
	off := make([]float64, len(f.sights))
	for i, o := range f.sights {
		off[i] = math.Abs(s.got[i]/o.value - 1)
	}
	f.share = min(max(2*stats.Median(off), least), most)
	return f.search(ctx, s)
}

// guess is where a search begins: delay is how late tokens leave, by steps of a decode.
func (f *fitting) guess(all []cost, delay float64) []float64 {
	values, at := map[string]float64{}, 0
	least := 0.0
	for _, p := range f.points {
		switch v := f.sights[at].value; {
		case p.Kind == Prompts && least == 0:
			least = v
			for _, name := range []string{"request_ms", "prefill_step_ms", "prefill_floor_ms"} {
				values[name] = v / 3
			}
		case p.Kind == Prompts:
			values["prefill_token_ms"] = max(v-least, 0.01*v) / float64(p.Prompt)
		case p.Kind == Decodes && p.Batch == 1 && values["decode_step_ms"] == 0:
			values["decode_step_ms"], values["output_delay_ms"] = v, delay*v
		}
		at += len(p.Measures())
	}
	x := make([]float64, len(all))
	for i, c := range all {
		var ok bool
		if x[i], ok = values[c.field]; !ok {
			x[i] = c.start
		}
	}
	return x
}

// floor is the loss of a measure that is as well known as anything can be: 5 % of its scale, and where
// measures jump 10 %, as what is left of disturbances there can be met by any cost.
func (f *fitting) floor() float64 {
	known := 0.1
	for _, o := range f.sights {
		if o.even {
			known = 0.05
		}
	}
	return 2 * (math.Hypot(1, known) - 1)
}

// plain is the loss of a measure that is off by its scale: what costs make up for below that may be left of
// disturbances.
const plain = 1

// worth reports whether so much less loss is worth more costs: Schwarz's criterion, where a measure that is
// met has a loss of floor.
func (f *fitting) worth(with, without float64, costs int, floor float64) bool {
	n := float64(len(f.sights))
	return n*math.Log((without+n*floor)/(with+n*floor)) > float64(costs)*(math.Log(n)+2)
}

// simplify leaves costs out that the sights do not need, the least needed first.
func (f *fitting) simplify(ctx context.Context, s state) (state, error) {
	for tried := map[string]bool{}; ; {
		least, leave := math.Inf(1), ""
		for _, c := range s.costs {
			if c.needed || c.with != "" || tried[c.field] {
				continue
			}
			if loss := f.lossWithout(&s, c.field); loss < least {
				least, leave = loss, c.field
			}
		}
		if leave == "" {
			return s, nil
		}
		next, err := f.search(ctx, s.without(leave))
		if err != nil {
			return s, err
		}
		if f.worth(s.loss, next.loss, 1, plain) {
			tried[leave] = true
		} else {
			s = next
		}
	}
}

// lossWithout is about what the loss is without a cost, when the others make up for it.
func (f *fitting) lossWithout(s *state, field string) (loss float64) {
	next := s.without(field)
	for k, slopes := range s.slope {
		got, rest := s.got[k], []float64(nil)
		for i, c := range s.costs {
			switch {
			case c.field == field:
				got -= slopes[i] * s.x[i]
			case !c.gone(field):
				rest = append(rest, slopes[i])
			}
		}
		next.got, next.slope = append(next.got, got), append(next.slope, rest)
	}
	x := next.solved(f.linear(&next, nil))
	for k, o := range f.sights {
		got := next.got[k]
		for i, slope := range next.slope[k] {
			got += slope * (x[i] - next.x[i])
		}
		_, l := f.weigh(got, o)
		loss += l
	}
	return loss
}

// gone reports whether the cost leaves with another one.
func (c cost) gone(field string) bool { return c.field == field || c.with == field }

// without is the state without a cost, and those that are there only with it.
func (s *state) without(field string) (next state) {
	for i, c := range s.costs {
		if !c.gone(field) {
			next.costs, next.x = append(next.costs, c), append(next.x, s.x[i])
		}
	}
	return next
}
