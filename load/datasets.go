package load

import (
	"kvferry/internal/config"
	"kvferry/load/tooldraws"
)

// Options of the datasets that have some of their own.
type (
	ShareGPT         = tooldraws.ShareGPT
	Custom           = tooldraws.Custom
	Sonnet           = tooldraws.Sonnet
	PrefixRepetition = tooldraws.PrefixRepetition
	SharedPrefix     = tooldraws.SharedPrefix
	Bench            = tooldraws.Bench
	DatasetOptions   = tooldraws.Options // all of them, and those that several have
)

// ofTool is a kind whose requests are a tool's: SGLang's if Compat says so, vLLM's if not.
func ofTool(k Kind, vllm, sglang tooldraws.Sampler) Kind {
	from := func(s Spec) tooldraws.Sampler {
		if s.Compat == CompatSGLang {
			return sglang
		}
		return vllm
	}
	k.Times = Arriving
	k.Check = func(s Spec, bad *config.Faults) { from(s).Check(s.dataset(), bad) }
	k.Open = func(s Spec) (Load, error) { return sampled(from(s).Sample(s.dataset())) }
	return k
}

// ownOr is a kind that has draws of our own too: those of k.
func ownOr(k Kind, vllm, sglang tooldraws.Sampler) Kind {
	tools := ofTool(k, vllm, sglang)
	of := func(s Spec) Kind {
		if s.draws() == "" {
			return k
		}
		return tools
	}
	both := tools
	both.Check = func(s Spec, bad *config.Faults) { of(s).Check(s, bad) }
	both.Open = func(s Spec) (Load, error) { return of(s).Open(s) }
	return both
}

var (
	// SGLang's random-ids needs no text. vLLM has no such dataset. Our own draws are tokens
	// anyway.
	randomIDsKind = ownOr(Kind{
		Name:  RandomIDs,
		About: "lengths and tokens are drawn, and no tokenizer is needed",
		Reads: append([]string{"TokenIDs"}, randomReads...),
		Check: checkDraws,
		Open:  openDraws,
	}, tooldraws.VLLMRandomIDs, tooldraws.SGLangRandomIDs)

	shareGPTKind = ofTool(Kind{
		Name:  ShareGPTName,
		About: "first questions of the conversations in a file (ShareGPT's JSON)",
		Reads: []string{"File", "Seed", "ShareGPT", "DisableShuffle", "NoOversample", "PromptSuffix", "ChatTemplate", "Compat", "Tokenizer"},
		Texts: true,
	}, tooldraws.VLLMShareGPT, tooldraws.SGLangShareGPT)

	customKind = ofTool(Kind{
		Name:  CustomName,
		About: "prompts of a file (JSON lines)",
		Reads: []string{"File", "Seed", "Custom", "ShareGPT", "DisableShuffle", "NoOversample", "PromptSuffix", "ChatTemplate", "Compat", "Tokenizer"},
		Texts: true,
	}, tooldraws.VLLMCustom, tooldraws.SGLangCustom)

	sonnetKind = ofTool(Kind{
		Name:  SonnetName,
		About: "lines of a poem, the first ones in every prompt",
		Reads: []string{"File", "Seed", "Sonnet", "Chat", "Tokenizer"},
		Texts: true,
	}, tooldraws.VLLMSonnet, tooldraws.VLLMSonnet)

	prefixRepetitionKind = ofTool(Kind{
		Name:  PrefixRepetitionName,
		About: "random tokens after one of a few random beginnings",
		Reads: []string{"Seed", "PrefixRepetition", "DisableShuffle", "Tokenizer"},
	}, tooldraws.VLLMPrefixRepetition, tooldraws.VLLMPrefixRepetition)

	sharedPrefixKind = ofTool(Kind{
		Name:  SharedPrefixName,
		About: "groups of random questions, each group after a random system prompt",
		Reads: []string{"Seed", "SharedPrefix", "TokenIDs", "Tokenizer"},
	}, tooldraws.SGLangSharedPrefix, tooldraws.SGLangSharedPrefix)

	burstGPTKind = ofTool(Kind{
		Name:  BurstGPTName,
		About: "lengths drawn from the GPT-4 rows of the BurstGPT trace (CSV)",
		Reads: []string{"File", "Seed", "Tokenizer"},
	}, tooldraws.VLLMBurstGPT, tooldraws.VLLMBurstGPT)

	specBenchKind = ofTool(Kind{
		Name:  SpecBenchName,
		About: "questions of Spec-Bench (question.jsonl)",
		Reads: []string{"File", "Seed", "SpecBench", "DisableShuffle", "NoOversample"},
		Texts: true,
	}, tooldraws.VLLMSpecBench, tooldraws.VLLMSpecBench)

	speedBenchKind = ofTool(Kind{
		Name:  SpeedBenchName,
		About: "questions of SPEED-Bench: of vLLM's folder, or with --compat sglang of a file",
		Reads: []string{"File", "Seed", "SpeedBench", "Custom.SkipChatTemplate", "DisableShuffle", "NoOversample"},
		Texts: true,
	}, tooldraws.VLLMSpeedBench, tooldraws.SGLangSpeedBench)

	longBenchKind = ofTool(Kind{
		Name:  LongBenchName,
		About: "documents and questions of LongBench v2 (JSON)",
		Reads: []string{"File", "Seed", "ShareGPT"},
		Texts: true,
	}, tooldraws.SGLangLongBench, tooldraws.SGLangLongBench)
)

// dataset is the Spec as package tooldraws reads it.
func (s Spec) dataset() tooldraws.Spec {
	d := tooldraws.Spec{
		Requests: s.Requests, Seed: s.Seed, File: s.File, InputLen: s.InputLen, OutputLen: s.OutputLen, PrefixLen: s.PrefixLen,
		RangeRatio: s.RangeRatio, Options: s.DatasetOptions, Vocab: s.Vocab,
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
func sampled(d tooldraws.Sampled, err error) (Load, error) {
	if err != nil {
		return Load{}, err
	}
	numpy, python := d.Generators()
	return Load{Source: &rows{from: d.Source}, Count: d.Count, Notes: d.Notes, Generators: &Generators{Numpy: numpy, Python: python}}, nil
}

// rows are the requests of a dataset.
type rows struct {
	from tooldraws.Source
	n    int // so far
}

func (r *rows) Next() (Request, bool, error) {
	d, ok, err := r.from.Next()
	if !ok || err != nil {
		return Request{}, false, err
	}
	next := Request{Prompt: d.Prompt, Text: d.Text, MaxTokens: d.MaxTokens, MayStop: d.MayStop, Group: d.Group, Routing: d.Routing, Continues: d.Continues}
	if d.Continues {
		next.After = []int{r.n - 1}
	}
	r.n++
	return next, true, nil
}
