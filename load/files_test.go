package load_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvferry/load"
	"kvferry/load/loadtest"
)

// fromFile are the kinds that read a file of their own, with one of them.
var fromFile = map[string]func(t *testing.T) (load.Spec, loadtest.Bounds){
	"timed_trace": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{File: trace(t), Speed: 2, Vocab: vocab, TimedTrace: load.TimedTrace{ChunkSize: 512, SecMultiplier: 0.001}},
			loadtest.Bounds{Requests: requests, Prompt: 600, MaxTokens: 30, Vocab: vocab}
	},
	"mooncake": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{File: trace(t), Vocab: vocab, Mooncake: load.Mooncake{Slowdown: 1, Rounds: 2}},
			loadtest.Bounds{Requests: 2 * requests, MaxTokens: 30, Texts: true}
	},
	// 250 sessions of four calls, of which two are side by side.
	"weka": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{Rate: 10, Burstiness: 1, Speed: 2, MaxDelay: time.Second, Vocab: vocab, File: lines(t, "", func(i int) string {
			if i%4 != 0 {
				return ""
			}
			return fmt.Sprintf(`{"id": "s%d", "block_size": 64, "requests": [{"t": 0, "type": "n", "in": 500, "out": 7, "hash_ids": [1, 2, 3, 4, 5, 6, 7], "api_time": 1}, `+
				`{"t": 2, "type": "n", "in": 700, "out": 7, "hash_ids": [1, 2], "api_time": 1.5}, {"t": 3, "type": "n", "in": 700, "out": 7, "hash_ids": [1, 2], "api_time": 1.5}, `+
				`{"t": 9, "type": "n", "in": 800, "out": 30, "hash_ids": [1, 2], "api_time": 1}]}`, i)
		})}, loadtest.Bounds{Requests: requests, Prompt: 800, MaxTokens: 30, Vocab: vocab}
	},
	// 100 traces of ten calls, of which the first two are side by side.
	"otel": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{Speed: 1, Vocab: vocab, File: lines(t, "", func(i int) string {
			start := time.Date(2026, 2, 25, 10, 0, i/10*4+max(i%10, 1), i, time.UTC)
			return fmt.Sprintf(`{"trace_id": "t%d", "span_id": "s%d", "start_time": %q, "end_time": %q, "attributes": {"gen_ai.usage.input_tokens": %d, "gen_ai.usage.output_tokens": 20}}`,
				i/10, i, start.Format(time.RFC3339Nano), start.Add(900*time.Millisecond).Format(time.RFC3339Nano), 300+50*(i%10))
		})}, loadtest.Bounds{Requests: requests, Prompt: 800, MaxTokens: 30, Vocab: vocab, Held: true}
	},
	// 100 sessions of ten rounds.
	"tracelab": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{Speed: 1, Vocab: vocab, File: lines(t, "", func(i int) string {
			start := time.Date(2026, 2, 25, 10, 0, i/10*4+i%10, 0, time.UTC)
			return fmt.Sprintf(`{"session_id": "t%d", "input_tokens_total": %d, "output_tokens": 20, "timing_events": [{"event_type": "tool_result", "timestamp": %q}, {"event_type": "text", "timestamp": %q}]}`,
				i/10, 300+50*(i%10), start.Format(time.RFC3339Nano), start.Add(900*time.Millisecond).Format(time.RFC3339Nano))
		})}, loadtest.Bounds{Requests: requests, Prompt: 800, MaxTokens: 30, Vocab: vocab, Held: true}
	},
	// 500 conversations of two turns.
	"conversation": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{Rate: 10, Burstiness: 1, Speed: 1, Vocab: vocab, File: lines(t, "", func(i int) string {
			return fmt.Sprintf(`{"session_id": "s%d", "input_length": %d, "output_length": 30, "delay": 500}`, i/2, 300+i%300)
		})}, loadtest.Bounds{Requests: requests, Prompt: 600, MaxTokens: 30, Vocab: vocab}
	},
	"agentic-trace": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		const turn = `{"messages": [{"role": "user", "content": "How many?"}]}`
		return load.Spec{Rate: 10, Burstiness: 1, ShareGPT: load.ShareGPT{OutputLen: 5}, Vocab: vocab, File: lines(t, `{"conversations": [[`+turn+`]`, func(i int) string {
			switch {
			case i == 0:
				return "" // the first line has it
			case i == requests-1:
				return ",[" + turn + "]]}"
			}
			return ",[" + turn + "]"
		})}, loadtest.Bounds{Requests: requests, MaxTokens: 5, Texts: true}
	},
	"openai": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{Rate: 10, Burstiness: 1, Vocab: vocab, File: lines(t, "", func(i int) string {
			return fmt.Sprintf(`{"messages": [{"role": "user", "content": "What is %d?"}], "max_tokens": 30}`, i)
		})}, loadtest.Bounds{Requests: requests, MaxTokens: 30, Texts: true}
	},
	"multi-turn": func(*testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{
			Requests: requests / 4, Rate: 10, Burstiness: 1, InputLen: 500, OutputLen: 30, PrefixLen: 50, Vocab: vocab,
			MultiTurn: load.MultiTurn{MinTurns: 4, MaxTurns: 4, MaxThink: time.Second, ContextLen: 50},
		}, loadtest.Bounds{Requests: requests, Prompt: 600, MaxTokens: 30, Vocab: vocab}
	},
}

// TestMarks: a file that another system has written, with a byte order mark, CRLF and empty lines
// at the end, is the same load, whatever its format.
func TestMarks(t *testing.T) {
	n := 0
	for _, k := range load.Kinds() {
		s, _ := ofKind(t, k.Name)
		if of := fromFile[k.Name]; of != nil {
			s, _ = of(t)
		}
		if s.Kind = k.Name; s.File == "" || k.Name == load.SonnetName { // a poem is text: it is asked as it stands
			continue
		}
		file := &s.File
		if k.Name == load.SpeedBenchName { // a folder
			s.Compat, s.File = load.CompatSGLang, sample("speed_bench/throughput_1k.jsonl")
		}
		want, err := collected(s)
		if err != nil || len(want) == 0 {
			t.Errorf("%s: %d requests, %v", k.Name, len(want), err)
			continue
		}
		text, err := os.ReadFile(*file)
		if err != nil {
			t.Fatal(err)
		}
		*file = filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(*file, []byte("\ufeff"+strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\r\n")+"\r\n\r\n\r\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := collected(s)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d requests, %v; want the same %d", k.Name, len(got), err, len(want))
		}
		n++
	}
	if n < 14 {
		t.Errorf("%d kinds read a file", n)
	}
}

// collected are the first 50 requests of a load.
func collected(s load.Spec) (all load.List, err error) {
	l, err := s.Open()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	for len(all) < 50 {
		r, ok, err := l.Next()
		if !ok || err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

// lines writes a file of as many lines as there are requests, below a first one.
func lines(t *testing.T, first string, line func(i int) string) string {
	t.Helper()
	all := []string{first}
	for i := range requests {
		all = append(all, line(i))
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(strings.Join(all, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
