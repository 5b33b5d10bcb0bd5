package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
)

func a10(t *testing.T) *engine.Profile {
	t.Helper()
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// steps are the times of steps of several shapes, in milliseconds, with a profile, beside
// those with another.
func steps(truth *engine.Profile) Figures {
	return func(_ context.Context, p *engine.Profile) (figures []Figure, err error) {
		for _, n := range []int{1, 50, 200, 1000, 4000} {
			run := func(p *engine.Profile) float64 {
				s := &engine.Step{Kind: engine.Prefill, Tokens: n, Works: []engine.Work{{N: n, Prompt: true}}}
				return float64(engine.NewCostModel(p.Costs, p.KVGeometry).Run(s)) / float64(time.Millisecond)
			}
			figures = append(figures, Figure{Name: fmt.Sprint(n, " tokens"), Got: run(p), Want: run(truth), Scale: 0.01})
		}
		return figures, nil
	}
}

func search(t *testing.T) Search {
	t.Helper()
	truth, err := WithFields(a10(t), map[string]float64{
		"costs.prefill_step_ms": 2.5, "costs.prefill_token_ms": 0.15, "costs.prefill_attention_ns": 6, "costs.prefill_floor_ms": 12, "costs.hot_slowdown": 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	start, err := WithFields(truth, map[string]float64{"costs.prefill_step_ms": 1, "costs.prefill_token_ms": 0.2, "costs.prefill_attention_ns": 0, "costs.prefill_floor_ms": 5})
	if err != nil {
		t.Fatal(err)
	}
	return Search{
		Profile: start, Figures: steps(truth), Evaluations: 3000, Seed: 1,
		Parameters: []Parameter{
			{Field: "costs.prefill_step_ms", Low: 0, High: 5},
			{Field: "costs.prefill_token_ms", Low: 0.1, High: 0.3},
			{Field: "costs.prefill_attention_ns", Low: 0, High: 20},
			{Field: "costs.prefill_floor_ms", Low: 0, High: 20},
		},
	}
}

// TestSearchRecovers: parameters are found again by what steps with them take, and twice
// the same ones; what is not searched stays.
func TestSearchRecovers(t *testing.T) {
	s := search(t)
	start := *s.Profile
	r, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := r.Profile.Costs
	for name, v := range map[string][2]float64{
		"prefill_step": {c.PrefillStepMS, 2.5}, "prefill_token": {c.PrefillTokenMS, 0.15}, "attention": {c.PrefillAttentionNS, 6}, "floor": {c.PrefillFloorMS, 12},
	} {
		if math.Abs(v[0]/v[1]-1) > 0.03 {
			t.Errorf("%s is %v, want %v; loss %v after %d", name, v[0], v[1], r.Loss, r.Evaluations)
		}
	}
	if r.Evaluations > s.Evaluations || r.Profile.Name != s.Profile.Name || r.Profile.Disagg != s.Profile.Disagg || !reflect.DeepEqual(start, *s.Profile) {
		t.Errorf("%d evaluations; the profile searched from is another, or more of the profile found", r.Evaluations)
	}
	again, err := s.Run(t.Context())
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("another run found %+v, %v", again, err)
	}
}

// TestSearchKeepsBounds: no profile outside of them is ever computed, also where the best
// ones lie there, nor more profiles than may be.
func TestSearchKeepsBounds(t *testing.T) {
	s := search(t)
	s.Parameters = []Parameter{{Field: "costs.prefill_step_ms", Low: 0.5, High: 1.5}, {Field: "costs.prefill_token_ms", Low: 0.18, High: 0.3}}
	s.Evaluations = 100
	of, n := s.Figures, 0
	s.Figures = func(ctx context.Context, p *engine.Profile) ([]Figure, error) {
		n++
		if c := p.Costs; c.PrefillStepMS < 0.5 || c.PrefillStepMS > 1.5 || c.PrefillTokenMS < 0.18 || c.PrefillTokenMS > 0.3 {
			t.Errorf("out of bounds: %+v", c)
		}
		return of(ctx, p)
	}
	last := math.Inf(1)
	s.OnProgress = func(_ int, loss float64) {
		if loss >= last {
			t.Errorf("loss %v after %v", loss, last)
		}
		last = loss
	}
	r, err := s.Run(t.Context())
	if err != nil || r.Profile.Costs.PrefillTokenMS != 0.18 || r.Loss != last || n > 100 || r.Evaluations != n {
		t.Errorf("%v: token %v, loss %v, %d evaluations", err, r.Profile.Costs.PrefillTokenMS, r.Loss, n)
	}
}

// TestSearchStops: with what it has, when it is told to or its figures fail.
func TestSearchStops(t *testing.T) {
	s := search(t)
	of, n := s.Figures, 0
	why := errors.New("enough")
	ctx, stop := context.WithCancelCause(t.Context())
	s.Figures = func(ctx context.Context, p *engine.Profile) ([]Figure, error) {
		if n++; n == 20 {
			stop(why)
			return nil, context.Cause(ctx)
		}
		return of(ctx, p)
	}
	if r, err := s.Run(ctx); !errors.Is(err, why) || r == nil || r.Evaluations != 20 || r.Profile == nil {
		t.Errorf("%+v, %v", r, err)
	}
	s.Figures = func(context.Context, *engine.Profile) ([]Figure, error) { return nil, why }
	if r, err := s.Run(t.Context()); !errors.Is(err, why) || r != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestSearchFaults(t *testing.T) {
	for want, spoil := range map[string]func(*Search){
		"Profile: none given":                 func(s *Search) { s.Profile = nil },
		"Parameters: none given":              func(s *Search) { s.Parameters = nil },
		`there is no field "prefil_token_ms"`: func(s *Search) { s.Parameters[1].Field = "costs.prefil_token_ms" },
		"costs.prefill_token_ms is 0.2: give bounds around that, not 0.3 to 0.4": func(s *Search) { s.Parameters[1].Low, s.Parameters[1].High = 0.3, 0.4 },
		"not 0.2 to 0.2":      func(s *Search) { s.Parameters[1].Low, s.Parameters[1].High = 0.2, 0.2 },
		"Evaluations: 0: use": func(s *Search) { s.Evaluations = 0 },
	} {
		s := search(t)
		spoil(&s)
		if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWith(t *testing.T) {
	p, err := WithFields(a10(t), map[string]float64{"links.rdma.ms_per_mb": 0.5, "costs.cold_ms": 7, "kv_bytes": 15e9, "costs.experts.count": 8, "costs.experts.per_token": 2})
	if err != nil || p.Links["rdma"].MSPerMB != 0.5 || p.Links["tcp"] != a10(t).Links["tcp"] || p.Costs.ColdMS != 7 || p.KVBytes != 15e9 || p.Costs.Experts.PerToken != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := WithFields(p, map[string]float64{"costs.cold_ms": -1}); err == nil || !strings.Contains(err.Error(), "costs.cold_ms: -1: use") {
		t.Error(err)
	}
}

func TestErrorsOf(t *testing.T) {
	var figures []Figure
	for i := range 11 {
		f := Figure{Got: 100 + float64(i), Want: 100, Scale: 0.05}
		if i%2 == 1 {
			f.Got = 100 - float64(i)
		}
		figures = append(figures, f)
	}
	e := ErrorsOf(figures)
	if e.Count != 11 || math.Abs(e.Median-0.05) > 1e-9 || math.Abs(e.P90-0.09) > 1e-9 || math.Abs(e.Worst-0.1) > 1e-9 {
		t.Errorf("%+v", e)
	}
	if want := "11 figures: median error 5.00 %, 90th percentile 9.00 %, worst 10 %"; e.String() != want {
		t.Errorf("%q, want %q", e, want)
	}
	exact, half, twice := []Figure{{Got: 2, Want: 2, Scale: 1}}, []Figure{{Got: 1, Want: 2, Scale: 0.1}}, []Figure{{Got: 4, Want: 2, Scale: 0.1}}
	if loss(exact) != 0 || math.Abs(loss(half)-loss(twice)) > 1e-12 || math.Abs(loss(half)-2*(math.Hypot(1, math.Ln2/0.1)-1)) > 1e-12 {
		t.Errorf("losses %v, %v, %v", loss(exact), loss(half), loss(twice))
	}
}
