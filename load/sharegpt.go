package load

import (
	"fmt"

	"kvferry/config"
)

// ShareGPT are the options of conversations in a file.
type ShareGPT struct {
	OutputLen  int // tokens wanted of each, 0 for as many as the file's answer has
	ContextLen int // of SGLang: longer ones, prompt and output, are left out; 0 for none
}

// shareGPTKind asks the first questions of conversations, in the order of the seed, as long
// as they are neither too short nor too long. vLLM draws again from those if there are not
// enough; SGLang asks fewer.
var shareGPTKind = Kind{
	Name:  ShareGPTName,
	About: "first questions of the conversations in a file (ShareGPT's JSON)",
	Reads: []string{"File", "Seed", "ShareGPT", "DisableShuffle", "NoOversample", "PromptSuffix", "ChatTemplate", "Compat", "Tokenizer"},
	Check: func(s Spec, bad *config.Faults) {
		checkRequests(s, bad)
		checkConversations(s, bad)
	},
	Open: func(s Spec) (Load, error) {
		all, err := readConversations(s.File, s.Compat)
		if err != nil {
			return Load{}, err
		}
		if s.Compat == CompatSGLang {
			return askSGLang(s, all)
		}
		return askVLLM(s, all)
	},
}

// checkConversations checks what is read for files of conversations.
func checkConversations(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the file of conversations (--dataset-path)")
	least := 1
	if s.Compat == CompatSGLang {
		least = 4 // what the tool takes
		checkTemplate(s, bad)
	} else {
		if s.ShareGPT.ContextLen != 0 {
			bad.Add("ShareGPT.ContextLen", s.ShareGPT.ContextLen, "only sglang.bench_serving has it: use --compat sglang")
		}
		if s.PromptSuffix != "" || s.ChatTemplate {
			bad.Add("PromptSuffix", nil, "only sglang.bench_serving has a suffix and a template: use --compat sglang")
		}
	}
	checkOutput(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, least)
	config.Between(bad, "ShareGPT.ContextLen", s.ShareGPT.ContextLen, 0, maxLen)
}

// askVLLM is ShareGPTDataset of vllm bench serve (0.32). Prompts have 4 to 1,024 tokens,
// answers 4 or more, both together 2,048 at most.
func askVLLM(s Spec, all []conversation) (Load, error) {
	g := newGenerators(s.Seed)
	shuffled(s, all, &g)
	var rows []row
	for _, c := range all {
		if len(rows) == s.Requests {
			break
		}
		prompt, output := s.length(c.question), s.ShareGPT.OutputLen
		if output == 0 {
			if output = s.length(c.answer); output < 4 {
				continue
			}
		}
		if prompt >= 4 && prompt <= 1024 && prompt+output <= 2048 {
			rows = append(rows, row{text: c.question, max: output})
		}
	}
	if len(rows) == 0 {
		return Load{}, fmt.Errorf("%q: of %d conversations none has a prompt of 4 to 1024 tokens and not more than 2048 with its answer", s.File, len(all))
	}
	l := Load{Notes: s.inWords(), Generators: &g}
	if n := len(rows); n < s.Requests {
		if s.NoOversample {
			l.Notes = append(l.Notes, fmt.Sprintf("%s has %d conversations that are neither too short nor too long, so there are %d requests and not %d", s.File, n, n, s.Requests))
		} else {
			l.Notes = append(l.Notes, fmt.Sprintf("%s has %d conversations that are neither too short nor too long: the other %d requests repeat them, as with vllm bench serve", s.File, n, s.Requests-n))
		}
	}
	l.Source = &texts{rows: s.oversampled(rows, &g), tokenizer: s.Tokenizer, mayStop: true}
	return l, nil
}

// askSGLang is sample_sharegpt_requests and sample_custom_requests of sglang.bench_serving
// (0.5.23). Prompts and answers have 2 tokens or more.
func askSGLang(s Spec, all []conversation) (Load, error) {
	g := newGenerators(s.Seed)
	g.Python.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var rows []row
	for _, c := range all {
		if len(rows) == s.Requests {
			break
		}
		text, err := s.dressed(c.question)
		if err != nil {
			return Load{}, err
		}
		prompt, output := s.length(text), s.ShareGPT.OutputLen
		if output == 0 {
			output = s.length(c.answer)
		}
		long := s.ShareGPT.ContextLen > 0 && prompt+output > s.ShareGPT.ContextLen
		if prompt >= 2 && output >= 2 && !long {
			rows = append(rows, row{text: text, max: output})
		}
	}
	if len(rows) == 0 {
		return Load{}, fmt.Errorf("%q: of %d conversations none is long enough, and short enough for --sharegpt-context-len", s.File, len(all))
	}
	l := Load{Source: &texts{rows: rows, tokenizer: s.Tokenizer}, Notes: s.inWords(), Generators: &g}
	if n := len(rows); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d conversations that are neither too short nor too long, so there are %d requests and not %d, as with sglang.bench_serving", s.File, n, n, s.Requests))
	}
	return l, nil
}
