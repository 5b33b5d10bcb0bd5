package load

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
	"kvferry/load/trace"
)

// thousand is a tokenizer of 1,000 tokens without a chat template: that of traces.py.
type thousand struct{}

func (thousand) Encode(text string, _ bool) []kvcache.Token {
	tokens := make([]kvcache.Token, len(text)/4+1)
	for i := range tokens {
		tokens[i] = kvcache.Token(i % 1000)
	}
	return tokens
}
func (thousand) Decode([]kvcache.Token, bool) string  { return "" }
func (thousand) Len() int                             { return 1000 }
func (thousand) VocabSize() int                       { return 1000 }
func (thousand) BOS() string                          { return "" }
func (thousand) Special() []kvcache.Token             { return []kvcache.Token{0, 1, 500, 999} }
func (thousand) Chat([]Message, bool) (string, error) { return "", errors.New("no template") }

// promptsOfTools are prompts that the tools' own functions made: see testdata/traces.py.
type promptsOfTools struct {
	Timed []struct {
		Chunk  int
		IDs    []int64
		Length int
		Tokens []kvcache.Token
	}
	Lines    string
	Mooncake []struct {
		Slowdown float64
		Rounds   int
		Requests []struct {
			At            float64
			Output, Bytes int
			MD5           string
		}
	}
}

func promptsOf(t *testing.T) (p promptsOfTools) {
	t.Helper()
	text, err := os.ReadFile("testdata/traces.json")
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// written is a file of that text.
func written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTimedTraceIsVLLMs: the tokens that vLLM chooses for the ids, with PYTHONHASHSEED=0.
func TestTimedTraceIsVLLMs(t *testing.T) {
	for _, c := range promptsOf(t).Timed {
		line, err := json.Marshal(map[string]any{"ts": 1500, "in": c.Length, "out": 2, "ids": c.IDs})
		if err != nil {
			t.Fatal(err)
		}
		all, l := collected(t, Spec{
			Kind: "timed_trace", Compat: CompatVLLM, Seed: 3, File: written(t, string(line)), Speed: 2, Vocab: 1000, Tokenizer: thousand{},
			TimedTrace: TimedTrace{c.Chunk, 0.001, "ts", "in", "out", "ids"},
		})
		if len(all) != 1 || all[0].At != 750*time.Millisecond || all[0].MaxTokens != 2 || !slices.Equal(all[0].Prompt, c.Tokens) {
			t.Errorf("%+v: %+v", c, all)
		}
		// vLLM seeds with 0 when it reads such a trace.
		if zero := newGenerators(0); l.Generators.Numpy.RandomSample() != zero.Numpy.RandomSample() {
			t.Error("arrivals and adapters would not be drawn from seed 0")
		}
	}
}

// TestTimedTrace: our own tokens share what the ids say, times have fractions, one that goes
// back is due with the one before it, and a line without ids has tokens of its own.
func TestTimedTrace(t *testing.T) {
	s := Spec{
		Kind: "timed_trace", Speed: 1, Vocab: 5000, TimedTrace: TimedTrace{ChunkSize: 4, SecMultiplier: 1},
		File: written(t, `{"timestamp": 0.25, "input_length": 10, "output_length": 1, "hash_ids": [1, 2, 3], "turn": 1}
{"timestamp": 61.114, "input_length": 10, "output_length": 2, "hash_ids": [1, 2]}
{"timestamp": 60, "input_length": 3, "output_length": 2}
{"timestamp": 70, "input_length": 3, "output_length": 2, "hash_ids": null}
{"timestamp": 71, "input_length": 3, "output_length": 2, "hash_ids": [1, 2]}
`),
	}
	all, _ := collected(t, s)
	var at []string
	for _, r := range all {
		at = append(at, fmt.Sprint(r.At, len(r.Prompt)))
	}
	if want := []string{"250ms 10", "1m1.114s 10", "1m1.114s 3", "1m10s 3", "1m11s 3"}; !slices.Equal(at, want) {
		t.Errorf("%v, want %v", at, want)
	}
	p := func(i int) []kvcache.Token { return all[i].Prompt }
	if !slices.Equal(p(0)[:8], p(1)[:8]) || slices.Equal(p(0)[8:], p(1)[8:]) || slices.Equal(p(2), p(3)) || !slices.Equal(p(4), p(0)[:3]) {
		t.Errorf("%v", all)
	}
	s.Requests = 2
	if all, _ := collected(t, s); len(all) != 2 {
		t.Errorf("%d requests of 2", len(all))
	}
	s.Untimed, s.Rate, s.Burstiness = true, math.Inf(1), 1
	if all, _ := collected(t, s); all[1].At != 0 {
		t.Errorf("all at once is at %v", all[1].At)
	}
}

func TestTimedTraceFaults(t *testing.T) {
	good := `{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]}` + "\n"
	for text, want := range map[string]string{
		good + `{"timestamp": 1, "input_length": 500, "output_length": 1, "hash_ids": [7]}`: "file:2: hash_ids: 1 ids of 16 tokens are 16 of the prompt's 500: say how many an id has (--timed-trace-chunk-hash-size",
		good + `{"timestamp": -1, "input_length": 1, "output_length": 1}`:                   "file:2: timestamp: -1: use 0 or more",
		good + `{"timestamp": 1e99, "input_length": 1, "output_length": 1}`:                 "file:2: timestamp: 1e+99: too large",
		good + `{"input_length": 1, "output_length": 1}`:                                    "file:2: timestamp is missing",
		good + `{"timestamp": 1, "output_length": 1}`:                                       "file:2: input_length is missing",
		good + `{"timestamp": 1, "input_length": 0.5, "output_length": 1}`:                  "file:2: input_length: 0.5: use a whole number",
		good + `{"timestamp": 1, "input_length": 1, "output_length": 1e9}`:                  "file:2: output_length: 1e+09: use a whole number",
		good + `{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}`: "file:2: hash_ids: the value: string: want a whole number",
		good + `[1]`: "file:2: the value: array: want an object",
	} {
		_, err := collect(Spec{Kind: "timed_trace", File: written(t, text), Speed: 1, Vocab: 9, TimedTrace: TimedTrace{ChunkSize: 16, SecMultiplier: 1}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	_, err := collect(Spec{Kind: "timed_trace", Compat: CompatVLLM, File: written(t, `{"timestamp": 1, "input_length": 1, "output_length": 1}`), Speed: 1, Vocab: 9, TimedTrace: TimedTrace{ChunkSize: 16, SecMultiplier: 1}})
	if err == nil || !strings.Contains(err.Error(), "hash_ids is missing: vLLM would send an empty prompt") {
		t.Error(err)
	}
	for want, s := range map[string]Spec{
		"File: none given":                      {Kind: "timed_trace", Speed: 1, Vocab: 1},
		"TimedTrace.ChunkSize: 0: use 1 to":     {Kind: "timed_trace", File: "x", Speed: 1, Vocab: 1},
		"TimedTrace.SecMultiplier: 0: use more": {Kind: "timed_trace", File: "x", Speed: 1, Vocab: 1},
		"Mooncake.Slowdown: 0: use more than 0": {Kind: "mooncake", File: "x", Vocab: 1},
		"Mooncake.Rounds: 0: use 1 to":          {Kind: "mooncake", File: "x", Vocab: 1},
		"Rate: 0: use more than 0":              {Kind: "tracelab", File: "x", Speed: 1, Vocab: 1, Untimed: true},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q in it", s, err, want)
		}
	}
}

// collect opens a load and takes all of it.
func collect(s Spec) (List, error) {
	l, err := s.Open()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return Collect(l)
}

// TestMooncakeIsSGLangs: its texts, times and rounds, of a file that is not sorted and of
// one that is.
func TestMooncakeIsSGLangs(t *testing.T) {
	p := promptsOf(t)
	lines := strings.SplitAfter(strings.TrimSpace(p.Lines)+"\n", "\n")
	sorted := lines[1] + lines[2] + "\n" + lines[3] + lines[0]
	for _, text := range []string{p.Lines, sorted} {
		for _, c := range p.Mooncake {
			all, l := collected(t, Spec{Kind: "mooncake", File: written(t, text), Vocab: 10, Mooncake: Mooncake{c.Slowdown, c.Rounds}})
			if len(all) != len(c.Requests) || l.Count != len(all) || len(l.Notes) == 0 {
				t.Fatalf("%d requests, %d said, want %d", len(all), l.Count, len(c.Requests))
			}
			for i, want := range c.Requests {
				r := all[i]
				if math.Abs(r.At.Seconds()-want.At) > 1e-9 || r.MaxTokens != want.Output || fmt.Sprintf("%x", md5.Sum([]byte(r.Text))) != want.MD5 {
					t.Errorf("%+v: request %d at %v, %d tokens, %d bytes %.40q: want %+v", c.Slowdown, i, r.At, r.MaxTokens, len(r.Text), r.Text, want)
				}
			}
		}
	}
	all, _ := collected(t, Spec{Kind: "mooncake", File: written(t, p.Lines), Requests: 2, Vocab: 1000, Tokenizer: thousand{}, Mooncake: Mooncake{1, 1}})
	if len(all) != 2 || all[0].MaxTokens != 2 || len(all[0].Prompt) == 0 || all[1].At != 2500*time.Millisecond {
		t.Errorf("the first two lines: %+v", all)
	}
}

func TestMooncakeFaults(t *testing.T) {
	good := `{"timestamp": 1, "output_length": 1, "hash_ids": [1]}` + "\n"
	for text, want := range map[string]string{
		good + `{"output_length": 1}`:                 "file:2: timestamp is missing",
		good + `{"timestamp": 1e300}`:                 "file:2: timestamp: 1e+300: too large",
		good + `{"timestamp": 1, "output_length": 0}`: "file:2: output_length: 0: use a whole number",
		good + `{"timestamp": 1, "hash_ids": {}}`:     "file:2: hash_ids: object: want a list",
	} {
		if _, err := collect(Spec{Kind: "mooncake", File: written(t, text), Vocab: 9, Mooncake: Mooncake{1, 1}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	file := written(t, good+`{"timestamp": 0, "output_length": 1}`)
	l, err := Spec{Kind: "mooncake", File: file, Vocab: 9, Mooncake: Mooncake{1, 1}}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := l.Next(); !ok || err != nil { // it was read when the load was opened
		t.Error(ok, err)
	}
	if _, _, err := l.Next(); err == nil || !strings.Contains(err.Error(), "it changed while it was read") {
		t.Error(err)
	}
}

// FuzzTraces: whatever the file, requests are in order and well-formed until the end or an
// error that names the line.
func FuzzTraces(f *testing.F) {
	f.Add([]byte(`{"timestamp": 1e3, "input_length": 7, "output_length": 1, "hash_ids": [-1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := Spec{Speed: 1, Vocab: 100, File: "f", TimedTrace: TimedTrace{ChunkSize: 16, SecMultiplier: 1}}
		source := newTimedTrace(s, trace.NewJSON("f", bytes.NewReader(text), ""))
		var last time.Duration
		for {
			r, ok, err := source.Next()
			if err != nil && !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%v does not name the line", err)
			}
			if !ok || err != nil {
				return
			}
			if r.At < last || len(r.Prompt) < 1 || r.MaxTokens < 1 {
				t.Errorf("%v after %v, %d + %d tokens", r.At, last, len(r.Prompt), r.MaxTokens)
			}
			last = r.At
		}
	})
}
