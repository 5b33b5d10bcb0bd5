package load_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/load"
	"kvferry/load/loadtest"
)

// sample is a file of testdata/datasets.
func sample(name string) string { return filepath.Join("testdata/datasets", name) }

// ofKind is a load of each kind that reads more than random's fields, and what it may be.
func ofKind(t *testing.T, kind string) (load.Spec, loadtest.Bounds) {
	t.Helper()
	s := load.New()
	s.Kind, s.Requests, s.Rate, s.InputLen, s.OutputLen, s.RangeRatio, s.PrefixLen, s.Seed, s.Vocab, s.Speed = kind, requests, 100, 400, 20, 0.5, 32, 7, vocab, 2
	s.Sonnet = load.Sonnet{InputLen: 300, OutputLen: 30, PrefixLen: 100}
	s.PrefixRepetition = load.PrefixRepetition{PrefixLen: 100, SuffixLen: 30, Prefixes: 10, OutputLen: 30}
	s.SharedPrefix = load.SharedPrefix{Groups: 20, PromptsPerGroup: 50, SystemPromptLen: 200, QuestionLen: 20, OutputLen: 30, RangeRatio: 0.5, Turns: 1}
	s.Custom.OutputLen, s.SpecBench.OutputLen, s.SpeedBench = 0, 30, load.Bench{OutputLen: 30, Subset: "throughput_1k"}
	b := loadtest.Bounds{Requests: requests, Prompt: 1200, MaxTokens: 30, Vocab: vocab}
	switch kind {
	case load.Traced:
		s.File = trace(t)
	case load.ShareGPTName:
		s.File, b.Texts, b.Held, b.MaxTokens = sample("sharegpt.json"), true, true, 2048
	case load.CustomName:
		s.File, b.Texts, b.Held = sample("custom.jsonl"), true, true
	case load.SonnetName:
		s.File, s.Tokenizer, b.Held = sample("sonnets.txt"), newPieces(t, false), true
		s.Requests, b.Requests = 100, 100
	case load.BurstGPTName:
		s.File, b.MaxTokens = sample("burstgpt.csv"), 230
	case load.PrefixRepetitionName, load.SharedPrefixName:
		b.Held = true
	case load.SpecBenchName:
		s.File, b.Texts, b.Held = sample("spec_bench.jsonl"), true, true
	case load.SpeedBenchName:
		s.File, b.Texts, b.Held = sample("speed_bench"), true, true
	case load.LongBenchName:
		s.File, b.Texts, b.Held, b.Requests = sample("longbench.jsonl"), true, true, 8
	}
	return s, b
}

// TestKindsOfTools: so does every load in the tools' own draws, as text and as tokens.
func TestKindsOfTools(t *testing.T) {
	pieces := newPieces(t, true)
	for _, c := range []struct {
		kind, compat string
		change       func(s *load.Spec, b *loadtest.Bounds)
	}{
		{load.Random, load.CompatVLLM, nil},
		{load.RandomIDs, load.CompatVLLM, nil},
		{load.Random, load.CompatSGLang, func(s *load.Spec, _ *loadtest.Bounds) { s.PrefixLen = 0 }},
		{load.RandomIDs, load.CompatSGLang, func(s *load.Spec, _ *loadtest.Bounds) { s.PrefixLen = 0 }},
		{load.Random, load.CompatVLLM, func(s *load.Spec, _ *loadtest.Bounds) { s.Tokenizer, s.InputLen, s.Requests = pieces, 80, 100 }},
		{load.Random, load.CompatSGLang, func(s *load.Spec, b *loadtest.Bounds) {
			s.PrefixLen, s.Tokenizer, s.File, s.Requests, b.Held = 0, pieces, sample("sharegpt.json"), 30, true
		}},
		{load.ShareGPTName, load.CompatVLLM, func(s *load.Spec, b *loadtest.Bounds) { s.Tokenizer, b.Texts = pieces, false }},
		{load.ShareGPTName, load.CompatSGLang, func(s *load.Spec, b *loadtest.Bounds) { s.Requests = 20 }},
		{load.CustomName, load.CompatSGLang, func(s *load.Spec, b *loadtest.Bounds) {
			s.File, s.Tokenizer, s.Requests, s.ChatTemplate, b.Texts, b.MaxTokens = sample("conversations.jsonl"), pieces, 10, true, false, 300
		}},
		{load.CustomName, load.CompatVLLM, func(s *load.Spec, b *loadtest.Bounds) {
			s.Tokenizer, s.Custom.OutputLen, b.Texts = pieces, 9, false
		}},
		{load.SpecBenchName, "", func(s *load.Spec, b *loadtest.Bounds) { s.Tokenizer, b.Texts = pieces, false }},
		{load.SpeedBenchName, load.CompatSGLang, func(s *load.Spec, b *loadtest.Bounds) {
			s.File, s.Tokenizer, b.Texts = sample("speed_bench/throughput_1k.jsonl"), pieces, false
		}},
		{load.SonnetName, "", func(s *load.Spec, _ *loadtest.Bounds) { s.Sonnet.Legacy, s.Chat = true, true }},
		{load.BurstGPTName, "", func(s *load.Spec, _ *loadtest.Bounds) { s.Tokenizer, s.Requests = pieces, 10 }},
		{load.PrefixRepetitionName, "", func(s *load.Spec, _ *loadtest.Bounds) { s.Tokenizer, s.Requests = pieces, 50 }},
		{load.SharedPrefixName, "", func(s *load.Spec, b *loadtest.Bounds) {
			s.Tokenizer, s.SharedPrefix.Groups, s.SharedPrefix.ZipfAlpha, s.Requests = pieces, 2, 1.2, 100
		}},
		{load.SharedPrefixName, "", func(s *load.Spec, b *loadtest.Bounds) { s.SharedPrefix.Turns, b.Requests = 3, 3*b.Requests }},
	} {
		s, b := ofKind(t, c.kind)
		s.Compat = c.compat
		if c.change != nil {
			was := b.Requests
			if c.change(&s, &b); b.Requests == was {
				b.Requests = s.Requests
			}
		}
		if l, err := s.Open(); err != nil || l.Count*max(s.SharedPrefix.Turns, 1) != b.Requests {
			t.Errorf("%s %s: %v, %d conversations, want those of %d requests", c.compat, c.kind, err, l.Count, b.Requests)
		}
		t.Run(fmt.Sprintf("%s %s text %t file %s", c.compat, c.kind, s.Tokenizer != nil, filepath.Base(s.File)), func(t *testing.T) {
			loadtest.TestSource(t, s.Open, b)
		})
	}
}

// TestPublishedSGLang: the published commands, which name no file, give the tokens that their
// reports have, and say what they were filled with.
func TestPublishedSGLang(t *testing.T) {
	for _, c := range []struct {
		n, in, out    int
		ratio         float64
		input, output int // "Total input tokens", "Total generated tokens"
	}{
		{200, 64, 16, 0, 5661, 1653},          // Qwen2.5-0.5B
		{256, 1000, 1000, 1, 256000, 256000},  // DeepSeek-V3, concurrency 32
		{128, 1000, 1000, 1, 128000, 128000},  // DeepSeek-V3, concurrency 16
		{320, 3500, 1500, 1, 1120000, 480000}, // Qwen3-Coder-480B
	} {
		l, err := load.Spec{
			Kind: load.Random, Compat: load.CompatSGLang, Requests: c.n, InputLen: c.in, OutputLen: c.out, RangeRatio: c.ratio, Seed: 1, Vocab: 151936, Rate: math.Inf(1),
		}.Open()
		if err != nil {
			t.Fatal(err)
		}
		input, output := 0, 0
		for {
			r, ok, err := l.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			input, output = input+len(r.Prompt), output+r.MaxTokens
		}
		if input != c.input || output != c.output {
			t.Errorf("%d prompts: %d and %d tokens, want %d and %d", c.n, input, output, c.input, c.output)
		}
		if len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "tokens those of its random-ids") {
			t.Errorf("notes %q", l.Notes)
		}
	}
}

// TestNotes: what is not quite what was asked for is said.
func TestNotes(t *testing.T) {
	for _, c := range []struct {
		kind, compat string
		change       func(s *load.Spec)
		want         string
	}{
		{load.ShareGPTName, "", nil, "lengths in the dataset are words"},
		{load.ShareGPTName, "", nil, "the other 978 requests repeat them"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.NoOversample = true }, "so there are 22 requests and not 1000"},
		{load.ShareGPTName, load.CompatSGLang, nil, "so there are 36 requests and not 1000"},
		{load.Random, load.CompatSGLang, func(s *load.Spec) { s.File, s.PrefixLen, s.Tokenizer = sample("sharegpt.json"), 0, newPieces(t, false) }, "so there are 43 requests and not 1000"},
		{load.CustomName, "", nil, "without a chat template, and their lengths are unknown"},
		{load.CustomName, "", nil, "the other 988 requests repeat them"},
		{load.CustomName, "", func(s *load.Spec) { s.NoOversample = true }, "so there are 12 requests and not 1000"},
		{load.BurstGPTName, "", nil, "some are asked more than once"},
		{load.PrefixRepetitionName, "", func(s *load.Spec) { s.Requests = 1003 }, "the other 3 of 1003 are not asked"},
		{load.SpeedBenchName, load.CompatSGLang, func(s *load.Spec) { s.File = sample("speed_bench/throughput_1k.jsonl") }, "has 30 questions, so they are asked again"},
		{load.LongBenchName, "", nil, "so there are 8 requests and not 1000"},
		{load.SharedPrefixName, "", func(s *load.Spec) { s.Requests = 99 }, "1000 requests: groups x prompts x turns"},
	} {
		s, _ := ofKind(t, c.kind)
		s.Compat = c.compat
		if c.change != nil {
			c.change(&s)
		}
		l, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(l.Notes, "\n"), c.want) {
			t.Errorf("%s %s: %q, want %q in it", c.compat, c.kind, l.Notes, c.want)
		}
		_ = l.Close()
	}
}

// TestSharedPrefixTurns: a conversation's turns follow one another, and all of a group begin
// with its system prompt.
func TestSharedPrefixTurns(t *testing.T) {
	s, _ := ofKind(t, load.SharedPrefixName)
	s.SharedPrefix.Turns, s.Tokenizer = 2, newPieces(t, false)
	s.SharedPrefix.Groups, s.SharedPrefix.PromptsPerGroup = 3, 4
	l, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	all, err := load.Collect(l)
	if err != nil || len(all) != 24 {
		t.Fatalf("%d requests, %v", len(all), err)
	}
	systems := map[string]string{}
	for i, r := range all {
		if i%2 == 1 {
			if !r.Continues || len(r.After) != 1 || r.After[0] != i-1 || r.Group != all[i-1].Group || strings.Contains(r.Text, "\n\n") {
				t.Errorf("turn %d: %+v", i, r)
			}
			continue
		}
		system, _, ok := strings.Cut(r.Text, "\n\n")
		if had := systems[r.Group]; !ok || had != "" && had != system || r.Continues {
			t.Errorf("request %d of %s begins with %q, others with %q", i, r.Group, system, had)
		}
		systems[r.Group] = system
		if r.Routing != "" {
			t.Errorf("request %d has the routing key %q, which nobody asked for", i, r.Routing)
		}
	}
	if len(systems) != 3 {
		t.Errorf("%d groups", len(systems))
	}
	// A key for each group, of all its turns.
	s.SharedPrefix.RoutingKey = true
	if l, err = s.Open(); err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for i, want := range all {
		r, _, err := l.Next()
		if had := keys[r.Routing]; err != nil || r.Routing == "" || had != "" && had != r.Group || r.Text != want.Text {
			t.Errorf("request %d of %s, %v: routing key %q, which is %s's", i, r.Group, err, r.Routing, had)
		}
		keys[r.Routing] = r.Group
	}
	if len(keys) != 3 {
		t.Errorf("routing keys %v", keys)
	}
}

// TestDatasetFaults: what cannot be read or asked is said by file, line and field, or by field.
func TestDatasetFaults(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "f.jsonl")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	const header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
	for _, c := range []struct {
		kind, compat string
		change       func(s *load.Spec)
		want         string
	}{
		{load.ShareGPTName, "", func(s *load.Spec) { s.File = "" }, "File: none given"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.File = "no/such" }, "no/such"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.File = file("[{\"conversations\": [{\"value\": 5}]}]") }, "f.jsonl:1: conversations.value: number"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.File = file("[\n{\"conversations\": [{}, {\"value\": \"b\"}]}]") }, "f.jsonl:2: conversations[0].value is missing"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.File = file("[]") }, "it is no JSON list of conversations"},
		{load.ShareGPTName, load.CompatSGLang, func(s *load.Spec) { s.File = file("[]") }, "it is no JSON list of conversations"},
		{
			load.ShareGPTName, "",
			func(s *load.Spec) { s.File = file(`{"prompt": "a"}` + "\n" + `{"prompt": "b"}` + "\n") },
			"none of its 2 records has any (--dataset-name custom reads JSON lines with a prompt each)",
		},
		{load.ShareGPTName, "", func(s *load.Spec) { s.File = file(`[{"conversations": []}]`) }, "of 0 conversations none"},
		{load.ShareGPTName, load.CompatSGLang, func(s *load.Spec) { s.ShareGPT.OutputLen = 3 }, "ShareGPT.OutputLen: 3: use 4 to"},
		{load.ShareGPTName, load.CompatSGLang, func(s *load.Spec) { s.ChatTemplate = true }, "ChatTemplate: true: the template is the tokenizer's"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.ShareGPT.ContextLen = 9 }, "ShareGPT.ContextLen: 9: only sglang"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.PromptSuffix = "x" }, "PromptSuffix"},
		{load.ShareGPTName, load.CompatSGLang, func(s *load.Spec) { s.DisableShuffle = true }, "DisableShuffle: true: only vllm bench serve has it"},
		{load.SpeedBenchName, load.CompatSGLang, func(s *load.Spec) { s.NoOversample = true }, "NoOversample: true: only vllm bench serve has it"},
		{load.ShareGPTName, "", func(s *load.Spec) { s.Seed = 1 << 32 }, "Seed: 4294967296: use 0 to 4294967295"},
		{load.CustomName, "", func(s *load.Spec) { s.File = file("{\"prompt\": \"a\"}") }, "f.jsonl:1: output_tokens is missing"},
		{load.CustomName, "", func(s *load.Spec) { s.File = file("{\"prompt\": \"a\", \"output_tokens\": 0.5}") }, "f.jsonl:1: output_tokens: 0.5: use 1 to"},
		{load.CustomName, "", func(s *load.Spec) { s.File = file("{\"prompt\": \"a\", \"output_tokens\": 1}\n{\"output_tokens\": 1}") }, "f.jsonl:2: prompt is missing"},
		{load.CustomName, "", func(s *load.Spec) { s.File = file("") }, "it has no prompts"},
		{load.CustomName, "", func(s *load.Spec) { s.Requests = -1 }, "Requests: -1: use 1 or more, 0 for all"},
		{load.CustomName, load.CompatSGLang, func(s *load.Spec) { s.File = file("{\"conversations\": 5}") }, "f.jsonl:1: conversations"},
		{load.SonnetName, "", func(s *load.Spec) { s.Tokenizer = nil }, "give --tokenizer"},
		{load.SonnetName, "", func(s *load.Spec) { s.File = file("") }, "it has no lines"},
		{load.SonnetName, "", func(s *load.Spec) { s.Sonnet.InputLen = 20 }, "--sonnet-input-len 20: use more than"},
		{load.SonnetName, "", func(s *load.Spec) { s.Sonnet.InputLen, s.Sonnet.PrefixLen = 100, 300 }, "use a larger --sonnet-input-len"},
		{load.SonnetName, "", func(s *load.Spec) { s.Sonnet.Legacy, s.Sonnet.PrefixLen = true, 10 }, "--sonnet-prefix-len 10: use more than"},
		{load.BurstGPTName, "", func(s *load.Spec) { s.File = file("a,b\n") }, "f.jsonl:1: there is no column Model"},
		{load.BurstGPTName, "", func(s *load.Spec) { s.File = file(header + "0,GPT-4,5,x,5,a\n") }, "f.jsonl:2: Response tokens: \"x\": want a whole number"},
		{load.BurstGPTName, "", func(s *load.Spec) { s.File = file(header + "0,GPT-4,99999999,1,5,a\n") }, "f.jsonl:2: Request tokens: 99999999: use 16777216 at most"},
		{load.BurstGPTName, "", func(s *load.Spec) { s.File = file(header + "0,ChatGPT,5,5,5,a\n0,GPT-4,0,5,5,a\n") }, "f.jsonl:3: Request tokens: 0: a prompt has 1 or more"},
		{load.BurstGPTName, "", func(s *load.Spec) { s.File = file(header + "0,GPT-4,5,0,5,a\n") }, "it has no row of model GPT-4"},
		{load.BurstGPTName, "", func(s *load.Spec) { s.Vocab = 0 }, "Vocab: 0: use 1 to"},
		{load.PrefixRepetitionName, "", func(s *load.Spec) { s.Requests = 9 }, "Requests: 9: use as many as there are prefixes, 10"},
		{load.PrefixRepetitionName, "", func(s *load.Spec) { s.PrefixRepetition = load.PrefixRepetition{Prefixes: 1, OutputLen: 1} }, "prompts would be empty"},
		{load.PrefixRepetitionName, "", func(s *load.Spec) { s.Requests = 1 << 30 }, "tokens, which are all in memory: use 536870912 at most"},
		{load.SpecBenchName, "", func(s *load.Spec) { s.SpecBench.Category = "art" }, "spec_bench.jsonl\": it has no question of category \"art\""},
		{load.SpecBenchName, "", func(s *load.Spec) { s.File = file("\n") }, "it has no questions"},
		{load.SpecBenchName, "", func(s *load.Spec) { s.File = file("{\"turns\": []}") }, "f.jsonl:1: turns[0] is missing"},
		{load.SpeedBenchName, "", func(s *load.Spec) { s.SpeedBench.Subset = "all" }, "SpeedBench.Subset: \"all\": use qualitative, throughput_1k"},
		{load.SpeedBenchName, "", func(s *load.Spec) { s.SpeedBench.Subset = "qualitative" }, "qualitative.jsonl\": there is no such file"},
		{load.SpeedBenchName, load.CompatSGLang, func(s *load.Spec) { s.SpeedBench.Category = "coding" }, "SpeedBench.Category: \"coding\": use low_entropy, mixed or high_entropy"},
		{load.LongBenchName, "", func(s *load.Spec) { s.File = "x.parquet" }, "Parquet is not read here"},
		{load.LongBenchName, "", func(s *load.Spec) { s.File = file("{\"context\": \"a\", \"question\": 5}") }, "f.jsonl:1: question is missing"},
		{load.LongBenchName, "", func(s *load.Spec) { s.ShareGPT.ContextLen = 5 }, "of 8 questions none is short enough for --sharegpt-context-len"},
		{load.CustomName, "", func(s *load.Spec) { s.File = file("{\"prompt\": \"\", \"output_tokens\": 1}") }, "f.jsonl:1: prompt: empty"},
		{load.SharedPrefixName, "", func(s *load.Spec) { s.SharedPrefix = load.SharedPrefix{RangeRatio: 2, ZipfAlpha: -1} }, "SharedPrefix.RangeRatio: 2: use 0 to 1"},
		{load.SharedPrefixName, "", func(s *load.Spec) { s.SharedPrefix.ZipfAlpha = -1 }, "SharedPrefix.ZipfAlpha: -1: use more than 0"},
		{load.SharedPrefixName, "", func(s *load.Spec) { s.SharedPrefix.Groups, s.SharedPrefix.PromptsPerGroup = 1<<20, 1<<10 }, "the load has 21684551680 tokens, which are all in memory"},
		{load.SharedPrefixName, "", func(s *load.Spec) { s.TokenIDs, s.SharedPrefix.Turns, s.Tokenizer = true, 2, newPieces(t, false) }, "TokenIDs: true: a conversation of several turns is text"},
		{load.Random, load.CompatVLLM, func(s *load.Spec) { s.RangeRatio = 1 }, "RangeRatio: 1: use 0 to below 1"},
		{load.Random, load.CompatVLLM, func(s *load.Spec) { s.OutputRatio = new(float64); *s.OutputRatio = -1 }, "OutputRatio: -1: use 0 to below 1"},
		{load.Random, load.CompatVLLM, func(s *load.Spec) { s.InputLen, s.PrefixLen, s.RangeRatio = 1, 0, 0.9 }, "InputLen: 1: prompts could be empty"},
		{load.Random, load.CompatVLLM, func(s *load.Spec) { s.File = "x" }, "only sglang.bench_serving's random"},
		{load.Random, load.CompatSGLang, func(s *load.Spec) { s.RangeRatio = 1.1 }, "RangeRatio: 1.1: use 0 to 1"},
		{load.Random, load.CompatSGLang, func(s *load.Spec) { s.OutputRatio = new(float64) }, "OutputRatio: 0: sglang.bench_serving has one ratio"},
		{load.Random, load.CompatSGLang, nil, "PrefixLen: 32: sglang.bench_serving has no prefix"},
		{load.Random, load.CompatSGLang, func(s *load.Spec) { s.File, s.PrefixLen = "x", 0 }, "cut to lengths in tokens: give --tokenizer"},
		{load.Random, "", func(s *load.Spec) { s.OutputRatio = new(float64) }, "OutputRatio: 0: only vllm"},
	} {
		s, _ := ofKind(t, c.kind)
		s.Compat = c.compat
		if c.change != nil {
			c.change(&s)
		}
		if _, err := s.Open(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v: want %q in it", c.compat, c.kind, err, c.want)
		}
	}
	// A tool's name for a kind is enough, however it is written.
	for _, name := range []string{"prefix-repetition", "generated_shared_prefix", "random_ids"} {
		s, _ := ofKind(t, load.PrefixRepetitionName)
		s.Kind = name
		l, err := s.Open()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = l.Close()
	}
}

// FuzzDataset: whatever the file, requests are well-formed until the end or an error that
// names the file.
func FuzzDataset(f *testing.F) {
	for _, name := range []string{"sharegpt.json", "custom.jsonl", "conversations.jsonl", "burstgpt.csv"} {
		text, err := os.ReadFile(sample(name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text[:min(len(text), 1000)]) // longer ones take minutes to be made smaller
	}
	f.Add([]byte(`[{"conversations": [{"value": "a b c d"}, {"value": "a b c d"}]}, {"conversation": null}]`))
	f.Add([]byte(`{"prompt": "a", "output_tokens": 1e9}`))
	name := filepath.Join(f.TempDir(), "f.jsonl")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{load.ShareGPTName, load.CustomName, load.BurstGPTName} {
			for _, compat := range []string{load.CompatVLLM, load.CompatSGLang} {
				s, _ := ofKind(&testing.T{}, kind)
				s.File, s.Compat, s.Requests, s.Vocab = name, compat, 20, 100
				l, err := s.Open()
				if err != nil {
					if !strings.Contains(err.Error(), "f.jsonl") {
						t.Errorf("%s %s: %v does not name the file", compat, kind, err)
					}
					continue
				}
				for range 21 {
					r, ok, err := l.Next()
					if err != nil {
						t.Errorf("%s %s: %v", compat, kind, err)
					}
					if !ok {
						break
					}
					if r.MaxTokens < 1 || kind == load.BurstGPTName && len(r.Prompt) < 1 {
						t.Errorf("%s %s: %d + %d tokens", compat, kind, len(r.Prompt), r.MaxTokens)
					}
					if len(r.Prompt) > 1<<16 {
						break // long ones are slow
					}
				}
				_ = l.Close()
			}
		}
	})
}
