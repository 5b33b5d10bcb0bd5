package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// A madeUpServer answers a run of n requests at a value.
type madeUpServer func(t RateTry, n int) RateRun

// mm1 is a queue with one server, exponential work of mean 1 s / mu and an SLO on the time
// in it, slo seconds. In the long run that time is exponential with the rate mu - lambda,
// so 1 - exp(-(mu - lambda) slo) of the requests keep it; each of the n is a draw of its own.
func mm1(mu, slo float64, seed uint64) madeUpServer {
	return func(t RateTry, n int) RateRun {
		rng := rand.New(rand.NewPCG(seed+uint64(t.Repeat), math.Float64bits(t.Value)))
		share := max(0, 1-math.Exp(-(mu-t.Value)*slo))
		r := RateRun{Value: t.Value, Requests: n}
		for range n {
			if rng.Float64() < share {
				r.Attained++
			}
		}
		return r
	}
}

// mm1Limit is where mm1 keeps the attainment exactly.
func mm1Limit(mu, slo, attainment float64) float64 { return mu + math.Log(1-attainment)/slo }

// queue is the same queue request by request (Lindley, 1952): it begins empty, and its
// requests are not independent.
func queue(mu, slo float64, seed uint64) madeUpServer {
	return func(t RateTry, n int) RateRun {
		rng := rand.New(rand.NewPCG(seed+uint64(t.Repeat), 1))
		r := RateRun{Value: t.Value, Requests: n}
		wait := 0.0
		for range n {
			work := rng.ExpFloat64() / mu
			if wait+work <= slo {
				r.Attained++
			}
			wait = max(0, wait+work-rng.ExpFloat64()/t.Value)
		}
		return r
	}
}

// batch serves all in flight together: a step takes base + each x concurrency seconds,
// give or take a fifth (log-normal), and the SLO is on it.
func batch(base, each, slo float64, seed uint64) madeUpServer {
	return func(t RateTry, n int) RateRun {
		rng := rand.New(rand.NewPCG(seed+uint64(t.Repeat), math.Float64bits(t.Value)))
		r := RateRun{Value: t.Value, Requests: n}
		for range n {
			if (base+each*t.Value)*math.Exp(0.2*rng.NormFloat64()) <= slo {
				r.Attained++
			}
		}
		return r
	}
}

// until runs a search to its end, with n requests a run.
func until(t testing.TB, c RateConfig, s madeUpServer, n int, each func(RateRun)) RateResult {
	t.Helper()
	search, err := NewRateSearch(c)
	if err != nil {
		t.Fatal(err)
	}
	for runs := 0; ; runs++ {
		try, ok := search.Next()
		if !ok {
			return search.Result()
		}
		if runs > 200 {
			t.Fatalf("no end after %d runs: %+v", runs, search.Result())
		}
		r := s(try, n)
		if each != nil {
			each(r)
		}
		if err := search.Add(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTranscripts: "search" begins one, "next" says what is to be run, "add" takes a run,
// "run" goes to the end against a made-up server, "result" is the table and the notes.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var c RateConfig
		var search *RateSearch
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(name string, value float64) float64 {
				if d.HasArg(name) {
					var text string
					d.ScanArgs(t, name, &text)
					if _, err := fmt.Sscan(text, &value); err != nil {
						d.Fatalf(t, "%s: %v", name, err)
					}
				}
				return value
			}
			next := func() string {
				try, ok := search.Next()
				if !ok {
					return search.Result().String() + "\n"
				}
				return fmt.Sprintf("next %v, repeat %d\n", try.Value, try.Repeat)
			}
			switch d.Cmd {
			case "search":
				c = RateConfig{
					Attainment: number("attainment", 0), Precision: number("precision", 0), Start: number("start", 0), Min: number("min", 0),
					Max: number("max", 0), Repeats: int(number("repeats", 0)), Runs: int(number("runs", 0)),
				}
				if d.HasArg("concurrency") {
					c.Quantity = Concurrency
				}
				var err error
				if search, err = NewRateSearch(c); err != nil {
					return err.Error() + "\n"
				}
				return next()
			case "add":
				r := RateRun{Value: number("value", 0), Requests: int(number("requests", 0)), Attained: int(number("attained", 0))}
				if d.HasArg("void") {
					d.ScanArgs(t, "void", &r.Void)
				}
				if err := search.Add(r); err != nil {
					return err.Error() + "\n"
				}
				return next()
			case "run":
				seed := uint64(number("seed", 1))
				var s madeUpServer
				switch {
				case d.HasArg("mm1"):
					s = mm1(number("mu", 0), number("slo", 0), seed)
				case d.HasArg("queue"):
					s = queue(number("mu", 0), number("slo", 0), seed)
				case d.HasArg("batch"):
					s = batch(number("base", 0), number("each", 0), number("slo", 0), seed)
				}
				late := number("late-from", math.Inf(1))
				var b strings.Builder
				r := until(t, c, func(try RateTry, n int) RateRun {
					if try.Value >= late {
						return RateRun{Value: try.Value, Void: "the client was late"}
					}
					return s(try, n)
				}, int(number("n", 1000)), func(r RateRun) {
					if r.Void != "" {
						fmt.Fprintf(&b, "%v: %s\n", r.Value, r.Void)
						return
					}
					fmt.Fprintf(&b, "%v: %d of %d\n", r.Value, r.Attained, r.Requests)
				})
				fmt.Fprintf(&b, "%s\n", r)
				for _, note := range r.Notes {
					fmt.Fprintf(&b, "note: %s\n", note)
				}
				return b.String()
			case "result":
				return search.Result().Text()
			}
			d.Fatalf(t, "no such command: %s", d.Cmd)
			return ""
		})
	})
}

// TestFindsTheLimit: 300 searches of a known server. The draws are seeded, so that the
// numbers below are facts, not chances.
func TestFindsTheLimit(t *testing.T) {
	const mu, slo, attainment, precision, searches = 20, 0.5, 0.99, 0.05, 300
	limit := mm1Limit(mu, slo, attainment) // 10.79 requests/s
	sure, runs, worst := 0, 0, 0.0
	for seed := range uint64(searches) {
		r := until(t, RateConfig{Precision: precision}, mm1(mu, slo, 1000*seed), 2000, nil)
		if r.Limit != bySLO || r.Above > r.Value*(1+precision)*(1+1e-9) {
			t.Fatalf("seed %d: %+v", seed, r)
		}
		if r.From <= limit && limit <= r.To {
			sure++
		}
		worst = max(worst, r.Value/limit-1, 1-r.Above/limit)
		for _, p := range r.Points {
			runs += p.Runs
		}
	}
	t.Logf("limit %.2f: in the sure interval %d times of %d, at most %.1f %% beyond the bracket, %.1f runs a search", limit, sure, searches, 100*worst, float64(runs)/searches)
	if sure < 0.95*searches || worst > precision {
		t.Errorf("in the sure interval %d times of %d, at most %.1f %% beyond the bracket", sure, searches, 100*worst)
	}
}

// TestRepeatsEarnTheirRuns: with repeats the answers are nearer than without.
func TestRepeatsEarnTheirRuns(t *testing.T) {
	const mu, slo = 20, 0.5
	limit := mm1Limit(mu, slo, 0.99)
	beyond := func(repeats int) (sum float64) {
		for seed := range uint64(200) {
			r := until(t, RateConfig{Repeats: repeats}, mm1(mu, slo, 1000*seed), 400, nil)
			sum += max(0, r.Value/limit-1, 1-r.Above/limit)
		}
		return sum / 200
	}
	with, without := beyond(4), beyond(-1)
	t.Logf("mean distance of the limit from the bracket: %.2f %% with four repeats, %.2f %% without", 100*with, 100*without)
	if with > 0.7*without {
		t.Errorf("%.2f %% with repeats, %.2f %% without", 100*with, 100*without)
	}
}

// TestEndsOnNonsense: whatever a server says, the search ends within its runs, tries
// nothing outside its bounds, and its result is one.
func TestEndsOnNonsense(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		c := RateConfig{Start: 1 + float64(rng.IntN(20)), Min: 1, Max: 20 + float64(rng.IntN(300)), Precision: 0.01 + 0.2*rng.Float64(), Runs: 60}
		if rng.IntN(2) == 0 {
			c.Quantity = Concurrency
		}
		r := until(t, c, func(try RateTry, n int) RateRun {
			if try.Value < c.Min || try.Value > c.Max || c.Quantity == Concurrency && try.Value != math.Trunc(try.Value) {
				t.Fatalf("seed %d: tries %v of %+v", seed, try.Value, c)
			}
			if rng.IntN(5) == 0 {
				return RateRun{Value: try.Value, Void: "late"}
			}
			return RateRun{Value: try.Value, Requests: n, Attained: n - rng.IntN(3)}
		}, 100, nil)
		if r.Limit == unfinished && len(r.Notes) == 0 {
			t.Fatalf("seed %d: not said why it is unfinished: %+v", seed, r)
		}
		if r.Value != 0 && r.Above != 0 && r.Value >= r.Above {
			t.Fatalf("seed %d: from %v to %v", seed, r.Value, r.Above)
		}
	}
}

// TestWilson: values of statsmodels 0.15.0, proportion_confint(k, n, method="wilson").
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n      int
		low, high float64
	}{
		{990, 1000, 0.981690531, 0.994559246},
		{1, 10, 0.017876213, 0.404150027},
		{0, 10, 0, 0.277532800},
		{10, 10, 0.722467200, 1},
	} {
		low, high := wilson(c.k, c.n)
		if math.Abs(low-c.low) > 1e-8 || math.Abs(high-c.high) > 1e-8 {
			t.Errorf("%d of %d: %.9f to %.9f, want %v to %v", c.k, c.n, low, high, c.low, c.high)
		}
	}
	if n := RequestsFor(0.99); n != 381 {
		t.Errorf("%d requests for 99 %%", n)
	}
	if low, _ := wilson(381, 381); low < 0.99 {
		t.Errorf("381 of 381 are not sure: %v", low)
	}
	if low, _ := wilson(380, 380); low >= 0.99 {
		t.Errorf("380 of 380 are sure: %v", low)
	}
}
