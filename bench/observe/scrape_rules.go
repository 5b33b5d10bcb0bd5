package observe

import (
	"fmt"
	"math"

	"kvferry/bench/client"
)

// Tolerances. A server counts a request when it is over for it, which may be a moment
// after the client has its answer and the counters are read; a mean may be rounded, and the
// two clocks are read at two places.
const (
	countTolerance = 0.01 // of counts
	meanTolerance  = 0.01 // of means, and
	meanSlackMS    = 1.0  // so much more
	hitTolerance   = 0.05 // of hit rates: five points of a hundred
)

// A ServerRule compares the two accounts. It returns what cannot be true of both, or "".
type ServerRule func(ServerFigures, ClientFigures) string

// ServerRules are all, in the order of their words.
var ServerRules = []struct {
	Name string
	Rule ServerRule
}{
	{"went back", wentBack},
	{"others use the server", othersUse},
	{"fewer requests", fewerRequests},
	{"fewer output tokens", fewerOutputTokens},
	{"fewer input tokens", fewerInputTokens},
	{"server's TTFT longer", ttftLonger},
	{"server's E2EL longer", e2elLonger},
	{"answers' timings longer", timingsLonger},
	{"client's gaps wider", widerGaps},
	{"prefix hit rate", hitRate},
	{"KV more than the NICs carried", kvMoreThanNICs},
}

// A word is a rule's complaint about the two accounts.
type word struct {
	Rule string `json:"rule"`
	Text string `json:"text"`
}

// JudgeServer asks all rules.
func JudgeServer(f ServerFigures, c ClientFigures) (words []word) {
	for _, r := range ServerRules {
		if text := r.Rule(f, c); text != "" {
			words = append(words, word{r.Name, text})
		}
	}
	return words
}

// same reports whether the server counted the client's requests and about no others, so
// that means are of one and the same set. A server that does not count requests is taken
// for ours alone: most are.
func same(f ServerFigures, c ClientFigures) bool {
	n, ok := f.Counts[requests]
	return !ok || math.Abs(n-float64(c.Sent)) <= countTolerance*float64(c.Sent)
}

// most is how many requests a server may count of the client's: vLLM and kvferry count each of the n
// answers to one.
func most(c ClientFigures) int { return max(c.Sent, c.Choices) }

// longer reports whether the mean a is longer than b, by more than the tolerance.
func longer(a, b float64) bool { return a > b*(1+meanTolerance)+meanSlackMS }

// fewer reports whether a server counted less than the client.
func fewer(server float64, ours int) bool {
	return server < float64(ours)*(1-countTolerance)-1
}

// wentBack: a counter only grows in the life of a server.
func wentBack(f ServerFigures, _ ClientFigures) string {
	if len(f.Back) == 0 {
		return ""
	}
	return fmt.Sprintf("the server was restarted in the run, or another one answers for it: %s went back, and is left out", f.Back[0])
}

// othersUse: a server that counts more requests than were sent has others too. That is no
// fault, but its means are of all of them.
func othersUse(f ServerFigures, c ClientFigures) string {
	n, ok := f.Counts[requests]
	if !ok || n <= float64(most(c))*(1+countTolerance) {
		return ""
	}
	if f.Servers > 1 {
		return fmt.Sprintf("others use these %d servers, or several of them count a request (prefill and decode do): they counted %.0f requests, and %d were sent%s; their means are of all of them, and not compared", f.Servers, n, c.Sent, several(c))
	}
	return fmt.Sprintf("others use this server: it counted %.0f requests, and %d were sent%s; its means are of all of them, and not compared", n, c.Sent, several(c))
}

// several says how many answers the requests were for, where that is more than one each.
func several(c ClientFigures) string {
	if c.Choices <= c.Sent {
		return ""
	}
	return fmt.Sprintf(" for %d answers (n)", c.Choices)
}

// fewerRequests: an answer that came was one of the server's. A gateway counts what it
// lets through, and a server with several processes may show one of them.
func fewerRequests(f ServerFigures, c ClientFigures) string {
	n, ok := f.Counts[requests]
	if !ok || !fewer(n, c.Answered) {
		return ""
	}
	return fmt.Sprintf("the server counted %.0f requests, and %d were answered: its metrics are not of all that serves here", n, c.Answered)
}

// fewerOutputTokens: what was delivered was generated. More is possible: of requests that
// were given up.
func fewerOutputTokens(f ServerFigures, c ClientFigures) string {
	n, ok := f.Counts[outputTokens]
	if !ok || !fewer(n, c.OutputTokens) {
		return ""
	}
	if c.CountedBy != client.CountUsage {
		return fmt.Sprintf("the server counted %.0f output tokens, and the client %d, by its %s: the client's count is wrong, or the server's are not of all that serves here", n, c.OutputTokens, c.CountedBy)
	}
	return fmt.Sprintf("the server counted %.0f output tokens in its metrics and %d in its answers", n, c.OutputTokens)
}

// fewerInputTokens: the same of prompts.
func fewerInputTokens(f ServerFigures, c ClientFigures) string {
	n, ok := f.Counts[inputTokens]
	if !ok || !fewer(n, c.InputTokens) {
		return ""
	}
	return fmt.Sprintf("the server counted %.0f prompt tokens, and the client %d: one of them counts by another tokenizer, or leaves out what was cached", n, c.InputTokens)
}

// ttftLonger: a token is at the server before it is at the client, and the request at the
// client before it is at the server, so the client's time to it is longer.
func ttftLonger(f ServerFigures, c ClientFigures) string {
	l := f.Latencies[ttft]
	if l.Values == 0 || c.Answered == 0 || !same(f, c) || !longer(l.MeanMS, c.TTFTMS) {
		return ""
	}
	return fmt.Sprintf("the server's mean TTFT, %.1f ms, is longer than the client's, %.1f ms: what the client takes for the first token is a chunk without one, such as a chat's role", l.MeanMS, c.TTFTMS)
}

// e2elLonger: a request is at the server for a part of the time that the client waits for
// its end.
func e2elLonger(f ServerFigures, c ClientFigures) string {
	l := f.Latencies[e2EL]
	if l.Values == 0 || c.Answered == 0 || c.Answered != c.Sent || !same(f, c) || !longer(l.MeanMS, c.WholeMS) {
		return ""
	}
	return fmt.Sprintf("the server's mean E2EL, %.1f ms, is longer than the client waited, %.1f ms: they are not of the same requests, or the server's begins before it has the request", l.MeanMS, c.WholeMS)
}

// timingsLonger: the same of single answers, by what they say themselves.
func timingsLonger(_ ServerFigures, c ClientFigures) string {
	if c.Timed.Longer == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d answers say that the server took longer for them than the client waited", c.Timed.Longer, c.Timed.Answers)
}

// widerGaps: where the gaps between chunks are half again as wide as those between tokens,
// chunks carry several tokens, and the client's itl is not the time between tokens.
func widerGaps(f ServerFigures, c ClientFigures) string {
	l := f.Latencies[itl]
	if l.Values == 0 || c.ITLMS == 0 || !same(f, c) || c.ITLMS <= 1.5*l.MeanMS+meanSlackMS {
		return ""
	}
	return fmt.Sprintf("the client's mean gap between chunks, %.2f ms, is %.1f times the server's between tokens, %.2f ms: chunks carry several tokens, or are held on the way", c.ITLMS, c.ITLMS/l.MeanMS, l.MeanMS)
}

// hitRate: the load was drawn for a prefix hit rate, and the server had another.
func hitRate(f ServerFigures, c ClientFigures) string {
	rate, ok := f.HitRate()
	if !ok || c.WantedHitRate == 0 || math.Abs(rate-c.WantedHitRate) <= hitTolerance {
		return ""
	}
	return fmt.Sprintf("the server found %.1f %% of the prompt tokens in its prefix cache, and %.1f %% were wanted", 100*rate, 100*c.WantedHitRate)
}

// kvMoreThanNICs: what transfers moved between machines went through their NICs, with
// headers and all else that this machine sent. Within a machine it need not.
func kvMoreThanNICs(f ServerFigures, c ClientFigures) string {
	kv, most := f.Counts[kvBytes], c.NICs.Most()
	if !c.Here || len(c.NICs) == 0 || kv <= float64(most)*(1+countTolerance) {
		return ""
	}
	return fmt.Sprintf("the server moved %s of KV, and this machine's NICs carried %s: it went through memory (cma, CUDA IPC, NVLink), or some of it went nowhere", size(kv), size(float64(most)))
}

// size is an amount of bytes for a reader.
func size(bytes float64) string {
	for _, u := range []struct {
		name string
		unit float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if bytes >= u.unit {
			return fmt.Sprintf("%.2f %s", bytes/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", bytes)
}
