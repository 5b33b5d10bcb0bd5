package tooldraws

import "fmt"

// ShareGPT are the options of conversations in a file.
type ShareGPT struct {
	OutputLen  int // tokens wanted of each, 0 for as many as the file's answer has
	ContextLen int // of SGLang: longer ones, prompt and output, are left out; 0 for none
}

// vllmShareGPT is ShareGPTDataset: the first questions of conversations, in the order of the
// seed, and again some of them if there are not enough. Prompts have 4 to 1,024 tokens,
// answers 4 or more, both together 2,048 at most.
func vllmShareGPT(s Spec) (Sampled, error) {
	all, err := readConversations(s.File, false)
	if err != nil {
		return Sampled{}, err
	}
	g := seeded(s.Seed)
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
		return Sampled{}, fmt.Errorf("%q: of %d conversations none has a prompt of 4 to 1024 tokens and not more than 2048 with its answer", s.File, len(all))
	}
	return s.asked(rows, &g, "conversations that are neither too short nor too long", s.inWords()), nil
}

// sglangShareGPT is sample_sharegpt_requests: if there are not enough, it asks fewer.
func sglangShareGPT(s Spec) (Sampled, error) {
	all, err := readConversations(s.File, true)
	if err != nil {
		return Sampled{}, err
	}
	return askSGLang(s, all)
}

// askSGLang asks from conversations that are read. Prompts and answers have 2 tokens or more.
func askSGLang(s Spec, all []conversation) (Sampled, error) {
	g := seeded(s.Seed)
	g.Python.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var rows []row
	for _, c := range all {
		if len(rows) == s.Requests {
			break
		}
		text, err := s.dressed(c.question)
		if err != nil {
			return Sampled{}, err
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
		return Sampled{}, fmt.Errorf("%q: of %d conversations none is long enough, and short enough for --sharegpt-context-len", s.File, len(all))
	}
	l := Sampled{Source: &texts{rows: rows, tokenizer: s.Tokenizer}, Count: len(rows), Notes: s.inWords(), g: &g}
	if n := len(rows); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d conversations that are neither too short nor too long, so there are %d requests and not %d, as with sglang.bench_serving", s.File, n, n, s.Requests))
	}
	return l, nil
}
