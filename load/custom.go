package load

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/load/trace"
)

// customKnobs are the knobs of vLLM's prompts in a file.
var customKnobs = Knobs{
	{Name: "custom-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"Custom.OutputLen"}, Default: "256", Unused: customOfVLLM, Value: knob.Int(func(s *Spec) *int { return &s.Custom.OutputLen }), Help: "tokens wanted of each answer; -1: as many as the line says"},
	{Name: "skip-chat-template", Group: AskedGroup, Fields: []string{"Custom.SkipChatTemplate"}, Unused: customOfVLLM, Value: knob.Bool(func(s *Spec) *bool { return &s.Custom.SkipChatTemplate }), Help: "send prompts as they are in the file"},
}

// customOfVLLM returns why an option of vLLM's custom has no effect with SGLang's.
func customOfVLLM(s *Spec) string {
	if s.Compat == CompatSGLang && plain(s.Kind) == CustomName {
		return "only vllm bench serve's custom has it: use --sharegpt-output-len and --apply-chat-template, or --compat vllm"
	}
	return ""
}

var customKind = Kind{
	Name:  CustomName,
	About: "prompts of a file (JSON lines)",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, customKnobs, shareGPTKnobs, orderKnobs, dressKnobs),
	Texts: true,
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) { ofTool(s, checkCustom, checkSGLangConversations)(s, bad) },
	Open:  func(s Spec) (Load, error) { return ofTool(s, vllmCustom, sglangCustom)(s) },
}

// Custom are the options of prompts in a file.
type Custom struct {
	OutputLen        int  // tokens wanted of each, 0 for as many as the file says; vLLM's -1
	SkipChatTemplate bool // prompts are sent as they are in the file
}

// sglangCustom is sample_custom_requests: the first questions
// of conversations, one a line:
//
//	{"conversations": [{"content": "..."}, {"content": "..."}]}
func sglangCustom(s Spec) (Load, error) {
	f, err := trace.Open(s.File)
	if err != nil {
		return Load{}, err
	}
	defer f.Close()
	all, err := scanConversations(trace.NewJSON(s.File, f, ""), customTurns)
	if err != nil {
		return Load{}, err
	}
	return askSGLang(s, all)
}

// customTurns are the first two turns of a conversation, as SGLang reads them: what has
// neither content nor value is empty.
func customTurns(r conversationRecord) (question, answer *string, _ error) {
	turns := r.Conversations
	if turns == nil {
		turns = r.Conversation
	}
	if len(turns) < 2 {
		return nil, nil, nil
	}
	said := func(t turnRecord) *string {
		switch {
		case t.Content != nil:
			return t.Content
		case t.Value != nil:
			return t.Value
		}
		return new(string)
	}
	return said(turns[0]), said(turns[1]), nil
}

// A promptRecord is a line of the file. Pointers tell what is missing from what is empty or 0.
type promptRecord struct {
	Prompt *string  `json:"prompt"`
	Output *float64 `json:"output_tokens"`
}

// vllmCustom is CustomDataset: prompts of the user's own, one a
// line:
//
//	{"prompt": "What is the capital of India?", "output_tokens": 10}
//
// They are shuffled before they are taken from, so all of the file is read; the prompts stay
// in memory.
func vllmCustom(s Spec) (Load, error) {
	all, err := readPrompts(s)
	if err != nil {
		return Load{}, err
	}
	if len(all) == 0 {
		return Load{}, fmt.Errorf("%q: it has no prompts", s.File)
	}
	g := newGenerators(s.Seed)
	return s.askPrompts(all, &g)
}

// askPrompts asks prompts in the chat template, in the order of the seed; all of them if there
// is no number of requests.
func (s Spec) askPrompts(all []row, g *Generators) (Load, error) {
	shuffled(s, all, g)
	s.Requests = cmp.Or(s.Requests, len(all))
	rows := all[:min(s.Requests, len(all))]
	var notes []string
	if s.Tokenizer == nil {
		notes = append(notes, "without --tokenizer prompts are sent as they are in the file, without a chat template, and their lengths are unknown")
	} else if !s.Custom.SkipChatTemplate {
		for i := range rows {
			text, err := s.asUser(rows[i].text)
			if err != nil {
				return Load{}, fmt.Errorf("%w: --skip-chat-template sends prompts without it", err)
			}
			rows[i].text = text
		}
	}
	return s.asked(rows, g, "prompts", notes), nil
}

// readPrompts reads all of the file. The error names its line.
func readPrompts(s Spec) (all []row, err error) {
	f, err := trace.Open(s.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := trace.NewJSON(s.File, f, "")
	for {
		var p promptRecord
		ok, err := from.Next(&p)
		if !ok || err != nil {
			return all, err
		}
		next, err := s.customRow(p)
		if err != nil {
			return nil, from.Fault(err)
		}
		all = append(all, next)
	}
}

// customRow checks a line. Without an output length of the command line's the line must have one.
func (s Spec) customRow(p promptRecord) (row, error) {
	switch {
	case p.Prompt == nil:
		return row{}, errors.New("prompt is missing: give the text")
	case *p.Prompt == "":
		return row{}, errors.New("prompt: empty: give the text")
	case s.Custom.OutputLen != 0:
		return row{text: *p.Prompt, max: s.Custom.OutputLen}, nil
	}
	n, err := wanted("output_tokens", p.Output)
	return row{text: *p.Prompt, max: n}, err
}

func checkCustom(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the file of prompts (--dataset-path)")
	bad.Refuse(s.Requests < 0, "Requests", s.Requests, "use 1 or more, 0 for all")
	checkOutput(bad, "Custom.OutputLen", s.Custom.OutputLen, 1)
}
