package tooldraws

import (
	"math"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// Limits of what a load may have.
const (
	maxLen  = 1 << 24 // of a length, in tokens: ten times what any model takes
	maxHeld = 1 << 29 // tokens of a load that is in memory as a whole: 2 GB
)

// Each check looks at the fields that its dataset reads, and no others: a Spec may have what is
// of another one, and package load says which of a command line's flags those are. Every fault
// names its field, and what to use instead.

// checkVLLMRandom checks what vLLM's random and random-ids read. Their ratio is a part on
// either side of a length, where SGLang's is the least part of it.
func checkVLLMRandom(s Spec, bad *config.Faults) {
	checkLengths(s, bad)
	bad.Refuse(!(s.RangeRatio >= 0 && s.RangeRatio < 1), "RangeRatio", s.RangeRatio, "use 0 to below 1: lengths are drawn from length x (1 -+ this)")
	if r := s.OutputRatio; r != nil && !(*r >= 0 && *r < 1) {
		bad.Add("OutputRatio", *r, "use 0 to below 1: lengths are drawn from length x (1 -+ this)")
	}
	if s.File != "" {
		bad.Add("File", s.File, "only sglang.bench_serving's random takes its prompts from a file: leave --dataset-path out, or name the kind of the file")
	}
	if low, _ := vllmRange(max(0, s.InputLen-s.special()), s.RangeRatio); len(*bad) == 0 && int64(s.PrefixLen)+low < 1 {
		bad.Add("InputLen", s.InputLen, "prompts could be empty: use more, or a smaller --random-range-ratio")
	}
}

// checkSGLangRandom checks what SGLang's random and random-ids read.
func checkSGLangRandom(s Spec, bad *config.Faults) {
	checkLengths(s, bad)
	checkSGLangRatio(bad, "RangeRatio", s.RangeRatio)
	if s.OutputRatio != nil {
		bad.Add("OutputRatio", *s.OutputRatio, "sglang.bench_serving has one ratio for both: leave it out, or use --compat vllm")
	}
	if s.PrefixLen != 0 {
		bad.Add("PrefixLen", s.PrefixLen, "sglang.bench_serving has no prefix: use 0, or --compat vllm")
	}
	if s.File != "" && s.Tokenizer == nil {
		bad.Add("Tokenizer", nil, "prompts of a file are cut to lengths in tokens: give --tokenizer, or leave --dataset-path out")
	}
}

// checkSGLangRatio checks a range ratio in SGLang's meaning.
func checkSGLangRatio(bad *config.Faults, field string, ratio float64) {
	bad.Refuse(!(ratio >= 0 && ratio <= 1), field, ratio, "use 0 to 1: lengths are drawn from length x this to length")
}

// checkLengths checks what the random draws of both tools read.
func checkLengths(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	checkRequests(s, bad)
	config.Between(bad, "InputLen", s.InputLen, 1, maxLen)
	config.Between(bad, "OutputLen", s.OutputLen, 1, maxLen)
	config.Between(bad, "PrefixLen", s.PrefixLen, 0, maxLen)
	checkVocab(s, bad)
}

// checkVLLMConversations and checkSGLangConversations check what is read for files of
// conversations.
func checkVLLMConversations(s Spec, bad *config.Faults) {
	checkConversations(s, bad, 1)
	const fix = "only sglang.bench_serving has it: use --compat sglang"
	bad.Refuse(s.ShareGPT.ContextLen != 0, "ShareGPT.ContextLen", s.ShareGPT.ContextLen, fix)
	bad.Refuse(s.PromptSuffix != "", "PromptSuffix", s.PromptSuffix, fix)
	bad.Refuse(s.ChatTemplate, "ChatTemplate", s.ChatTemplate, fix)
}

func checkSGLangConversations(s Spec, bad *config.Faults) {
	checkNoVLLM(s, bad)
	checkConversations(s, bad, 4) // what the tool takes
	config.Between(bad, "ShareGPT.ContextLen", s.ShareGPT.ContextLen, 0, maxLen)
	bad.Refuse(s.ChatTemplate && s.Tokenizer == nil, "ChatTemplate", s.ChatTemplate, "the template is the tokenizer's: give --tokenizer")
}

// checkNoVLLM refuses what SGLang's datasets of a file do not have.
func checkNoVLLM(s Spec, bad *config.Faults) {
	const fix = "only vllm bench serve has it: leave it out, or use --compat vllm"
	bad.Refuse(s.DisableShuffle, "DisableShuffle", s.DisableShuffle, fix)
	bad.Refuse(s.NoOversample, "NoOversample", s.NoOversample, fix)
}

func checkConversations(s Spec, bad *config.Faults, least int) {
	checkRequests(s, bad)
	checkFile(s, bad, "name the file of conversations (--dataset-path)")
	checkOutput(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, least)
}

func checkCustom(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the file of prompts (--dataset-path)")
	bad.Refuse(s.Requests < 0, "Requests", s.Requests, "use 1 or more, 0 for all")
	checkOutput(bad, "Custom.OutputLen", s.Custom.OutputLen, 1)
}

// checkSpecBench and the two that follow check what is read for files of questions.
func checkSpecBench(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name Spec-Bench's question.jsonl (--dataset-path)")
	checkQuestions(s, bad, "SpecBench.OutputLen", s.SpecBench.OutputLen)
}

func checkVLLMSpeedBench(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the folder that SPEED-Bench's script has prepared (--dataset-path)")
	checkQuestions(s, bad, "SpeedBench.OutputLen", s.SpeedBench.OutputLen)
	bad.Refuse(!slices.Contains(speedBenchSubsets, s.SpeedBench.Subset), "SpeedBench.Subset", s.SpeedBench.Subset, "use %s", config.Or(speedBenchSubsets))
}

func checkSGLangSpeedBench(s Spec, bad *config.Faults) {
	checkNoVLLM(s, bad)
	checkFile(s, bad, "name SPEED-Bench's file (--dataset-path)")
	checkQuestions(s, bad, "SpeedBench.OutputLen", s.SpeedBench.OutputLen)
	checkRequests(s, bad)
	if c := s.SpeedBench.Category; c != "" && !slices.Contains(speedBenchCategories, c) {
		bad.Add("SpeedBench.Category", c, "use %s, or leave it out for all", config.Or(speedBenchCategories))
	}
}

// What SPEED-Bench has: vLLM's files of it, and SGLang's categories.
var (
	speedBenchSubsets    = []string{"qualitative", "throughput_1k", "throughput_2k", "throughput_8k", "throughput_16k", "throughput_32k"}
	speedBenchCategories = []string{"low_entropy", "mixed", "high_entropy"}
)

func checkQuestions(s Spec, bad *config.Faults, field string, output int) {
	bad.Refuse(s.Requests < 0, "Requests", s.Requests, "use 1 or more, 0 for all")
	config.Between(bad, field, output, 1, maxLen)
}

func checkLongBench(s Spec, bad *config.Faults) {
	checkRequests(s, bad)
	checkFile(s, bad, "name LongBench v2's file, of JSON (--dataset-path)")
	if strings.HasSuffix(s.File, ".parquet") {
		bad.Add("File", s.File, "Parquet is not read here: write the rows as JSON lines, as pandas' to_json(orient=\"records\", lines=True) does")
	}
	checkOutput(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, 1)
	config.Between(bad, "ShareGPT.ContextLen", s.ShareGPT.ContextLen, 0, maxLen)
}

func checkSonnet(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the file of the poem (--dataset-path)")
	checkRequests(s, bad)
	config.Between(bad, "Sonnet.InputLen", s.Sonnet.InputLen, 1, maxLen)
	config.Between(bad, "Sonnet.OutputLen", s.Sonnet.OutputLen, 1, maxLen)
	config.Between(bad, "Sonnet.PrefixLen", s.Sonnet.PrefixLen, 0, maxLen)
	bad.Refuse(s.Tokenizer == nil, "Tokenizer", nil, "lines are counted in tokens, and prompts have a chat template: give --tokenizer")
}

// checkPrefixRepetition wants at least a request a prefix, as there would be none of some.
func checkPrefixRepetition(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	o := s.PrefixRepetition
	config.Between(bad, "PrefixRepetition.PrefixLen", o.PrefixLen, 0, maxLen)
	config.Between(bad, "PrefixRepetition.SuffixLen", o.SuffixLen, 0, maxLen)
	config.Between(bad, "PrefixRepetition.OutputLen", o.OutputLen, 1, maxLen)
	config.Between(bad, "PrefixRepetition.Prefixes", o.Prefixes, 1, maxLen)
	bad.Refuse(o.PrefixLen == 0 && o.SuffixLen == 0, "PrefixRepetition.SuffixLen", o.SuffixLen, "prompts would be empty: use more")
	bad.Refuse(s.Requests < max(o.Prefixes, 1), "Requests", s.Requests, "use as many as there are prefixes, %d, or more", o.Prefixes)
	checkHeld(bad, "Requests", s.Requests, float64(s.Requests)*float64(o.SuffixLen)+float64(o.Prefixes)*float64(o.PrefixLen))
	checkVocab(s, bad)
}

// checkSharedPrefix bounds each number before their product: it must not overflow.
func checkSharedPrefix(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	checkVocab(s, bad)
	o := s.SharedPrefix
	const most = 1 << 20 // of each; checkHeld bounds all of them together
	config.Between(bad, "SharedPrefix.Groups", o.Groups, 1, most)
	config.Between(bad, "SharedPrefix.PromptsPerGroup", o.PromptsPerGroup, 1, most)
	config.Between(bad, "SharedPrefix.SystemPromptLen", o.SystemPromptLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.QuestionLen", o.QuestionLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.OutputLen", o.OutputLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.Turns", o.Turns, 1, 1<<16)
	checkSGLangRatio(bad, "SharedPrefix.RangeRatio", o.RangeRatio)
	bad.Refuse(!(o.ZipfAlpha >= 0) || math.IsInf(o.ZipfAlpha, 1), "SharedPrefix.ZipfAlpha", o.ZipfAlpha, "use more than 0, or 0 for as many of each group")
	if s.TokenIDs && o.Turns > 1 && s.Tokenizer != nil {
		bad.Add("TokenIDs", true, "a conversation of several turns is text: leave --tokenize-prompt out, or use one turn")
	}
	questions := float64(o.Groups) * float64(o.PromptsPerGroup) * float64(o.Turns)
	checkHeld(bad, "SharedPrefix.Groups", o.Groups, questions*float64(o.QuestionLen)+float64(o.Groups)*float64(o.SystemPromptLen))
}

func checkBurstGPT(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the trace's CSV file (--dataset-path)")
	checkRequests(s, bad)
	checkVocab(s, bad)
}

// checkHeld bounds the tokens of a load that is in memory as a whole.
func checkHeld(bad *config.Faults, field string, v any, tokens float64) {
	bad.Refuse(tokens > maxHeld, field, v, "the load has %.0f tokens, which are all in memory: use %d at most", tokens, maxHeld)
}

// checkSeed holds a seed to what numpy.random.seed takes.
func checkSeed(s Spec, bad *config.Faults) { config.Between(bad, "Seed", s.Seed, 0, math.MaxUint32) }

func checkRequests(s Spec, bad *config.Faults) {
	bad.Refuse(s.Requests < 1, "Requests", s.Requests, "use 1 or more")
}

// checkFile checks what all loads of a file read.
func checkFile(s Spec, bad *config.Faults, fix string) {
	checkSeed(s, bad)
	bad.Refuse(s.File == "", "File", nil, "%s", fix)
}

// checkVocab wants a vocabulary where random tokens are drawn from it.
func checkVocab(s Spec, bad *config.Faults) {
	if s.Tokenizer == nil {
		config.Between(bad, "Vocab", s.Vocab, 1, 1<<30)
	} else if n := s.plain(); n < 1 {
		bad.Add("Tokenizer", n, "it has no tokens but special ones: use another")
	}
}

// checkOutput checks a number of tokens that stands for those of the file, 0 for the file's.
func checkOutput(bad *config.Faults, field string, n, least int) {
	if n != 0 {
		config.Between(bad, field, n, least, maxLen)
	}
}
