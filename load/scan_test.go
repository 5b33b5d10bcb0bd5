package load

import (
	"slices"
	"strings"
	"testing"

	"kvferry/kvcache"
)

// TestScan: of every load from a file the longest request is found, with what it goes on with.
func TestScan(t *testing.T) {
	for _, c := range []struct {
		spec              Spec
		requests, longest int
	}{
		{Spec{Kind: Traced, File: written(t, goodTrace), Speed: 1}, 2, 1543},
		{Spec{Kind: Traced, File: written(t, goodTrace), Speed: 1, Requests: 1}, 1, 1035},
		{Spec{Kind: "timed_trace", File: written(t, goodTrace), Speed: 1, TimedTrace: TimedTrace{ChunkSize: 512, SecMultiplier: 0.001}}, 2, 1543},
		{Spec{Kind: "mooncake", File: written(t, goodTrace), Mooncake: Mooncake{Slowdown: 1, Rounds: 1}}, 2, 0}, // texts
		{Spec{Kind: "conversation", File: "testdata/conversations.jsonl", Speed: 1, Rate: 1, Burstiness: 1}, 9, 300 + 40 + 150 + 20},
		{Spec{Kind: "weka", File: "testdata/agents/weka.jsonl", Speed: 1, Rate: 1, Burstiness: 1}, 8, 360},
		{Spec{Kind: "otel", File: "testdata/agents/otlp.jsonl", Speed: 1}, 4, 300 + 50 + 70 + 30},
	} {
		c.spec.Vocab = 100
		if n, longest, err := c.spec.Scan(); n != c.requests || longest != c.longest || err != nil {
			t.Errorf("%s: %d requests, the longest %d, %v; want %d and %d", c.spec.Kind, n, longest, err, c.requests, c.longest)
		}
	}
}

// TestEmpty: a file without requests is no load, whatever is read from it and whoever draws when
// they come.
func TestEmpty(t *testing.T) {
	for _, k := range Kinds() {
		for _, compat := range []string{"", CompatVLLM, CompatSGLang} {
			s := Spec{
				Kind: k.Name, Compat: compat, File: written(t, ""), Requests: 3, Rate: 1, Burstiness: 1, Speed: 1, InputLen: 5, OutputLen: 5, Vocab: 9, Tokenizer: thousand{},
				TimedTrace: TimedTrace{ChunkSize: 5, SecMultiplier: 1}, Mooncake: Mooncake{1, 1},
				SpecBench: Bench{OutputLen: 5}, SpeedBench: Bench{OutputLen: 5, Subset: "qualitative"}, Sonnet: Sonnet{InputLen: 5, OutputLen: 5},
			}
			if !s.Takes("dataset-path") {
				continue
			}
			l, err := s.Open()
			if err == nil {
				t.Errorf("%s %s: a load of %d", compat, k.Name, l.Count)
				_ = l.Close()
			} else if !strings.Contains(err.Error(), "file") && !strings.Contains(err.Error(), "File") {
				t.Errorf("%s %s: %v", compat, k.Name, err)
			}
		}
	}
}

// TestScanDrawsNothing: of a trace that is only counted no prompt is drawn, nor has memory of its own.
func TestScanDrawsNothing(t *testing.T) {
	trace := newTrace(Spec{Speed: 1, Vocab: 1000, counted: true}, strings.NewReader(goodTrace))
	for _, tokens := range []int{1030, 1536} {
		r, _, err := trace.Next()
		if err != nil || len(r.Prompt) != tokens || slices.ContainsFunc(r.Prompt, func(t kvcache.Token) bool { return t != 0 }) || &r.Prompt[0] != &trace.unread[0] {
			t.Errorf("%d tokens, %v: want %d that are not drawn", len(r.Prompt), err, tokens)
		}
	}
}
