package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"kvferry/bench/client"
)

// Limits of what is worth a word. Below them the figures are what they seem; a note at every
// run would be read by nobody.
const (
	lateSend = 5.0 // ms: half a decode step; a client that is later than this shows in its own figures
	enough   = 100 // values of which a P99 is one of them, and not drawn out of the greatest two
	toldLate = 0.1 // of the latency, that requests waited for room on average
)

// notes say in words what is odd about a run, faults first: what a reader would take for a
// property of the server.
func (r *Run) notes(m *Metrics) (faults, notes []string) {
	faults, notes = slices.Clone(r.Faults), slices.Clone(r.Notes)
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	sent := len(r.Records) - m.Skipped
	if r.Interrupted {
		note("the run was interrupted: %d of %d requests had been sent, and %d of these were cut off, which count neither as successful nor as failed", sent, max(r.NumPrompts, sent), m.Interrupted)
	}
	switch {
	case sent == 0:
		fault("no request was sent")
	case m.Successful == 0 && m.Interrupted < sent:
		if tool, n := r.toolCounts(); n > 0 {
			fault("no request succeeded by kvferry's rules: summary.json, table.md and report.html have no latencies for that reason alone. The figures in %s's layout are of %d answers that its client counts as successful", tool, n)
		} else {
			fault("no request succeeded: every latency of this report is 0 for that reason alone")
		}
	}
	for _, f := range r.failures() {
		reason := shortened(f.reason, 300)
		if f.short {
			fault("%d of %d requests ended short, the first is request %d: %s", f.count, sent, f.first, reason)
		} else if f.count == 1 {
			fault("request %d of %d failed: %s", f.first, sent, reason)
		} else {
			fault("%d of %d requests failed, the first is request %d: %s", f.count, sent, f.first, reason)
		}
	}
	if m.Skipped > 0 {
		note("%d requests were never sent, because one that they follow failed", m.Skipped)
	}
	if n := r.count(func(rec *client.Record) bool { return rec.Silent }); n > 0 {
		note("%d of the failed requests were answered with status 200 and not one token", n)
	}
	r.toolNotes(m, note)
	r.streamNotes(m, note)
	r.tokenNotes(m, note)
	r.lateNotes(m, note)
	if n := m.Latencies[nameTTFT].Values; n > 0 && n < enough {
		if n == 1 {
			note("1 request is too few for a P99: it is the only value")
		} else {
			note("%d requests are too few for a P99: it lies between the greatest two values", n)
		}
	}
	return faults, notes
}

// count is how many records are so.
func (r *Run) count(is func(*client.Record) bool) int {
	n := 0
	for i := range r.Records {
		if is(&r.Records[i]) {
			n++
		}
	}
	return n
}

// A failure is a reason with the requests that failed for it.
type failure struct {
	reason       string
	count, first int
	short        bool // answered, with fewer tokens than were asked for
}

// failures are the reasons of failed requests, the most frequent first. Digits in a message
// do not make another reason of it: ports, times and request ids differ in each, and the list would
// be as long as that of the requests. The text is that of the first.
func (r *Run) failures() []failure {
	by := map[string]*failure{}
	for i := range r.Records {
		rec := &r.Records[i]
		reason := rec.Failure()
		if reason == "" || rec.Skipped || rec.Status == client.StatusInterrupted {
			continue
		}
		key := strings.Map(func(c rune) rune {
			if c >= '0' && c <= '9' {
				return -1
			}
			return c
		}, reason)
		if by[key] == nil {
			by[key] = &failure{reason: reason, first: rec.Index}
			if f := by[key]; rec.Fault == client.FaultShort {
				f.short, f.reason = true, short(rec)
			}
		}
		by[key].count++
	}
	list := make([]failure, 0, len(by))
	for _, key := range slices.Sorted(maps.Keys(by)) {
		list = append(list, *by[key])
	}
	slices.SortStableFunc(list, func(a, b failure) int { return cmp.Or(b.count-a.count, a.first-b.first) })
	return list
}

// short says of an answer with fewer tokens than were asked for how many it had, and what the
// server gave as the reason: with "length" the model has not ended by itself, so a bound of the server's
// is likely.
func short(rec *client.Record) string {
	s := fmt.Sprintf("%d tokens, %d were asked for", rec.Output(), rec.Wanted())
	switch rec.FinishReason {
	case "":
	case "length":
		s += " (finish_reason length: a cap of the server's own?)"
	default:
		s += fmt.Sprintf(" (finish_reason %s)", rec.FinishReason)
	}
	return s
}

// toolNotes say where the tool whose report this is counts other requests as successful.
func (r *Run) toolNotes(m *Metrics, note func(string, ...any)) {
	tool, counted := r.toolCounts()
	if counted > 0 {
		note("%d of the failed requests are successes to %s's client, and so in its report and its file", counted, tool)
	}
	broke := r.count(func(rec *client.Record) bool {
		return rec.BrokeOff() && (tool == "vLLM" && rec.VLLMCounts() || tool == "SGLang" && rec.SGLangCounts(r.Backend))
	})
	if broke > 0 {
		note("%s's client would count %d successful and %d failed: an answer that broke off in a 200 is a success to it. Here %d of these failed, in its report and its file too", tool, m.Successful+counted+broke, m.Failed-counted-broke, broke)
	}
}

// toolCounts is the tool whose report this is, and how many of the failed requests its client counts
// as successful.
func (r *Run) toolCounts() (tool string, counted int) {
	tool = "vLLM"
	if r.Compat == "sglang" {
		tool = "SGLang"
	}
	for i := range r.Records {
		rec := &r.Records[i]
		seen := vllmSeen(rec, r.Tokenizer != "")
		if tool == "SGLang" {
			seen = sglangSeen(rec, r.Backend)
		}
		if seen.ok && rec.Failure() != "" {
			counted++
		}
	}
	return tool, counted
}

// lateText is from when on it matters that the first chunk was not the first token, in seconds.
const lateText = 1e-3

// streamNotes say how the answers were streamed. A server that sends an answer in one piece has
// the best ITL of all, 0, and the worst TTFT; one that sends tokens in pairs doubles its ITL and
// halves the number of gaps, and its TPOT does not change. Neither is slower or faster by that.
func (r *Run) streamNotes(m *Metrics, note func(string, ...any)) {
	long, whole, early := 0, 0, 0
	brief := 0              // of whole, those that may have been one chunk of a stream
	silent, later := 0, 0.0 // answers that began without text, and how long before it
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Failure() != "" {
			continue
		}
		if wait := rec.FirstToken - rec.TokenTimes[0]; wait > 0 {
			silent++
			later += wait
		}
		tokens := rec.Output()
		if tokens > 1 {
			long++
			if n := len(rec.TokenTimes); n-len(rec.NoText) <= 1 && (n == 0 || rec.TokenTimes[n-1]-rec.TokenTimes[0] < rec.E2EL()/2) {
				whole++ // else what came had no text: calls of tools
				if tokens <= client.MostInChunk {
					brief++
				}
			}
		}
		if tokens < rec.Wanted() {
			early++
		}
	}
	if silent > 0 && later/float64(silent) > lateText {
		note("%d of %d answers began with a chunk without text, a role or the like: TTFT is to the first text, reasoning or call of a tool, %.1f ms later on average than the first chunk, to which vLLM's layout has its TTFT", silent, m.Successful, 1e3*later/float64(silent))
	}
	switch {
	case long > 0 && whole == long && brief == whole:
		note("each answer came in one chunk, %.1f tokens on average: there is no ITL, TTFT is E2EL, and answers that short do not tell whether the server streams", float64(m.GeneratedTokens)/float64(max(m.Successful, 1)))
	case long > 0 && whole == long:
		note("the server did not stream: each answer came in one piece, so TTFT is E2EL, and there is no ITL and no TPOT to speak of")
	case whole > 0:
		note("%d of %d answers of several tokens came in one piece: their TTFT is their E2EL", whole, long)
	case m.Chunks > 0 && r.severalTokens():
		note("chunks carry several tokens, %.2f on average: ITL is the gap between chunks; ITL per token is that gap shared among the tokens that the chunk brought", float64(m.GeneratedTokens)/float64(m.Chunks))
	}
	for _, what := range []string{client.NoteNoDone, client.NoteOpen, client.NoteHalfRune, client.NoteHalfEnd} {
		if n := m.Metrics.Notes[what]; n > 0 {
			note("%d requests: %s", n, what)
		}
	}
	if n := m.Metrics.Notes[client.NoteNoAnswer]; n > 0 {
		note("%d requests went on with a conversation without the answers in it: the server gives no token ids of them, and there is no tokenizer to make ids of their text (--tokenizer)", n)
	}
	if n := m.Metrics.Notes[client.NoteLong]; n > 0 {
		i := slices.IndexFunc(r.Records, func(rec client.Record) bool { return slices.Contains(rec.Notes, client.NoteLong) })
		rec := &r.Records[i]
		note("%d of %d answers were longer than asked for, the first is request %d: %d tokens, %d were asked for. They count as successful", n, m.Successful, rec.Index, rec.Output(), rec.Wanted())
	}
	if early > 0 {
		note("%d of %d answers ended before max_tokens (EOS or a stop word): two servers that end at other tokens did not do the same work", early, m.Successful)
	}
}

// tokenNotes say who counted the tokens. Throughput and TPOT are worth as much as the count: the
// same text is 200 tokens to one tokenizer and 498 to another.
func (r *Run) tokenNotes(m *Metrics, note func(string, ...any)) {
	if n := m.CountedBy[client.CountChunks]; n > 0 {
		note("token counts of %d requests are unconfirmed: neither the server nor a tokenizer (--tokenizer) counted, a chunk is taken for a token", n)
	}
	if n := m.CountedBy[client.CountTokenizer]; n > 0 {
		note("output tokens of %d requests were counted by the client's tokenizer, of the text: the server said none", n)
	}
	if n := r.count(func(rec *client.Record) bool { return rec.Unconfirmed && rec.Failure() == "" }); n > 0 {
		note("prompt lengths of %d requests are unconfirmed: they are the words that were sent, and nobody counted tokens (--tokenizer does)", n)
	}
	wrong, first := 0, -1
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Failure() == "" && rec.PromptTokens > 0 && rec.Input() != rec.PromptTokens {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	if wrong > 0 {
		rec := &r.Records[first]
		note("the server counted other prompt lengths than were sent in %d of %d requests, the first is request %d: %d tokens, %d sent", wrong, m.Successful, rec.Index, rec.Input(), rec.PromptTokens)
	}
}

// lateNotes say what the client itself did to the figures: coordinated omission where it waited
// for a slow server before it sent, and its own slowness where it did not get to sending or
// reading in time.
func (r *Run) lateNotes(m *Metrics, note func(string, ...any)) {
	if m.P99SendDelayMS > lateSend {
		note("the client was late: P99 of sent - intended is %.1f ms (most %.1f), so the load was not quite the one that was asked for; what its users would have waited is the latency from the due time", m.P99SendDelayMS, m.MaxSendDelayMS)
	}
	if m.P99ReadDelayMS > lateSend {
		note("the client was late to read: at the 99th percentile of the requests a piece of the answer waited %.1f ms for it, which is in the latencies: give it more CPU", m.P99ReadDelayMS)
	}
	if r.bounded() {
		sent, due, queue := m.Latencies[nameE2EL], m.Latencies[nameE2ELDue], m.Latencies[nameQueue]
		if queue.Mean > toldLate*sent.Mean && !math.IsInf(r.rate(), 1) {
			note("requests waited for room, %.1f ms on average: from when it was due, a request took %.1f ms (P99 %.1f), from when it was sent %.1f (P99 %.1f). With a bound on concurrency the load slows down with the server; the latencies from the due time are what an open load would see at least",
				queue.Mean, due.Mean, due.P99, sent.Mean, sent.P99)
		}
	}
}

// disturbed is whether the machine did something else beside the run.
func (r *Run) disturbed() bool { return r.Disturbance.Disturbed() }
