package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kvferry/load"
)

// registerDatasets adds the options of single datasets, with the names and the defaults of the
// tools that have them.
func (f *loadFlags) registerDatasets(fs *pflag.FlagSet) {
	l := &f.spec
	fs.BoolVar(&l.DisableShuffle, "disable-shuffle", false, "ask in the order of the file (vLLM's datasets)")
	fs.BoolVar(&l.NoOversample, "no-oversample", false, "ask fewer where the file has fewer than --num-prompts (vLLM's datasets)")
	fs.BoolVar(&l.ChatTemplate, "apply-chat-template", false, "put the chat template around prompts (SGLang's datasets)")
	fs.StringVar(&l.PromptSuffix, "prompt-suffix", "", "put this behind each prompt (SGLang's datasets)")
	fs.IntVar(&l.ShareGPT.OutputLen, "sharegpt-output-len", 0, "tokens wanted of each answer (default: as many as the file's has)")
	fs.IntVar(&l.ShareGPT.ContextLen, "sharegpt-context-len", 0, "leave out what is longer, prompt and answer together (SGLang)")
	fs.IntVar(&l.Custom.OutputLen, "custom-output-len", 256, "tokens wanted of each answer; -1: as many as the line says")
	Signed(fs, "custom-output-len")
	fs.BoolVar(&l.Custom.SkipChatTemplate, "skip-chat-template", false, "send prompts as they are in the file")
	fs.IntVar(&l.Sonnet.InputLen, "sonnet-input-len", 550, "tokens of a prompt, about")
	fs.IntVar(&l.Sonnet.OutputLen, "sonnet-output-len", 150, "output tokens")
	fs.IntVar(&l.Sonnet.PrefixLen, "sonnet-prefix-len", 200, "tokens that all prompts begin with, about")
	fs.BoolVar(&l.Sonnet.Legacy, "sonnet-legacy", false, "as vLLM's client of 2024: prompts may be longer")
	fs.IntVar(&l.PrefixRepetition.PrefixLen, "prefix-repetition-prefix-len", 256, "tokens of a prefix")
	fs.IntVar(&l.PrefixRepetition.SuffixLen, "prefix-repetition-suffix-len", 256, "tokens after it")
	fs.IntVar(&l.PrefixRepetition.Prefixes, "prefix-repetition-num-prefixes", 10, "how many prefixes there are")
	fs.IntVar(&l.PrefixRepetition.OutputLen, "prefix-repetition-output-len", 128, "output tokens")
	g := &l.SharedPrefix
	fs.IntVar(&g.Groups, "gsp-num-groups", 64, "system prompts")
	fs.IntVar(&g.PromptsPerGroup, "gsp-prompts-per-group", 16, "questions to each system prompt")
	fs.IntVar(&g.SystemPromptLen, "gsp-system-prompt-len", 2048, "tokens of a system prompt")
	fs.IntVar(&g.QuestionLen, "gsp-question-len", 128, "tokens of a question")
	fs.IntVar(&g.OutputLen, "gsp-output-len", 256, "output tokens")
	fs.Float64Var(&g.RangeRatio, "gsp-range-ratio", 1, "lengths are uniform from length x this to length")
	fs.IntVar(&g.Turns, "gsp-num-turns", 1, "questions of a conversation")
	fs.BoolVar(&g.Ordered, "gsp-ordered", false, "group by group; shuffled otherwise")
	fs.StringVar(&f.groups, "gsp-group-distribution", "uniform", "how many requests a group has: uniform (as many each) or zipf (in proportion to 1/rank^alpha)")
	fs.Float64Var(&g.ZipfAlpha, "gsp-zipf-alpha", 0, "alpha of zipf")
	fs.BoolVar(&g.RoutingKey, "gsp-send-routing-key", false, "say by the header X-SMG-Routing-Key which requests have the same system prompt")
	fs.Bool("gsp-fast-prepare", false, "nothing: lengths are counted as requests are sent")
	_ = fs.MarkHidden("gsp-fast-prepare")
	fs.IntVar(&l.SpecBench.OutputLen, "spec-bench-output-len", 256, "output tokens")
	fs.StringVar(&l.SpecBench.Category, "spec-bench-category", "", "of the questions (default: all)")
	fs.IntVar(&l.SpeedBench.OutputLen, "speed-bench-output-len", 4096, "output tokens (default with --compat sglang: 512)")
	fs.StringVar(&l.SpeedBench.Category, "speed-bench-category", "", "of the questions (default: all)")
	fs.StringVar(&l.SpeedBench.Subset, "speed-bench-dataset-subset", "qualitative", "which file of vLLM's folder")
	fs.Float64Var(&l.Sharing.HitRate, "prefix-hit-rate", 0, "have random prompts begin alike, so that this share of their tokens can come from a prefix cache")
	fs.IntVar(&l.Sharing.BlockSize, "prefix-block-size", 16, "tokens of a block of that cache")
	fs.IntVar(&l.Sharing.Groups, "prefix-groups", 1, "how many beginnings there are, which prompts take in turn")
	m := &l.MultiTurn
	fs.IntVar(&m.MinTurns, "min-turns", 3, "turns of a conversation that is drawn, at least")
	fs.IntVar(&m.MaxTurns, "max-turns", 8, "turns of a conversation that is drawn, at most")
	fs.DurationVar(&m.MinThink, "min-think", 0, "from an answer to the user's next turn, at least; 0: at once")
	fs.DurationVar(&m.MaxThink, "max-think", 5*time.Second, "from an answer to the user's next turn, at most; 0: at once")
	fs.IntVar(&m.ContextLen, "context-len", 0, "tokens of a context that each drawn conversation begins with")
	fs.IntVar(&l.Conversations.MaxTurns, "conversation-max-turns", 0, "turns of a conversation of a file, at most (default: all)")
	fs.IntVar(&l.Conversations.Offset, "conversation-offset", 0, "conversations of the file to begin behind")
	fs.IntVar(&l.Conversations.OutputLen, "conversation-output-len", 0, "tokens of an answer whose length the file does not say (default: as the recorded one)")
	alias(fs, "agentic-max-turns", "conversation-max-turns")
	alias(fs, "dataset-offset", "conversation-offset")
	fs.DurationVar(&l.MaxDelay, "max-delay", 0, "longest time to keep a turn or an agent's call back after what it follows; 0: as recorded")
	fs.BoolVar(&l.Recorded, "recorded-answers", false, "go on with the answers that were recorded, not with the server's")
	t := &l.TimedTrace
	fs.IntVar(&t.ChunkSize, "timed-trace-chunk-hash-size", 16, "tokens that a hash id stands for; 512 in Mooncake's traces")
	fs.Float64Var(&t.SecMultiplier, "timed-trace-sec-multiplier", 1, "makes seconds of a timestamp; 0.001 in Mooncake's traces")
	fs.StringVar(&t.Timestamp, "timed-trace-label-timestamp", "", "the trace's field that says when a request comes (default timestamp)")
	fs.StringVar(&t.InputLength, "timed-trace-label-input-length", "", "the trace's field with the tokens of a prompt (default input_length)")
	fs.StringVar(&t.OutputLength, "timed-trace-label-output-length", "", "the trace's field with the tokens of an answer (default output_length)")
	fs.StringVar(&t.HashIDs, "timed-trace-label-hash-ids", "", "the trace's field with the ids of a prompt's parts (default hash_ids)")
	fs.Float64Var(&l.Mooncake.Slowdown, "mooncake-slowdown-factor", 1, "times of the mooncake dataset are multiplied by it")
	fs.IntVar(&l.Mooncake.Rounds, "mooncake-num-rounds", 1, "requests for each line of the mooncake dataset, all at once")
}

// datasetNames are the flags that set the options of single datasets.
var datasetNames = map[string]string{
	"OutputRatio": "--random-range-ratio", "DisableShuffle": "--disable-shuffle", "NoOversample": "--no-oversample", "TokenIDs": "--tokenize-prompt",
	"PromptSuffix": "--prompt-suffix", "ChatTemplate": "--apply-chat-template", "Chat": "--backend",
	"ShareGPT.OutputLen": "--sharegpt-output-len", "ShareGPT.ContextLen": "--sharegpt-context-len",
	"Custom.OutputLen": "--custom-output-len", "Custom.SkipChatTemplate": "--skip-chat-template",
	"Sonnet.InputLen": "--sonnet-input-len", "Sonnet.OutputLen": "--sonnet-output-len", "Sonnet.PrefixLen": "--sonnet-prefix-len", "Sonnet.Legacy": "--sonnet-legacy",
	"PrefixRepetition.PrefixLen": "--prefix-repetition-prefix-len", "PrefixRepetition.SuffixLen": "--prefix-repetition-suffix-len",
	"PrefixRepetition.Prefixes": "--prefix-repetition-num-prefixes", "PrefixRepetition.OutputLen": "--prefix-repetition-output-len",
	"SharedPrefix.Groups": "--gsp-num-groups", "SharedPrefix.PromptsPerGroup": "--gsp-prompts-per-group", "SharedPrefix.SystemPromptLen": "--gsp-system-prompt-len",
	"SharedPrefix.QuestionLen": "--gsp-question-len", "SharedPrefix.OutputLen": "--gsp-output-len", "SharedPrefix.RangeRatio": "--gsp-range-ratio",
	"SharedPrefix.Turns": "--gsp-num-turns", "SharedPrefix.Ordered": "--gsp-ordered", "SharedPrefix.ZipfAlpha": "--gsp-zipf-alpha",
	"SharedPrefix.RoutingKey": "--gsp-send-routing-key",
	"SpecBench.OutputLen":     "--spec-bench-output-len", "SpecBench.Category": "--spec-bench-category",
	"SpeedBench.OutputLen": "--speed-bench-output-len", "SpeedBench.Category": "--speed-bench-category", "SpeedBench.Subset": "--speed-bench-dataset-subset",
	"Sharing.HitRate": "--prefix-hit-rate", "Sharing.BlockSize": "--prefix-block-size", "Sharing.Groups": "--prefix-groups",
	"MultiTurn.MinTurns": "--min-turns", "MultiTurn.MaxTurns": "--max-turns", "MultiTurn.MinThink": "--min-think", "MultiTurn.MaxThink": "--max-think", "MultiTurn.ContextLen": "--context-len",
	"Conversations.MaxTurns": "--conversation-max-turns", "Conversations.Offset": "--conversation-offset", "Conversations.OutputLen": "--conversation-output-len", "MaxDelay": "--max-delay", "Recorded": "--recorded-answers",
	"TimedTrace.ChunkSize": "--timed-trace-chunk-hash-size", "TimedTrace.SecMultiplier": "--timed-trace-sec-multiplier",
	"TimedTrace.Timestamp": "--timed-trace-label-timestamp", "TimedTrace.InputLength": "--timed-trace-label-input-length",
	"TimedTrace.OutputLength": "--timed-trace-label-output-length", "TimedTrace.HashIDs": "--timed-trace-label-hash-ids",
	"Mooncake.Slowdown": "--mooncake-slowdown-factor", "Mooncake.Rounds": "--mooncake-num-rounds",
}

// A ratioFlag is --random-range-ratio: a number, or vLLM's {"input": 0.2, "output": 0.5}.
type ratioFlag struct{ spec *load.Spec }

func (r ratioFlag) Type() string { return "ratio" }

func (r ratioFlag) String() string {
	switch {
	case r.spec == nil:
		return "0"
	case r.spec.OutputRatio != nil:
		return fmt.Sprintf(`{"input":%v,"output":%v}`, r.spec.RangeRatio, *r.spec.OutputRatio)
	}
	return strconv.FormatFloat(r.spec.RangeRatio, 'g', -1, 64)
}

func (r ratioFlag) Set(text string) error {
	r.spec.OutputRatio = nil
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		var both struct{ Input, Output *float64 }
		if err := json.Unmarshal([]byte(text), &both); err != nil || both.Input == nil || both.Output == nil {
			return fmt.Errorf(`write a number, or {"input": 0.2, "output": 0.5}`)
		}
		r.spec.RangeRatio, r.spec.OutputRatio = *both.Input, both.Output
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf(`write a number, or {"input": 0.2, "output": 0.5}`)
	}
	r.spec.RangeRatio = v
	return nil
}
