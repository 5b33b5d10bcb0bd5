package result

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/stats"
)

// A Run is one as a file of results says it: ours, vLLM's or SGLang's. What the file does not
// say is missing.
type Run struct {
	Source string // the file or folder, and which of its results
	Key    string // what tells it from others of its file: workload, setting, clock; may be empty
	Tool   string // ToolKVFerry, ToolVLLM or ToolSGLang: whose definitions its figures have
	// Setup is what was run, under the names of summary.json.
	Setup map[string]string
	// Figures are under the names of a row's metrics, with mean_, median_, std_, p90_, p95_, p99_,
	// max_ and others of ttft_ms, tpot_ms, itl_ms, e2el_ms. All are finite.
	Figures map[string]float64
	// Doubts are what the file itself says against its figures: faults, disturbances.
	Doubts []string
	// Requests are those that succeeded, nil where the file does not list them.
	Requests []Request
}

// A Request is one of a Run, in seconds. A latency is NaN where the file does not say it, or
// where there is none: a TPOT of one token.
type Request struct {
	TTFT, TPOT, E2EL float64
	ITL              []float64
	Prompt, Output   int // tokens; -1 where the file does not say
}

// Names of latencies, in figures and for Values.
const (
	nameTTFT = "ttft"
	nameTPOT = "tpot"
	nameITL  = "itl"
	nameE2EL = "e2el"
)

// Tools.
const (
	ToolKVFerry = "kvferry"
	ToolVLLM    = "vLLM"
	ToolSGLang  = "SGLang"
)

// values are a request's latency by its name, in seconds: none, one, or as many as it has gaps.
func (r *Request) values(name string) []float64 {
	v := math.NaN()
	switch name {
	case nameTTFT:
		v = r.TTFT
	case nameTPOT:
		v = r.TPOT
	case nameE2EL:
		v = r.E2EL
	case nameITL:
		return r.ITL
	}
	if math.IsNaN(v) {
		return nil
	}
	return []float64{v}
}

// Values are a latency's, ttft, tpot, itl or e2el, in milliseconds: a list for each request,
// empty of one that has none. Nil is a result that does not say. They stay by request because the
// gaps of one request are not independent: Compare draws whole requests.
func (r *Run) Values(name string) [][]float64 {
	all, some := make([][]float64, len(r.Requests)), false
	for i := range r.Requests {
		for _, v := range r.Requests[i].values(name) {
			all[i], some = append(all[i], v*1e3), true
		}
	}
	if !some {
		return nil
	}
	return all
}

// Lengths are the prompts' and the outputs' in tokens, in the order of the load; ok is whether
// the file says them.
func (r *Run) Lengths() (prompt, output []int, ok bool) {
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.Prompt < 0 || q.Output < 0 {
			return nil, nil, false
		}
		prompt, output = append(prompt, q.Prompt), append(output, q.Output)
	}
	return prompt, output, len(r.Requests) > 0
}

// A FormatError is a file that is no result, or a broken one: it names the file, which of its
// results, and the key.
type FormatError struct {
	File   string
	Result int    // from 1; 0 where the whole file is meant
	Key    string // may be empty
	Err    error
}

func (e *FormatError) Error() string {
	text := e.File
	if e.Result > 0 {
		text += ": result " + strconv.Itoa(e.Result)
	}
	if e.Key != "" {
		text += ": " + e.Key
	}
	return text + ": " + e.Err.Error()
}

// Unwrap is what is wrong.
func (e *FormatError) Unwrap() error { return e.Err }

// What is said of a run that has no latencies, or not all.
const (
	noneSucceeded = "no request succeeded: it has no latencies"
	notStreamed   = "it did not stream: each answer came in one piece, so it has no TTFT, no TPOT and no ITL"
)

// nothing is below what any tool prints of a latency, in ms: SGLang's client writes a TPOT of
// -0.0009 where an answer came in one piece.
const nothing = 2e-3

// absent takes out the latencies that a run does not have. Both tools write 0 for them, or the
// time of the whole answer for TTFT, and 0 would be the best of all.
func (r *Run) absent() {
	drop := func(names ...string) (some bool) {
		for key := range r.Figures {
			for _, name := range names {
				if strings.Contains(key, "_"+name+"_") { // ttft_due too, from when a request was due
					delete(r.Figures, key)
					some = true
				}
			}
		}
		return some
	}
	if n, ok := r.Figures["successful_requests"]; ok && n == 0 {
		said := slices.ContainsFunc(r.Doubts, func(text string) bool { return strings.HasPrefix(text, "no request succeeded") })
		if drop(nameTTFT, nameTPOT, nameITL, nameE2EL) && !said {
			r.Doubts = append(r.Doubts, noneSucceeded)
		}
		return
	}
	tpot, okTPOT := r.Figures["mean_tpot_ms"]
	itl, okITL := r.Figures["mean_itl_ms"]
	if !okTPOT && !okITL || math.Abs(tpot) > nothing || math.Abs(itl) > nothing || r.Setup["clock"] == "virtual" { // where costs may be 0
		return
	}
	tokens := r.Figures["output_tokens_per_request"]
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.TPOT*1e3 > nothing || slices.ContainsFunc(q.ITL, func(gap float64) bool { return gap*1e3 > nothing }) {
			return
		}
		tokens = max(tokens, float64(q.Output))
	}
	whole := tokens > 1 // answers of one token have a TTFT, and nothing behind it
	if drop(nameTPOT, nameITL); whole {
		drop(nameTTFT)
		r.Doubts = append(r.Doubts, notStreamed)
	}
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.TPOT, q.ITL = math.NaN(), nil; whole {
			q.TTFT = math.NaN()
		}
	}
}

// derive fills in what follows from the rest: statistics of the requests' latencies, and tokens a
// request. What the file says itself stands; a tool may have measured it in another way. Figures
// that are not finite are dropped, as nothing can be computed with them.
func (r *Run) derive() {
	set := func(key string, v float64) {
		if _, ok := r.Figures[key]; !ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
			r.Figures[key] = v
		}
	}
	for key, v := range r.Figures {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			delete(r.Figures, key)
		}
	}
	if n, ok := r.Figures["successful_requests"]; ok {
		if out, ok := r.Figures["total_generated_tokens"]; ok && n > 0 {
			set("output_tokens_per_request", out/n)
		}
		if in, ok := r.Figures["total_input_tokens"]; ok && n > 0 {
			set("input_tokens_per_request", in/n)
		}
	}
	r.absent()
	for _, name := range []string{nameTTFT, nameTPOT, nameITL, nameE2EL} {
		var all []float64
		for i := range r.Requests {
			all = append(all, r.Requests[i].values(name)...)
		}
		if len(all) == 0 {
			continue
		}
		summary := stats.NewSample(all).Summary()
		for _, f := range stats.Figures {
			set(f.Name+"_"+name+"_ms", f.Of(summary))
		}
	}
}

// finite is an error unless v is a number of a latency: finite and not negative.
func finite(v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return fmt.Errorf("%v is no time in seconds", v)
	}
	return nil
}
