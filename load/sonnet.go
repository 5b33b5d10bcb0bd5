package load

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"kvferry/internal/config"
	"kvferry/internal/knob"
)

// sonnetKnobs are the knobs of lines of a poem.
var sonnetKnobs = Knobs{
	{Name: "sonnet-input-len", Aliases: []string{inputLen}, Group: AskedGroup, Fields: []string{"Sonnet.InputLen"}, Default: "550", Value: knob.Int(func(s *Spec) *int { return &s.Sonnet.InputLen }), Help: "tokens of a prompt, about"},
	{Name: "sonnet-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"Sonnet.OutputLen"}, Default: "150", Value: knob.Int(func(s *Spec) *int { return &s.Sonnet.OutputLen }), Help: "output tokens"},
	{Name: "sonnet-prefix-len", Group: AskedGroup, Fields: []string{"Sonnet.PrefixLen"}, Default: "200", Value: knob.Int(func(s *Spec) *int { return &s.Sonnet.PrefixLen }), Help: "tokens that all prompts begin with, about"},
	{Name: "sonnet-legacy", Group: AskedGroup, Fields: []string{"Sonnet.Legacy"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Sonnet.Legacy }), Help: "as vLLM's client of 2024: prompts may be longer"},
}

var sonnetKind = Kind{
	Name:  SonnetName,
	About: "lines of a poem, the first ones in every prompt",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, sonnetKnobs),
	Texts: true,
	Times: Arriving,
	Check: checkSonnet,
	Open:  vllmSonnet,
}

// Sonnet are the options of a load of poem lines. Lengths are tokens.
type Sonnet struct {
	InputLen  int // of a prompt, about
	OutputLen int
	PrefixLen int // that all prompts begin with, about
	// Legacy is the form that vLLM's benchmark_serving.py had in 2024, and that Mooncake's
	// tables were measured with: a prompt may be longer than InputLen.
	Legacy bool
}

const sonnetTask = "Pick as many lines as you can from these poem lines:\n"

// vllmSonnet is SonnetDataset, which releases after 0.26 do not have. A
// prompt is a line that says what to do, the first lines of the file, and lines drawn from
// all of it. In the legacy form every prompt that is drawn is asked, in the other one those
// that are not longer than InputLen.
func vllmSonnet(s Spec) (Load, error) {
	text, err := config.ReadFile(s.File)
	if err != nil {
		return Load{}, err
	}
	p := &poem{Spec: s, lines: poemLines(string(text))}
	if len(p.lines) == 0 {
		return Load{}, fmt.Errorf("%q: it has no lines", s.File)
	}
	if err := p.measure(); err != nil {
		return Load{}, err
	}
	g := newGenerators(s.Seed)
	for range s.Requests {
		if err := p.choose(&g); err != nil {
			return Load{}, err
		}
	}
	return Load{Source: p, Count: s.Requests, Generators: &g}, nil
}

// poemLines are the lines of a text with their ends, as Python reads them: every end is \n.
func poemLines(text string) []string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// poem is the source: the file's lines, and for each request the places of those that were
// drawn for it, 4 bytes a line. Which are drawn has to be known beforehand, because a prompt
// that is too long is drawn again.
type poem struct {
	Spec
	lines  []string
	prefix int // lines that all begin with
	extra  int // lines drawn for each
	drawn  [][]int32
}

// measure finds how many lines make a prompt.
func (p *poem) measure() error {
	total := 0
	for _, l := range p.lines {
		total += p.length(l)
	}
	average := float64(total) / float64(len(p.lines))
	task, err := p.asUser(sonnetTask)
	if err != nil {
		return err
	}
	o, least := p.Sonnet, p.length(task)
	if o.InputLen <= least {
		return fmt.Errorf("--sonnet-input-len %d: use more than %d, which what comes before the lines has", o.InputLen, least)
	}
	if average == 0 {
		return fmt.Errorf("%q: its lines have no tokens", p.File)
	}
	lines := func(tokens int) int { return int(math.RoundToEven(float64(tokens-least) / average)) }
	input := lines(o.InputLen)
	p.prefix = lines(o.PrefixLen)
	if o.Legacy {
		if o.PrefixLen <= least || o.PrefixLen >= o.InputLen {
			return fmt.Errorf("--sonnet-prefix-len %d: use more than %d, which what comes before the lines has, and less than the input's %d", o.PrefixLen, least, o.InputLen)
		}
	} else {
		input = max(input, 1)
		p.prefix = max(p.prefix, 0)
	}
	p.extra = max(input-p.prefix, 0)
	p.prefix = min(p.prefix, len(p.lines))
	return nil
}

// choose draws the lines of one more request.
func (p *poem) choose(g *Generators) error {
	const tries = 10000
	for range tries {
		lines := make([]int32, p.extra)
		for i := range lines {
			lines[i] = int32(g.Python.Choices(len(p.lines)))
		}
		if !p.Sonnet.Legacy {
			_, rendered, err := p.prompt(lines)
			if err != nil {
				return err
			}
			if p.length(rendered) > p.Sonnet.InputLen {
				continue
			}
		}
		p.drawn = append(p.drawn, lines)
		return nil
	}
	return fmt.Errorf("%d draws of lines in a row have more than %d tokens: use a larger --sonnet-input-len, or a smaller --sonnet-prefix-len", tries, p.Sonnet.InputLen)
}

// prompt is what is asked, and the same in the chat template.
func (p *poem) prompt(lines []int32) (plain, rendered string, err error) {
	var b strings.Builder
	b.WriteString(sonnetTask)
	for _, l := range p.lines[:p.prefix] {
		b.WriteString(l)
	}
	for _, i := range lines {
		b.WriteString(p.lines[i])
	}
	rendered, err = p.asUser(b.String())
	return b.String(), rendered, err
}

func (p *poem) Next() (Request, bool, error) {
	if len(p.drawn) == 0 {
		return Request{}, false, nil
	}
	text, rendered, err := p.prompt(p.drawn[0])
	if err != nil {
		return Request{}, false, err
	}
	p.drawn = p.drawn[1:]
	r := Request{Prompt: p.Tokenizer.Encode(rendered, true), Text: text, MaxTokens: p.Sonnet.OutputLen, MayStop: true}
	if !p.Chat { // no server puts the template there
		r.Text = rendered
	}
	return r, true, nil
}

func checkSonnet(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the file of the poem (--dataset-path)")
	checkRequests(s, bad)
	config.Between(bad, "Sonnet.InputLen", s.Sonnet.InputLen, 1, maxLen)
	config.Between(bad, "Sonnet.OutputLen", s.Sonnet.OutputLen, 1, maxLen)
	config.Between(bad, "Sonnet.PrefixLen", s.Sonnet.PrefixLen, 0, maxLen)
	bad.Refuse(s.Tokenizer == nil, "Tokenizer", nil, "lines are counted in tokens, and prompts have a chat template: give --tokenizer")
}
