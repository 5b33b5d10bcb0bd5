package serve

import (
	"fmt"
	"iter"
	"math"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/stats"
)

// SteadyFigures hold the figures of a window; the comment in steady.go says what counts in which.
type SteadyFigures struct {
	SteadyWindow
	Duration          float64       `json:"duration_s"`
	Sent              int           `json:"sent_requests"`
	Completed         int           `json:"completed_requests"`
	InputTokens       int           `json:"input_tokens"`  // of requests sent in the window
	OutputTokens      float64       `json:"output_tokens"` // by chunks; not whole where a request's tokens are shared out
	RequestThroughput float64       `json:"request_throughput"`
	InputThroughput   float64       `json:"input_token_throughput"`
	OutputThroughput  float64       `json:"output_token_throughput"`
	MeanConcurrency   float64       `json:"mean_concurrency"`
	TTFT              stats.Summary `json:"ttft"`
	TPOT              stats.Summary `json:"tpot"`
	ITL               stats.Summary `json:"itl"`
	E2EL              stats.Summary `json:"e2el"`
}

// Figures computes the window's figures from the records that it was found in. It takes 8 bytes of memory for each
// token of the window.
func (w SteadyWindow) Figures(records iter.Seq[*client.Record]) SteadyFigures {
	f := SteadyFigures{SteadyWindow: w, Duration: w.End - w.Start}
	var ttft, tpot, itl, e2el []float64
	for r := range answeredOnly(records) {
		f.MeanConcurrency += max(0, min(r.Finish, w.End)-max(r.Sent, w.Start))
		if w.has(r.Finish) {
			f.Completed++
		}
		for i, t := range r.TokenTimes {
			if !w.has(t) {
				continue
			}
			f.OutputTokens += chunk(r, i)
			if i > 0 {
				itl = append(itl, t-r.TokenTimes[i-1])
			}
		}
		if !w.has(r.Sent) {
			continue
		}
		f.Sent++
		f.InputTokens += r.Input()
		ttft = append(ttft, r.TTFT())
		e2el = append(e2el, r.E2EL())
		if v, ok := r.TPOT(); ok {
			tpot = append(tpot, v)
		}
	}
	if f.Duration > 0 {
		f.RequestThroughput = float64(f.Completed) / f.Duration
		f.InputThroughput = float64(f.InputTokens) / f.Duration
		f.OutputThroughput = f.OutputTokens / f.Duration
		f.MeanConcurrency /= f.Duration
	}
	for to, seconds := range map[*stats.Summary][]float64{&f.TTFT: ttft, &f.TPOT: tpot, &f.ITL: itl, &f.E2EL: e2el} {
		*to = stats.NewSample(seconds).Summary().Rounded()
	}
	return f
}

// WholeWindow returns the window of a whole run, from the first Sent to the last Finish, so that the run's figures come
// from the same formulas.
func WholeWindow(records iter.Seq[*client.Record]) SteadyWindow {
	flight := client.InFlight(answeredOnly(records))
	w := SteadyWindow{Method: "whole run", Peak: flight.Peak}
	if n := len(flight.Steps); n > 0 {
		w.Start, w.End = flight.Steps[0].From, flight.Steps[n-1].To
	}
	w.End = math.Nextafter(w.End, math.Inf(1)) // what ends last ends in it
	return w
}

// SteadyTable sets the figures of a whole run and of its window side by side.
func SteadyTable(whole, window SteadyFigures) document.Table {
	t := document.Table{
		Title: fmt.Sprintf("Steady state: from %.2f to %.2f s (%s), %.0f %% of the run", window.Start, window.End, window.Method, 100*window.Duration/whole.Duration),
		Head:  []string{"", "whole run", "steady", "steady / whole"},
		Left:  1,
	}
	row := func(name string, a, b float64) {
		t.Add(name, document.Fixed(a, 2), document.Fixed(b, 2), document.Fixed(b/a, 3))
	}
	row("Duration (s)", whole.Duration, window.Duration)
	row("Requests sent", float64(whole.Sent), float64(window.Sent))
	row("Requests completed", float64(whole.Completed), float64(window.Completed))
	row("Mean requests in flight", whole.MeanConcurrency, window.MeanConcurrency)
	row("Request throughput (req/s)", whole.RequestThroughput, window.RequestThroughput)
	row("Input token throughput (tok/s)", whole.InputThroughput, window.InputThroughput)
	row("Output token throughput (tok/s)", whole.OutputThroughput, window.OutputThroughput)
	for _, l := range []struct {
		name string
		a, b stats.Summary
	}{{"TTFT", whole.TTFT, window.TTFT}, {"TPOT", whole.TPOT, window.TPOT}, {"ITL", whole.ITL, window.ITL}, {"E2EL", whole.E2EL, window.E2EL}} {
		row("Mean "+l.name+" (ms)", l.a.Mean, l.b.Mean)
		row("Median "+l.name+" (ms)", l.a.Median, l.b.Median)
		row("P99 "+l.name+" (ms)", l.a.P99, l.b.P99)
	}
	return t
}
