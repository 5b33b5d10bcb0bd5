package tooldraws

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"kvferry/internal/config"
	"kvferry/load/records"
)

// Bench are the options of Spec-Bench and of SPEED-Bench, two files of questions.
type Bench struct {
	OutputLen int    // tokens wanted of each
	Category  string // of the questions that are asked; empty for all
	Subset    string // of vLLM's SPEED-Bench: the name of the file in the folder, without .jsonl
}

// A benchRecord is a question in either file: SPEED-Bench has the conversation as texts, or, in
// the folder that vLLM reads, as messages.
type benchRecord struct {
	Category string   `json:"category"`
	Turns    []string `json:"turns"`
	Messages []struct {
		Content *string `json:"content"`
	} `json:"messages"`
}

// vllmSpecBench is SpecBench: the first turns of Spec-Bench's question.jsonl,
//
//	{"question_id": 81, "category": "writing", "turns": ["Compose a travel blog post ...", "Rewrite ..."]}
//
// in the chat template. vLLM does not hand its --seed on to it: the order, and what is asked
// again, is that of seed 0.
func vllmSpecBench(s Spec) (Sampled, error) {
	all, err := readBench(s.File, s.SpecBench, false)
	if err != nil {
		return Sampled{}, err
	}
	s.Custom.SkipChatTemplate = false // which it does not hand on either
	return askBench(s, all)
}

// vllmSpeedBench is SpeedBench: the first messages of a subset of SPEED-Bench, a file in the
// folder that its script prepares,
//
//	{"category": "coding", "messages": [{"role": "user", "content": "..."}]}
//
// likewise in the order of seed 0.
func vllmSpeedBench(s Spec) (Sampled, error) {
	all, err := readBench(filepath.Join(s.File, s.SpeedBench.Subset+".jsonl"), s.SpeedBench, true)
	if err != nil {
		return Sampled{}, err
	}
	return askBench(s, all)
}

// askBench asks as vLLM's custom dataset does, whose random.seed has 0 here.
func askBench(s Spec, all []row) (Sampled, error) {
	g := seeded(s.Seed)
	s.Seed = 0
	*g.Python = *seeded(0).Python
	return s.askPrompts(all, &g)
}

// readBench reads the questions of a category.
func readBench(name string, b Bench, messages bool) (all []row, err error) {
	f, err := records.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := records.NewJSON(name, f, "")
	for {
		var r benchRecord
		ok, err := from.Next(&r)
		switch {
		case err != nil:
			return nil, err
		case !ok && len(all) == 0 && b.Category != "":
			return nil, fmt.Errorf("%q: it has no question of category %q", name, b.Category)
		case !ok && len(all) == 0:
			return nil, fmt.Errorf("%q: it has no questions", name)
		case !ok:
			return all, nil
		case b.Category != "" && r.Category != b.Category:
			continue
		}
		text, err := r.first(messages)
		if err != nil {
			return nil, from.Fault(err)
		}
		all = append(all, row{text: text, max: b.OutputLen})
	}
}

// first is what is asked first.
func (r *benchRecord) first(messages bool) (string, error) {
	switch {
	case messages && (len(r.Messages) == 0 || r.Messages[0].Content == nil):
		return "", errors.New("messages[0].content is missing: give what is asked")
	case messages:
		return *r.Messages[0].Content, nil
	case len(r.Turns) == 0:
		return "", errors.New("turns[0] is missing: give what is asked")
	}
	return r.Turns[0], nil
}

// sglangSpeedBench is SpeedBenchDataset: questions of SPEED-Bench drawn without replacement, or,
// if there are too few, all of them as often as it takes, shuffled. Prompts are decoded from the
// tokens of the chat template, and the server's tokenizer is not expected to add any.
func sglangSpeedBench(s Spec) (Sampled, error) {
	all, err := readBench(s.File, s.SpeedBench, false)
	if err != nil {
		return Sampled{}, err
	}
	bare := s.Tokenizer != nil
	for i := range all {
		if !bare {
			break
		}
		text, err := s.Template(all[i].text)
		if bare = err == nil; bare { // a model without a template is asked the texts alone
			all[i].text = s.Tokenizer.Decode(s.Tokenizer.Encode(text, false), false)
		}
	}
	g := seeded(s.Seed)
	rows := make([]row, s.Requests)
	var notes []string
	if n := len(all); s.Requests <= n {
		for i, k := range g.Python.Sample(n, s.Requests) {
			rows[i] = all[k]
		}
	} else {
		for i := range rows {
			rows[i] = all[i%n]
		}
		g.Python.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		notes = append(notes, fmt.Sprintf("%s has %d questions, so they are asked again, as with sglang.bench_serving", s.File, n))
	}
	return Sampled{Source: &texts{rows: rows, tokenizer: s.Tokenizer, bare: bare}, Count: len(rows), Notes: notes, g: &g}, nil
}

// longBenchOutput is how many tokens are wanted where nobody says so: a letter and a few words.
const longBenchOutput = 10

// sglangLongBench is LongBenchV2Dataset: a document of 8,000 to 2 million words and a question
// of four choices each,
//
//	{"context": "...", "question": "...", "choice_A": "...", "choice_B": "...", "choice_C": "...", "choice_D": "..."}
//
// all shuffled, those left out that are longer than --sharegpt-context-len.
func sglangLongBench(s Spec) (Sampled, error) {
	all, err := readLongBench(s.File)
	if err != nil {
		return Sampled{}, err
	}
	if len(all) == 0 {
		return Sampled{}, fmt.Errorf("%q: it has no questions", s.File)
	}
	g := seeded(s.Seed)
	g.Python.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	output := s.ShareGPT.OutputLen
	config.Default(&output, longBenchOutput)
	var rows []row
	for _, text := range all {
		if len(rows) == s.Requests {
			break
		}
		if s.ShareGPT.ContextLen == 0 || s.length(text)+output <= s.ShareGPT.ContextLen {
			rows = append(rows, row{text: text, max: output})
		}
	}
	if len(rows) == 0 {
		return Sampled{}, fmt.Errorf("%q: of %d questions none is short enough for --sharegpt-context-len", s.File, len(all))
	}
	l := Sampled{Source: &texts{rows: rows, tokenizer: s.Tokenizer}, Count: len(rows), g: &g}
	if s.ShareGPT.ContextLen > 0 {
		l.Notes = s.inWords()
	}
	if n := len(rows); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d questions that are not too long, so there are %d requests and not %d, as with sglang.bench_serving", s.File, n, n, s.Requests))
	}
	return l, nil
}

func readLongBench(name string) (all []string, err error) {
	f, err := records.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := records.NewJSON(name, f, "")
	for {
		var r map[string]any
		ok, err := from.Next(&r)
		if !ok || err != nil {
			return all, err
		}
		var b strings.Builder
		for _, part := range longBenchParts {
			text, ok := r[part.field].(string)
			if !ok {
				return nil, from.Fault(fmt.Errorf("%s is missing: give it as a text", part.field))
			}
			b.WriteString(part.before + text)
		}
		all = append(all, b.String()+"\nAnswer:")
	}
}

// longBenchParts are a prompt, each with what stands before it.
var longBenchParts = []struct{ before, field string }{
	{"", "context"}, {"\n\nQuestion: ", "question"}, {"\nA. ", "choice_A"}, {"\nB. ", "choice_B"}, {"\nC. ", "choice_C"}, {"\nD. ", "choice_D"},
}
