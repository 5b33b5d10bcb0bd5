package load

import (
	"errors"
	"fmt"

	"kvferry/config"
	"kvferry/load/records"
)

// Custom are the options of prompts in a file.
type Custom struct {
	OutputLen        int  // tokens wanted of each, 0 for as many as the file says; vLLM's -1
	SkipChatTemplate bool // prompts are sent as they are in the file
}

// customKind are prompts of the user's own, one a line. vLLM's file has
//
//	{"prompt": "What is the capital of India?", "output_tokens": 10}
//
// and SGLang's has conversations, of which the first question is asked:
//
//	{"conversations": [{"content": "..."}, {"content": "..."}]}
var customKind = Kind{
	Name:  CustomName,
	About: "prompts of a file (JSON lines)",
	Reads: []string{"File", "Seed", "Custom", "ShareGPT", "DisableShuffle", "NoOversample", "PromptSuffix", "ChatTemplate", "Compat", "Tokenizer"},
	Check: func(s Spec, bad *config.Faults) {
		if s.Compat == CompatSGLang {
			checkRequests(s, bad)
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
		f, err := records.Open(s.File)
		if err != nil {
			return Load{}, err
		}
		defer f.Close()
		from := records.NewJSON(s.File, f, "")
		if s.Compat == CompatSGLang {
			all, err := scanConversations(from, customTurns)
			if err != nil {
				return Load{}, err
			}
			return askSGLang(s, all)
		}
		return openCustom(s, from)
	},
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

type promptRecord struct {
	Prompt *string  `json:"prompt"`
	Output *float64 `json:"output_tokens"`
}

// openCustom is CustomDataset of vllm bench serve (0.32). It is shuffled before it is taken
// from, so all of it is read; its prompts stay in memory.
func openCustom(s Spec, from *records.JSON) (Load, error) {
	var all []row
	for {
		var p promptRecord
		ok, err := from.Next(&p)
		if err != nil {
			return Load{}, err
		}
		if !ok {
			break
		}
		next, err := s.customRow(p)
		if err != nil {
			return Load{}, from.Fault(err)
		}
		all = append(all, next)
	}
	if len(all) == 0 {
		return Load{}, fmt.Errorf("%q: it has no prompts", s.File)
	}
	g := newGenerators(s.Seed)
	shuffled(s, all, &g)
	if s.Requests == 0 {
		s.Requests = len(all)
	}
	rows := all[:min(s.Requests, len(all))]
	l := Load{Generators: &g}
	if s.Tokenizer == nil {
		l.Notes = append(l.Notes, "without --tokenizer prompts are sent as they are in the file, without a chat template, and their lengths are unknown")
	} else if !s.Custom.SkipChatTemplate {
		for i := range rows {
			text, err := s.asUser(rows[i].text)
			if err != nil {
				return Load{}, fmt.Errorf("%w: --skip-chat-template sends prompts without it", err)
			}
			rows[i].text = text
		}
	}
	if n := len(rows); n < s.Requests {
		if s.NoOversample {
			l.Notes = append(l.Notes, fmt.Sprintf("%s has %d prompts, so there are %d requests and not %d", s.File, n, n, s.Requests))
		} else {
			l.Notes = append(l.Notes, fmt.Sprintf("%s has %d prompts: the other %d requests repeat them, as with vllm bench serve", s.File, n, s.Requests-n))
		}
	}
	l.Source = &texts{rows: s.oversampled(rows, &g), tokenizer: s.Tokenizer, mayStop: true}
	return l, nil
}

func (s Spec) customRow(p promptRecord) (row, error) {
	switch {
	case p.Prompt == nil:
		return row{}, errors.New("prompt is missing: give the text")
	case s.Custom.OutputLen != 0:
		return row{text: *p.Prompt, max: s.Custom.OutputLen}, nil
	}
	n, err := wanted("output_tokens", p.Output)
	return row{text: *p.Prompt, max: n}, err
}
