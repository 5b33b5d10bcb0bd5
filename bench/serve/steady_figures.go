package serve

import (
	"fmt"
	"iter"
	"math"
	"strconv"

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
	w := SteadyWindow{Method: "whole run"}
	for i, s := range inFlight(records) {
		if i == 0 {
			w.Start = s.start
		}
		w.End, w.Peak = s.end, max(w.Peak, s.requests)
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
	row := func(name string, of func(SteadyFigures) float64) {
		a, b := of(whole), of(window)
		ratio := ""
		if a > 0 {
			ratio = strconv.FormatFloat(b/a, 'f', 3, 64)
		}
		t.Rows = append(t.Rows, []string{name, strconv.FormatFloat(a, 'f', 2, 64), strconv.FormatFloat(b, 'f', 2, 64), ratio})
	}
	row("Duration (s)", func(f SteadyFigures) float64 { return f.Duration })
	row("Requests sent", func(f SteadyFigures) float64 { return float64(f.Sent) })
	row("Requests completed", func(f SteadyFigures) float64 { return float64(f.Completed) })
	row("Mean requests in flight", func(f SteadyFigures) float64 { return f.MeanConcurrency })
	row("Request throughput (req/s)", func(f SteadyFigures) float64 { return f.RequestThroughput })
	row("Input token throughput (tok/s)", func(f SteadyFigures) float64 { return f.InputThroughput })
	row("Output token throughput (tok/s)", func(f SteadyFigures) float64 { return f.OutputThroughput })
	for _, s := range []struct {
		name string
		of   func(SteadyFigures) stats.Summary
	}{
		{"TTFT", func(f SteadyFigures) stats.Summary { return f.TTFT }},
		{"TPOT", func(f SteadyFigures) stats.Summary { return f.TPOT }},
		{"ITL", func(f SteadyFigures) stats.Summary { return f.ITL }},
		{"E2EL", func(f SteadyFigures) stats.Summary { return f.E2EL }},
	} {
		row("Mean "+s.name+" (ms)", func(f SteadyFigures) float64 { return s.of(f).Mean })
		row("Median "+s.name+" (ms)", func(f SteadyFigures) float64 { return s.of(f).Median })
		row("P99 "+s.name+" (ms)", func(f SteadyFigures) float64 { return s.of(f).P99 })
	}
	return t
}
