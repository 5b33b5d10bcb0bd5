package load

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
)

// TestTraceNumbers: milliseconds may have fractions, and whole numbers be written as
// other programs write them.
func TestTraceNumbers(t *testing.T) {
	text := `{"timestamp": 0.125, "input_length": 3.0, "output_length": 2e0, "hash_ids": [1]}
{"timestamp": 1.5e3, "input_length": 1e1, "output_length": 1, "hash_ids": [1]}
{"timestamp": 1500.0000005, "input_length": 1, "output_length": 1, "hash_ids": [1]}
`
	trace := newTrace(Spec{Speed: 1, Vocab: 1000}, strings.NewReader(text))
	for _, want := range []struct {
		at     time.Duration
		tokens int
		out    int
	}{{125 * time.Microsecond, 3, 2}, {1500 * time.Millisecond, 10, 1}, {1500 * time.Millisecond, 1, 1}} {
		r, ok, err := trace.Next()
		if err != nil || !ok || r.At != want.at || len(r.Prompt) != want.tokens || r.MaxTokens != want.out {
			t.Errorf("%v, %d + %d tokens, %v, %v: want %+v", r.At, len(r.Prompt), r.MaxTokens, ok, err, want)
		}
	}
	if n, longest, err := (Spec{Kind: Traced, File: written(t, text), Speed: 1, Vocab: 9}).Scan(); n != 3 || longest != 11 || err != nil {
		t.Errorf("%d requests, the longest %d, %v", n, longest, err)
	}
}

const goodTrace = `{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}

{"timestamp": 3000, "input_length": 1536, "output_length": 7, "hash_ids": [0, 1, 3], "more": true}
`

func TestTrace(t *testing.T) {
	trace := newTrace(Spec{Speed: 2, Vocab: 1000}, strings.NewReader(goodTrace))
	var got []Request
	for {
		r, ok, err := trace.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		got = append(got, r)
	}
	if len(got) != 2 || got[0].At != 0 || got[1].At != 1500*time.Millisecond || got[0].MaxTokens != 5 || got[1].MaxTokens != 7 {
		t.Fatalf("%+v", got)
	}
	a, b := got[0].Prompt, got[1].Prompt
	if len(a) != 1030 || len(b) != 1536 || !slices.Equal(a[:1024], b[:1024]) || slices.Equal(a[1024:], b[1024:1030]) {
		t.Error("prompts do not share exactly their first two blocks")
	}
	if h := kvcache.PrefixHashes(kvcache.Hash{}, a, 16); h[0] == h[32] {
		t.Error("different blocks have equal tokens")
	}
}

func TestTraceFaults(t *testing.T) {
	line := func(ts, in, out, ids string) string {
		return fmt.Sprintf(`{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}`, ts, in, out, ids)
	}
	good := line("5", "10", "1", "[7]")
	for text, want := range map[string]string{
		good + "\n{\"timestamp\": 6":                      "t.jsonl:2: it ends in the middle",
		good + "\n" + line("4", "10", "1", "[7]"):         "t.jsonl:2: timestamp: 4 comes after 5",
		good + "\n\n" + line("6", "513", "1", "[7]"):      "t.jsonl:3: hash_ids: 1 of them: 513 tokens are 2 blocks",
		line("6", "0", "1", "[]"):                         "t.jsonl:1: input_length: 0: use",
		line("6", "10", "0", "[1]"):                       "t.jsonl:1: output_length: 0: use",
		line("9e99", "10", "1", "[1]"):                    "t.jsonl:1: timestamp: 9e+99: too large",
		line("9e999", "10", "1", "[1]"):                   "t.jsonl:1: timestamp: number 9e999: want a number",
		line(`"5"`, "10", "1", "[1]"):                     "t.jsonl:1: timestamp: string: want a number",
		line("-0.5", "10", "1", "[1]"):                    "t.jsonl:1: timestamp: -0.5: use 0 or more",
		line("5", "1.5", "1", "[1]"):                      "t.jsonl:1: input_length: 1.5: use a whole number",
		line("5", "10", "1e10", "[1]"):                    "t.jsonl:1: output_length: 1e+10: use a whole number",
		line("5", "10", "1", "[1.5]"):                     "t.jsonl:1: hash_ids: number 1.5: want a whole number",
		line("9000000000000000000", "10", "1", "[1]"):     "t.jsonl:1: timestamp: 9e+18: too large",
		line("-1", "10", "1", "[1]"):                      "t.jsonl:1: timestamp: -1: use 0 or more",
		`{"input_length": 1}`:                             "t.jsonl:1: timestamp is missing",
		`[1]`:                                             "t.jsonl:1: ",
		good + "\n" + strings.Repeat(" ", maxTraceLine+9): "t.jsonl:2: is longer than",
	} {
		trace := newTrace(Spec{File: "t.jsonl", Speed: 1, Vocab: 1000}, strings.NewReader(text))
		var err error
		for ok := true; ok && err == nil; {
			_, ok, err = trace.Next()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v: want %q in it", text, err, want)
		}
	}
	for _, speed := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if err := (Spec{Kind: Traced, File: "t", Speed: speed, Vocab: 10}).Validate(); err == nil {
			t.Errorf("speed %v was taken", speed)
		}
	}
}

// FuzzTrace: whatever the file, requests are in order and well-formed until the
// end or an error that names the line.
func FuzzTrace(f *testing.F) {
	f.Add([]byte(goodTrace))
	f.Add([]byte(`{"timestamp": 1e3, "input_length": 1, "output_length": 1, "hash_ids": [-1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		trace := newTrace(Spec{File: "t", Speed: 1, Vocab: 100}, bytes.NewReader(text))
		var last time.Duration
		for {
			r, ok, err := trace.Next()
			if err != nil {
				if !strings.Contains(err.Error(), "trace t:") {
					t.Errorf("%v does not name the line", err)
				}
				return
			}
			if !ok {
				return
			}
			if r.At < last || len(r.Prompt) < 1 || r.MaxTokens < 1 {
				t.Errorf("%v after %v, %d + %d tokens", r.At, last, len(r.Prompt), r.MaxTokens)
			}
			last = r.At
		}
	})
}
