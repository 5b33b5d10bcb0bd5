package load

import (
	"math"

	"kvferry/config"
	"kvferry/load/dataset"
)

// Options of the datasets that have some of their own.
type (
	ShareGPT         = dataset.ShareGPT
	Custom           = dataset.Custom
	Sonnet           = dataset.Sonnet
	PrefixRepetition = dataset.PrefixRepetition
	SharedPrefix     = dataset.SharedPrefix
)

// randomIDsKind is SGLang's random-ids: tokens that need no text. vLLM has no such dataset;
// its draws are those of random, as tokens that were not made to survive being text. Our own
// draws are tokens anyway.
var randomIDsKind = Kind{
	Name:  RandomIDs,
	About: "lengths and tokens are drawn, and no tokenizer is needed",
	Reads: append([]string{"TokenIDs"}, randomReads...),
	Times: Arriving,
	Check: checkRandom,
	Open: func(s Spec) (Load, error) {
		switch s.Compat {
		case CompatVLLM:
			return sampled(dataset.VLLMRandom(s.dataset(), false), nil)
		case CompatSGLang:
			return sampled(dataset.SGLangRandomIDs(s.dataset()), nil)
		}
		return randomKind.Open(s)
	},
}

// shareGPTKind asks the first questions of conversations, in the order of the seed, as long
// as they are neither too short nor too long. vLLM draws again from those if there are not
// enough; SGLang asks fewer.
var shareGPTKind = Kind{
	Name:  ShareGPTName,
	About: "first questions of the conversations in a file (ShareGPT's JSON)",
	Reads: []string{"File", "Seed", "ShareGPT", "DisableShuffle", "NoOversample", "PromptSuffix", "ChatTemplate", "Compat", "Tokenizer"},
	Texts: true,
	Times: Arriving,
	Check: checkConversations,
	Open: func(s Spec) (Load, error) {
		if s.Compat == CompatSGLang {
			return sampled(dataset.SGLangShareGPT(s.dataset()))
		}
		return sampled(dataset.VLLMShareGPT(s.dataset()))
	},
}

// customKind are prompts of the user's own, one a line; SGLang's are conversations.
var customKind = Kind{
	Name:  CustomName,
	About: "prompts of a file (JSON lines)",
	Reads: []string{"File", "Seed", "Custom", "ShareGPT", "DisableShuffle", "NoOversample", "PromptSuffix", "ChatTemplate", "Compat", "Tokenizer"},
	Texts: true,
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) {
		if s.Compat == CompatSGLang {
			checkConversations(s, bad)
			return
		}
		checkFile(s, bad, "name the file of prompts (--dataset-path)")
		if s.Requests < 0 {
			bad.Add("Requests", s.Requests, "use 1 or more, 0 for all")
		}
		checkOutput(bad, "Custom.OutputLen", s.Custom.OutputLen, 1)
	},
	Open: func(s Spec) (Load, error) {
		if s.Compat == CompatSGLang {
			return sampled(dataset.SGLangCustom(s.dataset()))
		}
		return sampled(dataset.VLLMCustom(s.dataset()))
	},
}

var sonnetKind = Kind{
	Name:  SonnetName,
	About: "lines of a poem, the first ones in every prompt",
	Reads: []string{"File", "Seed", "Sonnet", "Chat", "Tokenizer"},
	Texts: true,
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) {
		checkFile(s, bad, "name the file of the poem (--dataset-path)")
		checkRequests(s, bad)
		config.Between(bad, "Sonnet.InputLen", s.Sonnet.InputLen, 1, maxLen)
		config.Between(bad, "Sonnet.OutputLen", s.Sonnet.OutputLen, 1, maxLen)
		config.Between(bad, "Sonnet.PrefixLen", s.Sonnet.PrefixLen, 0, maxLen)
		if s.Tokenizer == nil {
			bad.Add("Tokenizer", nil, "lines are counted in tokens, and prompts have a chat template: give --tokenizer")
		}
	},
	Open: func(s Spec) (Load, error) { return sampled(dataset.VLLMSonnet(s.dataset())) },
}

var prefixRepetitionKind = Kind{
	Name:  PrefixRepetitionName,
	About: "random tokens after one of a few random beginnings",
	Reads: []string{"Seed", "PrefixRepetition", "DisableShuffle", "Tokenizer"},
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) {
		checkSeed(s, bad)
		o := s.PrefixRepetition
		config.Between(bad, "PrefixRepetition.PrefixLen", o.PrefixLen, 0, maxLen)
		config.Between(bad, "PrefixRepetition.SuffixLen", o.SuffixLen, 0, maxLen)
		config.Between(bad, "PrefixRepetition.OutputLen", o.OutputLen, 1, maxLen)
		config.Between(bad, "PrefixRepetition.Prefixes", o.Prefixes, 1, maxLen)
		if o.PrefixLen == 0 && o.SuffixLen == 0 {
			bad.Add("PrefixRepetition.SuffixLen", o.SuffixLen, "prompts would be empty: use more")
		}
		if s.Requests < max(o.Prefixes, 1) {
			bad.Add("Requests", s.Requests, "use as many as there are prefixes, %d, or more", o.Prefixes)
		}
		checkHeld(bad, "Requests", s.Requests, float64(s.Requests)*float64(o.SuffixLen)+float64(o.Prefixes)*float64(o.PrefixLen))
		checkVocab(s, bad)
	},
	Open: func(s Spec) (Load, error) { return sampled(dataset.VLLMPrefixRepetition(s.dataset()), nil) },
}

var sharedPrefixKind = Kind{
	Name:  SharedPrefixName,
	About: "groups of random questions, each group after a random system prompt",
	Reads: []string{"Seed", "SharedPrefix", "TokenIDs", "Tokenizer"},
	Times: Arriving,
	Check: checkSharedPrefix,
	Open:  func(s Spec) (Load, error) { return sampled(dataset.SGLangSharedPrefix(s.dataset()), nil) },
}

var burstGPTKind = Kind{
	Name:  BurstGPTName,
	About: "lengths drawn from the GPT-4 rows of the BurstGPT trace (CSV)",
	Reads: []string{"File", "Seed", "Tokenizer"},
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) {
		checkFile(s, bad, "name the trace's CSV file (--dataset-path)")
		checkRequests(s, bad)
		checkVocab(s, bad)
	},
	Open: func(s Spec) (Load, error) { return sampled(dataset.VLLMBurstGPT(s.dataset())) },
}

// dataset is the Spec as package dataset reads it.
func (s Spec) dataset() dataset.Spec {
	d := dataset.Spec{
		Requests: s.Requests, Seed: s.Seed, File: s.File, InputLen: s.InputLen, OutputLen: s.OutputLen, PrefixLen: s.PrefixLen,
		RangeRatio: s.RangeRatio, OutputRatio: s.OutputRatio, Vocab: s.Vocab,
		DisableShuffle: s.DisableShuffle, NoOversample: s.NoOversample, TokenIDs: s.TokenIDs, PromptSuffix: s.PromptSuffix, ChatTemplate: s.ChatTemplate, Chat: s.Chat,
		ShareGPT: s.ShareGPT, Custom: s.Custom, Sonnet: s.Sonnet, PrefixRepetition: s.PrefixRepetition, SharedPrefix: s.SharedPrefix,
	}
	if s.Tokenizer != nil {
		d.Tokenizer = s.Tokenizer
		d.Template = func(user string) (string, error) {
			return s.Tokenizer.Chat([]Message{{Role: "user", Content: user}}, true)
		}
	}
	return d
}

// sampled is a dataset as a load.
func sampled(d dataset.Sampled, err error) (Load, error) {
	if err != nil {
		return Load{}, err
	}
	numpy, python := d.Generators()
	return Load{Source: &rows{from: d.Source}, Count: d.Count, Notes: d.Notes, Generators: &Generators{Numpy: numpy, Python: python}}, nil
}

// rows are the requests of a dataset.
type rows struct {
	from dataset.Source
	n    int // so far
}

func (r *rows) Next() (Request, bool, error) {
	d, ok, err := r.from.Next()
	if !ok || err != nil {
		return Request{}, false, err
	}
	next := Request{Prompt: d.Prompt, Text: d.Text, MaxTokens: d.MaxTokens, MayStop: d.MayStop, Group: d.Group, Continues: d.Continues}
	if d.Continues {
		next.After = []int{r.n - 1}
	}
	r.n++
	return next, true, nil
}

// checkVLLMRandom checks what vLLM's random draws are made of.
func checkVLLMRandom(s Spec, bad *config.Faults) {
	checkLengths(s, bad)
	if !(s.RangeRatio >= 0 && s.RangeRatio < 1) {
		bad.Add("RangeRatio", s.RangeRatio, "use 0 to below 1: lengths are drawn from length x (1 -+ this)")
	}
	if r := s.OutputRatio; r != nil && !(*r >= 0 && *r < 1) {
		bad.Add("OutputRatio", *r, "use 0 to below 1: lengths are drawn from length x (1 -+ this)")
	}
	if len(*bad) == 0 && dataset.VLLMShortest(s.dataset()) < 1 {
		bad.Add("InputLen", s.InputLen, "prompts could be empty: use more, or a smaller range ratio")
	}
}

// checkSGLangRandom checks what SGLang's random draws are made of.
func checkSGLangRandom(s Spec, bad *config.Faults) {
	checkLengths(s, bad)
	checkSGLangRatio(bad, "RangeRatio", s.RangeRatio)
	if s.OutputRatio != nil {
		bad.Add("OutputRatio", *s.OutputRatio, "sglang.bench_serving has one ratio for both: leave it out, or use vllm's draws")
	}
	if s.PrefixLen != 0 {
		bad.Add("PrefixLen", s.PrefixLen, "sglang.bench_serving has no prefix: use 0, or vllm's draws")
	}
}

// checkSGLangRatio checks a range ratio in SGLang's meaning.
func checkSGLangRatio(bad *config.Faults, field string, ratio float64) {
	if !(ratio >= 0 && ratio <= 1) {
		bad.Add(field, ratio, "use 0 to 1: lengths are drawn from length x this to length")
	}
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

// checkConversations checks what is read for files of conversations.
func checkConversations(s Spec, bad *config.Faults) {
	checkRequests(s, bad)
	checkFile(s, bad, "name the file of conversations (--dataset-path)")
	least := 1
	if s.Compat == CompatSGLang {
		least = 4 // what the tool takes
		if s.ChatTemplate && s.Tokenizer == nil {
			bad.Add("ChatTemplate", s.ChatTemplate, "the template is the tokenizer's: give --tokenizer")
		}
	} else {
		if s.ShareGPT.ContextLen != 0 {
			bad.Add("ShareGPT.ContextLen", s.ShareGPT.ContextLen, "only sglang.bench_serving has it: use --compat sglang")
		}
		if s.PromptSuffix != "" {
			bad.Add("PromptSuffix", s.PromptSuffix, "only sglang.bench_serving has it: use --compat sglang")
		}
		if s.ChatTemplate {
			bad.Add("ChatTemplate", s.ChatTemplate, "only sglang.bench_serving has it: use --compat sglang")
		}
	}
	checkOutput(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, least)
	config.Between(bad, "ShareGPT.ContextLen", s.ShareGPT.ContextLen, 0, maxLen)
}

func checkSharedPrefix(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	checkVocab(s, bad)
	o := s.SharedPrefix
	const most = 1 << 20 // of each; together they are bounded below
	config.Between(bad, "SharedPrefix.Groups", o.Groups, 1, most)
	config.Between(bad, "SharedPrefix.PromptsPerGroup", o.PromptsPerGroup, 1, most)
	config.Between(bad, "SharedPrefix.SystemPromptLen", o.SystemPromptLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.QuestionLen", o.QuestionLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.OutputLen", o.OutputLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.Turns", o.Turns, 1, 1<<16)
	checkSGLangRatio(bad, "SharedPrefix.RangeRatio", o.RangeRatio)
	if !(o.ZipfAlpha >= 0) || math.IsInf(o.ZipfAlpha, 1) {
		bad.Add("SharedPrefix.ZipfAlpha", o.ZipfAlpha, "use more than 0, or 0 for as many of each group")
	}
	if s.TokenIDs && o.Turns > 1 && s.Tokenizer != nil {
		bad.Add("TokenIDs", true, "a conversation of several turns is text: leave --tokenize-prompt out, or use one turn")
	}
	questions := float64(o.Groups) * float64(o.PromptsPerGroup) * float64(o.Turns)
	checkHeld(bad, "SharedPrefix.Groups", o.Groups, questions*float64(o.QuestionLen)+float64(o.Groups)*float64(o.SystemPromptLen))
}

// checkHeld bounds the tokens of a load that is in memory as a whole: 2 GB of them.
func checkHeld(bad *config.Faults, field string, v any, tokens float64) {
	if most := 1 << 29; tokens > float64(most) {
		bad.Add(field, v, "the load has %.0f tokens, which are all in memory: use %d at most", tokens, most)
	}
}

// checkSeed holds a seed to what numpy.random.seed takes.
func checkSeed(s Spec, bad *config.Faults) { config.Between(bad, "Seed", s.Seed, 0, math.MaxUint32) }

func checkRequests(s Spec, bad *config.Faults) {
	if s.Requests < 1 {
		bad.Add("Requests", s.Requests, "use 1 or more")
	}
}

// checkFile checks what all loads of a file read.
func checkFile(s Spec, bad *config.Faults, fix string) {
	checkSeed(s, bad)
	if s.File == "" {
		bad.Add("File", nil, "%s", fix)
	}
}

// checkVocab wants a vocabulary where random tokens are drawn from it.
func checkVocab(s Spec, bad *config.Faults) {
	if s.Tokenizer == nil {
		config.Between(bad, "Vocab", s.Vocab, 1, 1<<30)
	} else if n := s.dataset().Plain(); n < 1 {
		bad.Add("Tokenizer", n, "it has no tokens but special ones: use another")
	}
}

// checkOutput checks a number of tokens that stands for those of the file, 0 for the file's.
func checkOutput(bad *config.Faults, field string, n, least int) {
	if n != 0 {
		config.Between(bad, field, n, least, maxLen)
	}
}
