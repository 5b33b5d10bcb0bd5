package load

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/load/trace"
)

// specBenchKnobs are the knobs of Spec-Bench.
var specBenchKnobs = Knobs{
	{Name: "spec-bench-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"SpecBench.OutputLen"}, Default: "256", Value: knob.Int(func(s *Spec) *int { return &s.SpecBench.OutputLen }), Help: "output tokens"},
	{Name: "spec-bench-category", Group: AskedGroup, Fields: []string{"SpecBench.Category"}, Value: knob.Text(func(s *Spec) *string { return &s.SpecBench.Category }), Help: "of the questions (default: all)"},
}

// speedBenchKnobs are the knobs of SPEED-Bench.
var speedBenchKnobs = Knobs{
	{Name: "speed-bench-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"SpeedBench.OutputLen"}, Default: "4096", Value: knob.Int(func(s *Spec) *int { return &s.SpeedBench.OutputLen }), Help: "output tokens (default with --compat sglang: 512)"},
	{Name: "speed-bench-category", Group: AskedGroup, Fields: []string{"SpeedBench.Category"}, Value: knob.Text(func(s *Spec) *string { return &s.SpeedBench.Category }), Help: "of the questions (default: all)"},
	{Name: "speed-bench-dataset-subset", Group: AskedGroup, Fields: []string{"SpeedBench.Subset"}, Default: "qualitative", Values: func() []string { return speedBenchSubsets }, Value: knob.Text(func(s *Spec) *string { return &s.SpeedBench.Subset }), Help: "which file of vLLM's folder"},
}

var specBenchKind = Kind{
	Name:  SpecBenchName,
	About: "questions of Spec-Bench (question.jsonl)",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, specBenchKnobs, orderKnobs),
	Texts: true,
	Times: Arriving,
	Check: checkSpecBench,
	Open:  vllmSpecBench,
}

var speedBenchKind = Kind{
	Name:  SpeedBenchName,
	About: "questions of SPEED-Bench: of vLLM's folder, or with --compat sglang of a file",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, speedBenchKnobs, customKnobs[1:], orderKnobs),
	Texts: true,
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) { ofTool(s, checkVLLMSpeedBench, checkSGLangSpeedBench)(s, bad) },
	Open:  func(s Spec) (Load, error) { return ofTool(s, vllmSpeedBench, sglangSpeedBench)(s) },
}

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
func vllmSpecBench(s Spec) (Load, error) {
	all, err := readBench(s.File, s.SpecBench, false)
	if err != nil {
		return Load{}, err
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
func vllmSpeedBench(s Spec) (Load, error) {
	all, err := readBench(filepath.Join(s.File, s.SpeedBench.Subset+".jsonl"), s.SpeedBench, true)
	if err != nil {
		return Load{}, err
	}
	return askBench(s, all)
}

// askBench asks as vLLM's custom dataset does, whose random.seed has 0 here.
func askBench(s Spec, all []row) (Load, error) {
	g := newGenerators(s.Seed)
	s.Seed = 0
	*g.Python = *newGenerators(0).Python
	return s.askPrompts(all, &g)
}

// readBench reads the questions of a category.
func readBench(name string, b Bench, messages bool) (all []row, err error) {
	f, err := trace.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := trace.NewJSON(name, f, "")
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
func sglangSpeedBench(s Spec) (Load, error) {
	all, err := readBench(s.File, s.SpeedBench, false)
	if err != nil {
		return Load{}, err
	}
	bare := s.Tokenizer != nil
	for i := range all {
		if !bare {
			break
		}
		text, err := s.template(all[i].text)
		if bare = err == nil; bare { // a model without a template is asked the texts alone
			all[i].text = s.Tokenizer.Decode(s.Tokenizer.Encode(text, false), false)
		}
	}
	g := newGenerators(s.Seed)
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
	return Load{Source: &texts{rows: rows, tokenizer: s.Tokenizer, bare: bare}, Count: len(rows), Notes: notes, Generators: &g}, nil
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
