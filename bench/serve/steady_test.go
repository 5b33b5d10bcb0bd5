package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvferry/bench/client"
	"kvferry/internal/config"
)

// request is one that was sent at a time, and got its tokens every itl seconds from ttft on.
func request(sent, ttft, itl float64, tokens int) *client.Record {
	r := &client.Record{Sent: sent, Intended: sent, Status: client.StatusOK, PromptTokens: 100, Usage: &client.Usage{PromptTokens: 100, CompletionTokens: tokens}}
	for i := range tokens {
		r.TokenTimes = append(r.TokenTimes, sent+ttft+itl*float64(i))
	}
	r.FirstToken, r.Finish = r.TokenTimes[0], r.TokenTimes[tokens-1]
	return r
}

// openLoop is an open loop of n requests at a rate, seeded, each in flight for about 2 s.
func openLoop(seed uint64, n int, rate float64) (records []*client.Record) {
	rng := rand.New(rand.NewPCG(seed, 1))
	at := 0.0
	for range n {
		records = append(records, request(at, 0.1+0.05*rng.ExpFloat64(), 0.02, 50+rng.IntN(100)))
		at += rng.ExpFloat64() / rate
	}
	return records
}

// closed is a closed loop of n requests with k in flight: all k are sent at once, and the
// first of them wait for one another's prompts.
func closed(seed uint64, n, k int) (records []*client.Record) {
	rng := rand.New(rand.NewPCG(seed, 2))
	ends := make([]float64, k)
	for i := range n {
		slices.Sort(ends)
		ttft := 0.2
		if i < k {
			ttft += 0.2 * float64(i) // prefills of the burst, one after the other
		}
		r := request(ends[0], ttft, 0.02, 50+rng.IntN(100))
		ends[0] = r.Finish
		records = append(records, r)
	}
	return records
}

// find fails the test if there is no window.
func find(t *testing.T, c SteadyConfig, records []*client.Record) (SteadyWindow, SteadyFigures) {
	t.Helper()
	w, err := c.Find(slices.Values(records))
	if err != nil {
		t.Fatal(err)
	}
	return w, w.Figures(slices.Values(records))
}

func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

// TestConcurrencyIsSGLangs: the run of its own test: one request from 0 to 10 s and two
// from 2 to 8 s, at a ratio of 0.8.
func TestConcurrencyIsSGLangs(t *testing.T) {
	records := []*client.Record{request(0, 1, 1, 10), request(2, 1, 1, 6), request(2, 1, 1, 6)}
	w, f := find(t, SteadyConfig{Method: steadyConcurrency}, records)
	if w.Start != 2 || w.End != 8 || w.Threshold != 3 || w.Peak != 3 {
		t.Errorf("%+v", w)
	}
	// Six tokens at 2 to 7 s, and two times five at 3 to 7 s: those at 8 s are outside.
	if f.OutputTokens != 16 || !near(f.OutputThroughput, 16./6, 1e-9) || !near(f.MeanConcurrency, 3, 1e-9) || f.Sent != 2 || f.InputTokens != 200 {
		t.Errorf("%+v", f)
	}
	// Of two intervals that are as long the first.
	w, _ = find(t, SteadyConfig{Method: steadyConcurrency, Ratio: 1}, []*client.Record{request(5, 1, 1, 3), request(1, 1, 1, 3)})
	if w.Start != 1 || w.End != 4 {
		t.Errorf("%+v", w)
	}
}

// TestOpenLoop: the window of a Poisson load leaves out what comes before requests leave as
// fast as they come, and the drain; its figures are those of the endless run. Of 20
// seeds most have a window.
func TestOpenLoop(t *testing.T) {
	found, late, rates, whole := 0, 0, 0.0, 0.0
	for seed := range uint64(20) {
		records := openLoop(seed, 2000, 40)
		w, err := SteadyConfig{}.Find(slices.Values(records))
		if err != nil {
			continue
		}
		found++
		f := w.Figures(slices.Values(records))
		if w.End > records[len(records)-1].Sent {
			t.Errorf("seed %d: ends in the drain: %+v", seed, w)
		}
		if w.Start > 1 {
			late++
		}
		rates += f.OutputThroughput
		tokens := 0.0
		for _, r := range records {
			tokens += float64(r.Usage.CompletionTokens)
		}
		whole += tokens / records[len(records)-1].Finish
	}
	want := 40 * 99.5
	t.Logf("%d of 20 have a window, %d of them from 1 s on; %.0f tokens/s, %.0f in the whole run, %.0f is right", found, late, rates/float64(found), whole/float64(found), want)
	if found < 18 || late < 90*found/100 || !near(rates/float64(found), want, 0.02) {
		t.Errorf("%d of 20 have a window, %d of them from 1 s on; %.0f tokens/s, want %.0f", found, late, rates/float64(found), want)
	}
}

// TestClosedLoop: a burst of 64 prompts is no steady state, though the concurrency is at
// its peak from the first moment, as SGLang's definition has it.
func TestClosedLoop(t *testing.T) {
	records := closed(1, 2000, 64)
	w, f := find(t, SteadyConfig{}, records)
	if w.Start < 10 || f.TTFT.Mean != 200 || f.TTFT.P99 != 200 {
		t.Errorf("the burst is in the window: %+v", f)
	}
	// A request takes 0.2 s and 98.5 gaps of 20 ms.
	if rate := 64 / (0.2 + 98.5*0.02); !near(f.RequestThroughput, rate, 0.03) || !near(f.MeanConcurrency, 64, 0.01) {
		t.Errorf("%.2f requests/s, want %.2f; concurrency %.2f", f.RequestThroughput, rate, f.MeanConcurrency)
	}
	if g, _ := find(t, SteadyConfig{Method: steadyConcurrency}, records); g.Start != 0 {
		t.Errorf("SGLang's definition: %+v", g)
	}
}

// TestRampUp: a rate that rises for the first third is left out.
func TestRampUp(t *testing.T) {
	var records []*client.Record
	for at := 0.0; at < 60; {
		records = append(records, request(at, 0.1, 0.02, 50))
		at += 1 / (20 * min(1, 0.05+at/20))
	}
	w, f := find(t, SteadyConfig{}, records)
	if w.Start < 15 || w.Start > 24 || w.End < 55 || !near(f.RequestThroughput, 20, 0.03) {
		t.Errorf("%+v", f)
	}
}

// TestFadeOut: a load that ends thinly.
func TestFadeOut(t *testing.T) {
	var records []*client.Record
	for at := 0.0; at < 60; {
		records = append(records, request(at, 0.1, 0.02, 50))
		at += 1 / (20 * max(0.05, min(1, (60-at)/20)))
	}
	if w, _ := find(t, SteadyConfig{}, records); w.End > 50 || w.End < 35 {
		t.Errorf("%+v", w)
	}
}

// manyRequests returns n requests of so many tokens, sent when sent says.
func manyRequests(n int, sent func(i int) float64, tokens int) (all []*client.Record) {
	for i := range n {
		all = append(all, request(sent(i), 0.1, 0.02, tokens))
	}
	return all
}

// relayed returns n requests, each in flight from and to when of says.
func relayed(n int, of func(i int) (from, to float64)) (all []*client.Record) {
	for i := range n {
		from, to := of(i)
		all = append(all, request(from, 0.02, 0.02, int((to-from)/0.02)))
	}
	return all
}

// TestNoSteadyState: runs that have none say why.
func TestNoSteadyState(t *testing.T) {
	failed := request(0, 1, 1, 2)
	failed.Error = "refused"
	for name, c := range map[string]struct {
		records []*client.Record
		want    string
	}{
		"nothing":        {nil, "no request was answered"},
		"all failed":     {[]*client.Record{failed}, "no request was answered"},
		"all at once":    {manyRequests(200, func(int) float64 { return 0 }, 50), "sent at once"},
		"nearly at once": {manyRequests(200, func(i int) float64 { return float64(i) / 1e4 }, 500), "no steady state"},
		"ever faster":    {manyRequests(2000, func(i int) float64 { return 60 * math.Sqrt(float64(i)/2000) }, 50), "did not settle"},
		"too few":        {manyRequests(8, func(i int) float64 { return float64(i) }, 2), "are the least"},
		"ever more":      {manyRequests(200, func(i int) float64 { return float64(i) / 20 }, 3000), "no steady state"},
	} {
		w, err := SteadyConfig{}.Find(slices.Values(c.records))
		if err == nil || !strings.Contains(err.Error(), c.want) || w != (SteadyWindow{}) {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}

// TestSteadyForLessThanARequest: a load that is steady for less time than a request takes has a
// window, and a note. 200 are in flight all the time, of which one in two seconds ends and is
// followed by one of 100 s.
func TestSteadyForLessThanARequest(t *testing.T) {
	w, err := SteadyConfig{}.Find(slices.Values(append(
		manyRequests(180, func(int) float64 { return 0 }, 5000),
		slices.Concat(relayed(20, func(i int) (from, to float64) { return 0, 2 * float64(i+1) }), relayed(20, func(i int) (from, to float64) { return 2 * float64(i+1), 100 }))...,
	)))
	if err != nil || w.End-w.Start < 20 || !strings.Contains(w.Note, "that a request takes on average") {
		t.Errorf("%+v, %v", w, err)
	}
}

// TestFigures: chunks with several tokens, requests of one token, failures, and
// records in any order.
func TestFigures(t *testing.T) {
	records := openLoop(1, 1000, 20)
	one := request(20, 0.3, 0, 1)
	one.OutputTokens, one.Usage.CompletionTokens, one.InputTokens = 1, 0, 7
	chunks := request(20, 0.3, 0.5, 3)
	chunks.ChunkTokens, chunks.OutputTokens = []int{1, 8, 2}, 11
	failed := request(20, 0.3, 0.02, 1000)
	failed.Error = "reset"
	w := SteadyWindow{Start: 10, End: 40}
	before := w.Figures(slices.Values(records))
	after := w.Figures(slices.Values(append(slices.Clone(records), one, chunks, failed)))
	if after.OutputTokens-before.OutputTokens != 12 || after.Sent-before.Sent != 2 || after.Completed-before.Completed != 2 ||
		after.InputTokens-before.InputTokens != 107 || after.ITL.Values-before.ITL.Values != 2 {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	shuffled := slices.Clone(records)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	a, _ := find(t, SteadyConfig{}, records)
	b, _ := find(t, SteadyConfig{}, shuffled)
	if math.Abs(a.Start-b.Start) > 1e-9 || math.Abs(a.End-b.End) > 1e-9 {
		t.Errorf("%+v in order, %+v shuffled", a, b)
	}
	text, err := json.Marshal(before)
	if err != nil || !strings.Contains(string(text), `"method"`) || !strings.Contains(string(text), `"ttft":{"values":`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestRefused(t *testing.T) {
	for field, c := range map[string]SteadyConfig{
		"Method": {Method: "longest"}, "Ratio": {Method: steadyConcurrency, Ratio: 1.5},
	} {
		_, err := c.Find(slices.Values([]*client.Record(nil)))
		var invalid *config.Invalid
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), fmt.Sprintf("steady.Config.%s: ", field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestTable: of the whole run the figures are the client's own.
func TestTable(t *testing.T) {
	records := closed(1, 1000, 32)
	var meter client.Meter
	for _, r := range records {
		meter.Add(r)
	}
	whole := WholeWindow(slices.Values(records)).Figures(slices.Values(records))
	m := meter.Metrics(whole.Duration)
	if whole.Sent != m.Successful || whole.Completed != m.Successful || whole.TTFT.Mean != m.MeanTTFTMS || whole.TPOT.P99 != m.P99TPOTMS ||
		whole.ITL.Median != m.MedianITLMS || !near(whole.OutputThroughput, m.OutputThroughput, 1e-9) || whole.InputTokens != m.InputTokens {
		t.Errorf("steady %+v\nclient %+v", whole, m)
	}
	_, f := find(t, SteadyConfig{}, records)
	text := SteadyTable(whole, f).Text()
	for _, want := range []string{"Steady state: from ", "(mser)", "Mean TTFT (ms)", "Output token throughput (tok/s)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	t.Log("\n" + text)
}
