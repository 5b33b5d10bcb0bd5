package load

import (
	"fmt"
	"slices"

	"kvferry/internal/config"
	"kvferry/internal/knob"
)

// shareGPTKnobs are the knobs of conversations of which the first question is asked.
var shareGPTKnobs = Knobs{
	{Name: "sharegpt-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"ShareGPT.OutputLen"}, Value: knob.Int(func(s *Spec) *int { return &s.ShareGPT.OutputLen }), Help: "tokens wanted of each answer (default: as many as the file's has)"},
	{Name: "sharegpt-context-len", Group: AskedGroup, Fields: []string{"ShareGPT.ContextLen"}, Value: knob.Int(func(s *Spec) *int { return &s.ShareGPT.ContextLen }), Help: "leave out what is longer, prompt and answer together (SGLang)"},
}

var shareGPTKind = Kind{
	Name:  ShareGPTName,
	About: "first questions of the conversations in a file (ShareGPT's JSON)",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, shareGPTKnobs, orderKnobs, dressKnobs),
	Texts: true,
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) { ofTool(s, checkVLLMConversations, checkSGLangConversations)(s, bad) },
	Open:  func(s Spec) (Load, error) { return ofTool(s, vllmShareGPT, sglangShareGPT)(s) },
}

// ShareGPT are the options of conversations in a file.
type ShareGPT struct {
	OutputLen  int // tokens wanted of each, 0 for as many as the file's answer has
	ContextLen int // of SGLang: longer ones, prompt and output, are left out; 0 for none
}

// vllmShareGPT is ShareGPTDataset: the first questions of conversations, in the order of the
// seed, and again some of them if there are not enough. Prompts have 4 to 1,024 tokens,
// answers 4 or more, both together 2,048 at most.
func vllmShareGPT(s Spec) (Load, error) {
	all, err := readConversations(s.File, false)
	if err != nil {
		return Load{}, err
	}
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
	return s.asked(rows, &g, "conversations that are neither too short nor too long", s.inWords()), nil
}

// sglangShareGPT is sample_sharegpt_requests: if there are not enough, it asks fewer.
func sglangShareGPT(s Spec) (Load, error) {
	all, err := readConversations(s.File, true)
	if err != nil {
		return Load{}, err
	}
	return askSGLang(s, all)
}

// askSGLang asks from conversations that are read. Prompts and answers have 2 tokens or more.
func askSGLang(s Spec, all []exchange) (Load, error) {
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
	l := Load{Source: &texts{rows: rows, tokenizer: s.Tokenizer}, Count: len(rows), Notes: s.inWords(), Generators: &g}
	if n := len(rows); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d conversations that are neither too short nor too long, so there are %d requests and not %d, as with sglang.bench_serving", s.File, n, n, s.Requests))
	}
	return l, nil
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

func checkConversations(s Spec, bad *config.Faults, least int) {
	checkRequests(s, bad)
	checkFile(s, bad, "name the file of conversations (--dataset-path)")
	checkOutput(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, least)
}
