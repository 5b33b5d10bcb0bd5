package serve

// This file finds the part of a run in which the load was steady, and the figures of
// that part. A whole run has a ramp-up, in which the server is less loaded than it will be
// or takes a burst that will not come again, and a drain, in which its last requests have
// it for themselves; both change every figure, the more the shorter the run.
//
// All times are seconds since the run's start, as in client.Record. Requests with a
// failure count for nothing here. A request is in flight from Sent to Finish.
//
// # The window
//
// There are two definitions.
//
// [MSER], the default. Nothing comes after the last Sent, so what is after it is drain. Up
// to there, two series are asked whether they have settled: the requests in flight, and
// the output tokens a second, each a mean over 100 equal steps from the first Sent to the
// last. The marginal standard error rule (White, Cobb and Spratt, Winter Simulation
// Conference 2000; MSER-5 where a step is five observations, as here it is a hundredth of
// the time) leaves out the beginning such that
//
//	sum of (x_i - mean)² / m²
//
// over the m steps that are left, the squared standard error of their mean, is least: it
// grows with what does not belong, and with what is thrown away for nothing. Here it may
// leave out steps at the end too, where a load fades out, and a half of all at most. The
// window is where both series have settled. A series of which it leaves no more than that
// half has not settled, and there is no window; nor if fewer than 10 requests were sent in
// it, nor if it is shorter than these were in flight on average: then it shows one
// generation of requests, and not a state.
//
// [steadyConcurrency] is SGLang's (sglang#30918, its --steady-state-concurrency-ratio): the
// longest interval in which no fewer than ceil(ratio x peak) requests are in flight, the
// first of several.
//
// MSER is the default because it has no ratio to choose, and because SGLang's definition
// is made for closed loops: in an open loop the requests in flight fall below any ratio
// of their peak all the time, so that the longest interval above it is short, and chosen
// for its load being high; and a closed loop that begins with a burst of prompts is at its
// peak at once, while no token has come yet.
//
// # The figures
//
// What has a moment counts by it: output tokens by their chunks, completed requests by
// Finish, and a gap between chunks (ITL) by the chunk that ends it, whichever request it
// is of. What a request has once, TTFT, TPOT, E2EL and its prompt's tokens, counts if it
// was sent in the window, wherever it ended: to leave out requests that end after the
// window would leave out long ones. A window has its start and not its end.

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"kvferry/bench/client"
	"kvferry/internal/config"
)

// A SteadyMethod is a definition of the window.
type SteadyMethod string

// The methods.
const (
	MSER              SteadyMethod = "mser"
	steadyConcurrency SteadyMethod = "concurrency"
)

// SteadyMethods lists all methods, for flags.
var SteadyMethods = []SteadyMethod{MSER, steadyConcurrency}

// SteadyConfig configures how a window is found. A zero value of a field is its default.
type SteadyConfig struct {
	Method SteadyMethod // default MSER
	Ratio  float64      // of the peak, for steadyConcurrency: above 0 up to 1; default 0.8
}

// Validate lists what is wrong with it as config.Faults do.
func (c SteadyConfig) Validate() error {
	var f config.Faults
	if c.Method != "" && !slices.Contains(SteadyMethods, c.Method) {
		f.Add("Method", string(c.Method), "use %s or %s", MSER, steadyConcurrency)
	}
	if !(c.Ratio >= 0 && c.Ratio <= 1) {
		f.Add("Ratio", c.Ratio, "use a share of the peak above 0 and up to 1, like 0.8")
	}
	return f.Err("steady.Config")
}

const (
	steps       = 100 // of the series that MSER is asked of: a window is found to 1 % of a run
	minRequests = 10  // sent in a window: of fewer there is no P99 to speak of, nor a mean
)

// A SteadyWindow is a part of a run.
type SteadyWindow struct {
	Method SteadyMethod `json:"method"`
	Start  float64      `json:"start"`
	End    float64      `json:"end"`
	// Peak is the most requests in flight, in the run, and Threshold what steadyConcurrency asked
	// for.
	Peak      int `json:"peak_concurrency"`
	Threshold int `json:"concurrency_threshold,omitempty"`
	// Note says what is to be known of the window's figures; empty if nothing is.
	Note string `json:"note,omitempty"`
}

// Find is the window of a run. The error says why there is none. It ranges over the
// records several times, in whatever order they are, and keeps nothing of them.
func (c SteadyConfig) Find(records iter.Seq[*client.Record]) (SteadyWindow, error) {
	if err := c.Validate(); err != nil {
		return SteadyWindow{}, err
	}
	config.Default(&c.Method, MSER)
	config.Default(&c.Ratio, 0.8)
	flight := client.InFlight(answeredOnly(records))
	if len(flight.Steps) == 0 {
		return SteadyWindow{}, fmt.Errorf("no steady state: no request was answered")
	}
	w := SteadyWindow{Method: c.Method, Peak: flight.Peak}
	if c.Method == steadyConcurrency {
		w.longest(flight.Steps, c.Ratio)
		return w, nil
	}
	if err := w.settled(flight.Steps, records); err != nil {
		return SteadyWindow{}, err
	}
	return w, nil
}

// answeredOnly are the records that count.
func answeredOnly(records iter.Seq[*client.Record]) iter.Seq[*client.Record] {
	return func(yield func(*client.Record) bool) {
		for r := range records {
			if r.Failure() == "" && r.Finish > r.Sent && !yield(r) {
				return
			}
		}
	}
}

// longest sets the window to the longest interval at or above ratio x peak.
func (w *SteadyWindow) longest(flight []client.Step, ratio float64) {
	w.Threshold = max(1, int(math.Ceil(float64(w.Peak)*ratio)))
	start, open := 0.0, false
	for _, s := range flight {
		if s.Requests < w.Threshold {
			open = false
			continue
		}
		if !open {
			start, open = s.From, true
		}
		if s.To-start > w.End-w.Start {
			w.Start, w.End = start, s.To
		}
	}
}

// settled sets the window to where both series have settled.
func (w *SteadyWindow) settled(flight []client.Step, records iter.Seq[*client.Record]) error {
	first, last := flight[0].From, flight[0].From
	for r := range answeredOnly(records) {
		last = max(last, r.Sent)
	}
	step := (last - first) / steps
	if step <= 0 {
		return fmt.Errorf("no steady state: all requests were sent at once")
	}
	var requests, tokens [steps]float64
	at := func(t float64) int { return min(max(int((t-first)/step), 0), steps-1) }
	for _, s := range flight {
		for i := at(s.From); i <= at(s.To); i++ {
			low := first + float64(i)*step
			requests[i] += float64(s.Requests) * max(0, min(s.To, low+step)-max(s.From, low))
		}
	}
	for r := range answeredOnly(records) {
		for i, t := range r.TokenTimes {
			if t < last {
				tokens[at(t)] += chunk(r, i)
			}
		}
	}
	begin, end := 0, steps
	for _, series := range []struct {
		name string
		x    []float64
	}{{"requests in flight", requests[:]}, {"output tokens a second", tokens[:]}} {
		from, to := mser(series.x)
		if to-from <= steps/2 {
			return fmt.Errorf("no steady state: the %s did not settle in the %.3g s that requests came: let the run last longer", series.name, last-first)
		}
		begin, end = max(begin, from), min(end, to)
	}
	w.Start, w.End = first+float64(begin)*step, min(first+float64(end)*step, last)
	sent, total := 0, 0.0
	for r := range answeredOnly(records) {
		if w.has(r.Sent) {
			sent++
			total += r.Finish - r.Sent
		}
	}
	mean := total / float64(max(sent, 1))
	switch {
	case sent < minRequests:
		return fmt.Errorf("no steady state: only %d requests were sent while the load was steady, and %d are the least", sent, minRequests)
	case w.End-w.Start < mean:
		w.Note = fmt.Sprintf("the load was steady for %.3g s, less than the %.3g s that a request takes on average: whatever was in flight before that is in the steady part's figures", w.End-w.Start, mean)
	}
	return nil
}

// has reports whether a moment lies in the window.
func (w SteadyWindow) has(t float64) bool { return w.Start <= t && t < w.End }

// mser is the half of a series or more, from and up to a step, whose mean has the least
// standard error; the longest of several.
func mser(x []float64) (from, to int) {
	n := len(x)
	mean := 0.0
	for _, v := range x {
		mean += v / float64(n)
	}
	// Sums of the first values and of their squares, less the mean of all: so no small
	// difference of large numbers is left.
	sums, squares := make([]float64, n+1), make([]float64, n+1)
	for i, v := range x {
		sums[i+1] = sums[i] + (v - mean)
		squares[i+1] = squares[i] + (v-mean)*(v-mean)
	}
	noise := 1e-18 * mean * mean * float64(n) // a constant series' squares, by rounding
	best := math.Inf(1)
	for m := n; m >= (n+1)/2; m-- {
		for i := 0; i+m <= n; i++ {
			sum := sums[i+m] - sums[i]
			s := squares[i+m] - squares[i] - sum*sum/float64(m)
			if s <= noise {
				s = 0
			}
			if e := s / float64(m*m); e < best {
				best, from, to = e, i, i+m
			}
		}
	}
	return from, to
}

// chunk is how many output tokens a record's chunk brought: as the server says, or its
// share of all.
func chunk(r *client.Record, i int) float64 {
	if len(r.ChunkTokens) == len(r.TokenTimes) {
		return float64(r.ChunkTokens[i])
	}
	return float64(outputTokens(r)) / float64(len(r.TokenTimes))
}

// outputTokens is how many tokens were generated, by whoever counted.
func outputTokens(r *client.Record) int {
	switch {
	case r.OutputTokens > 0:
		return r.OutputTokens
	case r.Usage != nil:
		return r.Usage.CompletionTokens
	}
	return len(r.TokenTimes)
}
