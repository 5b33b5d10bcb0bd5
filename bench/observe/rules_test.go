package observe

import (
	"slices"
	"strings"
	"testing"

	"kvferry/bench/client"
)

// agreed are two accounts of one run that may both be true.
func agreed() (ServerFigures, ClientFigures) {
	f := ServerFigures{
		Server: "vLLM", Counts: map[string]float64{
			requests: 1000, inputTokens: 500000, outputTokens: 100000, prefixQueries: 500000, prefixHits: 250000, kvBytes: 10e9,
		},
		Latencies: map[string]latency{
			ttft: {Values: 1000, MeanMS: 100}, itl: {Values: 99000, MeanMS: 10}, e2EL: {Values: 1000, MeanMS: 1090},
		},
	}
	c := ClientFigures{
		Sent: 1000, Answered: 1000, InputTokens: 500000, OutputTokens: 100000, CountedBy: client.CountUsage,
		TTFTMS: 103, ITLMS: 10, TPOTMS: 10, E2ELMS: 1093, WholeMS: 1094, WantedHitRate: 0.5,
		NICs: nicTraffic{"eth0": {Received: 11e9, Transmitted: 1e9}}, Here: true,
	}
	return f, c
}

// TestRules: each rule is silent on accounts that agree and within its tolerance, speaks of
// one change beyond it, and no other rule speaks of that one.
func TestRules(t *testing.T) {
	latency := func(key string, ms float64) func(*ServerFigures, *ClientFigures) {
		return func(f *ServerFigures, _ *ClientFigures) { f.Latencies[key] = latency{Values: 1000, MeanMS: ms} }
	}
	count := func(key string, n float64) func(*ServerFigures, *ClientFigures) {
		return func(f *ServerFigures, _ *ClientFigures) { f.Counts[key] = n }
	}
	ours := func(set func(*ClientFigures)) func(*ServerFigures, *ClientFigures) {
		return func(_ *ServerFigures, c *ClientFigures) { set(c) }
	}
	for name, c := range map[string]struct {
		change func(*ServerFigures, *ClientFigures)
		rule   string // that speaks; "" for none
		text   string
	}{
		"agreed":           {func(*ServerFigures, *ClientFigures) {}, "", ""},
		"went back":        {func(f *ServerFigures, _ *ClientFigures) { f.Back = []string{"vllm:prompt_tokens_total"} }, "went back", "vllm:prompt_tokens_total went back"},
		"warm-ups counted": {count(requests, 1009), "", ""},
		"others":           {count(requests, 1500), "others use the server", "it counted 1500 requests, and 1000 were sent"},
		"n answers each":   {func(f *ServerFigures, c *ClientFigures) { count(requests, 2000)(f, c); c.Choices = 2000 }, "", ""},
		"others beside n":  {func(f *ServerFigures, c *ClientFigures) { count(requests, 2500)(f, c); c.Choices = 2000 }, "others use the server", "2500 requests, and 1000 were sent for 2000 answers (n)"},
		"others, and their means": {func(f *ServerFigures, c *ClientFigures) {
			count(requests, 1500)(f, c)
			latency(ttft, 900)(f, c)
			latency(e2EL, 9000)(f, c)
		}, "others use the server", "not compared"},
		"requests still to be counted": {count(requests, 991), "", ""},
		"fewer requests":               {count(requests, 500), "fewer requests", "500 requests, and 1000 were answered"},
		"no count of requests":         {func(f *ServerFigures, _ *ClientFigures) { delete(f.Counts, requests) }, "", ""},
		"tokens to be counted":         {count(outputTokens, 99100), "", ""},
		"more tokens":                  {count(outputTokens, 120000), "", ""},
		"fewer tokens":                 {count(outputTokens, 90000), "fewer output tokens", "90000 output tokens in its metrics and 100000 in its answers"},
		"fewer by the tokenizer": {func(f *ServerFigures, c *ClientFigures) {
			count(outputTokens, 90000)(f, c)
			c.CountedBy = client.CountTokenizer
		}, "fewer output tokens", "by its tokenizer"},
		"fewer prompt tokens":          {count(inputTokens, 250000), "fewer input tokens", "another tokenizer"},
		"TTFT as long":                 {latency(ttft, 104.9), "", ""},
		"TTFT longer":                  {latency(ttft, 106), "server's TTFT longer", "106.0 ms, is longer than the client's, 103.0 ms"},
		"E2EL as long":                 {latency(e2EL, 1105), "", ""},
		"E2EL longer":                  {latency(e2EL, 1107), "server's E2EL longer", "1107.0 ms, is longer than the client waited"},
		"E2EL longer, of failures too": {func(f *ServerFigures, c *ClientFigures) { latency(e2EL, 1200)(f, c); c.Answered = 990 }, "", ""},
		"timings longer":               {ours(func(c *ClientFigures) { c.Timed = timed{Answers: 9, Longer: 2} }), "answers' timings longer", "2 of 9 answers"},
		"timings in order":             {ours(func(c *ClientFigures) { c.Timed = timed{Answers: 9, BusyMS: 1000} }), "", ""},
		"wider gaps":                   {ours(func(c *ClientFigures) { c.ITLMS = 40 }), "client's gaps wider", "4.0 times the server's"},
		"gaps as they come":            {ours(func(c *ClientFigures) { c.ITLMS = 14 }), "", ""},
		"hit rate near":                {count(prefixHits, 230000), "", ""},
		"hit rate":                     {count(prefixHits, 100000), "prefix hit rate", "20.0 % of the prompt tokens in its prefix cache, and 50.0 % were wanted"},
		"no hit rate wanted":           {ours(func(c *ClientFigures) { c.WantedHitRate = 0 }), "", ""},
		"KV beside the NICs":           {count(kvBytes, 20e9), "KV more than the NICs carried", "20.00 GB of KV, and this machine's NICs carried 11.00 GB"},
		"KV elsewhere":                 {func(f *ServerFigures, c *ClientFigures) { count(kvBytes, 20e9)(f, c); c.Here = false }, "", ""},
		"no NICs known":                {func(f *ServerFigures, c *ClientFigures) { count(kvBytes, 20e9)(f, c); c.NICs = nil }, "", ""},
		"nothing answered":             {ours(func(c *ClientFigures) { *c = ClientFigures{Sent: 1000} }), "", ""},
	} {
		f, mine := agreed()
		c.change(&f, &mine)
		words := JudgeServer(f, mine)
		switch {
		case c.rule == "" && len(words) > 0:
			t.Errorf("%s: said %+v", name, words)
		case c.rule != "" && (len(words) != 1 || words[0].Rule != c.rule || !strings.Contains(words[0].Text, c.text)):
			t.Errorf("%s: said %+v, want %s", name, words, c.rule)
		}
	}
	if words := JudgeServer(ServerFigures{}, ClientFigures{}); len(words) > 0 {
		t.Errorf("of nothing: %+v", words)
	}
}

// TestOf: failed requests were sent, skipped ones were not, and one count that is not the
// server's is enough to say so.
func TestOf(t *testing.T) {
	all := records(t)
	guessed := *all[0]
	guessed.CountedBy, guessed.OutputTokens = client.CountTokenizer, 17
	base := ClientFiguresOf(slices.Values(all))
	quick, slow := *all[0], *all[0]
	quick.Timings, slow.Timings = &client.Timings{E2E: quick.Finish - quick.Sent}, &client.Timings{Prefill: 1, Decode: 2}
	if c := ClientFiguresOf(slices.Values([]*client.Record{&quick, &slow, all[1]})); c.Timed.Answers != 2 || c.Timed.Longer != 1 || c.Timed.PrefillMS != 500 || c.Timed.DecodeMS != 1000 {
		t.Errorf("%+v", c.Timed)
	}
	c := ClientFiguresOf(slices.Values(append(slices.Clone(all),
		&client.Record{Sent: 1, Status: client.StatusFailed, Error: "refused"}, &client.Record{Skipped: true}, &guessed)))
	if c.Sent != base.Sent+2 || c.Answered != base.Answered+1 || c.OutputTokens != base.OutputTokens+17 || c.CountedBy != client.CountTokenizer {
		t.Errorf("%+v, then %+v", base, c)
	}
	if c.WholeMS < c.E2ELMS || c.E2ELMS < c.TTFTMS || c.TPOTMS == 0 {
		t.Errorf("%+v", c)
	}
	if c := ClientFiguresOf(slices.Values([]*client.Record{})); c.Sent != 0 || c.TTFTMS != 0 || c.CountedBy != "" {
		t.Errorf("of nothing: %+v", c)
	}
}
