package load

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
)

// maxLen bounds a request's lengths: ten times what any model takes. A prompt is in
// memory, 4 bytes a token, also if it is refused.
const maxLen = 1 << 24

// randomKnobs are the knobs of what is drawn at random.
var randomKnobs = Knobs{
	{Name: "random-input-len", Aliases: []string{"random-input", inputLen}, Group: AskedGroup, Fields: []string{"InputLen"}, Default: "1024", Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.InputLen }), Help: "prompt tokens"},
	{Name: "random-output-len", Aliases: []string{"random-output", outputLen}, Group: AskedGroup, Fields: []string{"OutputLen"}, Default: "128", Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.OutputLen }), Help: "output tokens"},
	{Name: "random-range-ratio", Group: AskedGroup, Fields: []string{"RangeRatio", "OutputRatio"}, Value: func(s *Spec) pflag.Value { return ratio{s} }, Help: "lengths are uniform in length x (1 -+ this), with --compat sglang from length x this to length; for vLLM's draws also {\"input\": 0.2, \"output\": 0.5}"},
	{Name: "random-prefix-len", Group: AskedGroup, Fields: []string{"PrefixLen"}, Value: knob.Int(func(s *Spec) *int { return &s.PrefixLen }), Help: "tokens that all prompts begin with, before the others"},
}

// randomKind is the load whose requests have nothing in common, as vLLM's random
// dataset has them: lengths are uniform in [length x (1 - RangeRatio), length x
// (1 + RangeRatio)], gaps between arrivals gamma distributed. All begin with the same
// PrefixLen tokens. With Compat the draws are that tool's own, of its dataset random.
var randomKind = Kind{
	Name:  Random,
	About: "lengths, tokens and arrivals are drawn",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, randomKnobs, sharingKnobs),
	Times: Arriving,
	Check: checkRandom,
	Open: func(s Spec) (Load, error) {
		switch s.draws() {
		case "":
			return openDraws(s)
		case CompatSGLang:
			return sglangRandoms(s)
		}
		return vllmRandoms(s, s.Tokenizer), nil
	},
}

// randomIDsKind is SGLang's dataset that needs no text. vLLM has none of that name: with its draws a prompt is that of
// random before it is made to survive being text. Our own draws are tokens anyway.
var randomIDsKind = Kind{
	Name:  RandomIDs,
	About: "lengths and tokens are drawn, and no tokenizer is needed",
	Knobs: slices.Concat(Knobs{seedKnob}, randomKnobs),
	Times: Arriving,
	Check: checkRandom,
	Open: func(s Spec) (Load, error) {
		switch s.draws() {
		case "":
			return openDraws(s)
		case CompatSGLang:
			return sglangRandomIDs(s)
		}
		return vllmRandoms(s, nil), nil
	},
}

// checkRandom checks what the two random loads read.
func checkRandom(s Spec, bad *config.Faults) {
	if s.draws() == "" {
		checkDraws(s, bad)
		return
	}
	ofTool(s, checkVLLMRandom, checkSGLangRandom)(s, bad)
}

// draws is whose random draws they are: prompts that share beginnings are always ours.
func (s Spec) draws() string {
	if s.Sharing.HitRate > 0 {
		return ""
	}
	return s.Compat
}

func openDraws(s Spec) (Load, error) {
	d := newDraws(s)
	var notes []string
	if s.Compat != "" {
		notes = append(notes, "prompts that share beginnings (--prefix-hit-rate) are kvferry's own draws: no other tool has them")
	}
	// Gaps and lengths come from one generator: figures that were printed hang on it.
	return Load{Source: d, Count: s.Requests, Notes: notes, rng: d.rng}, nil
}

// checkDraws checks what is drawn at random by ourselves.
func checkDraws(s Spec, bad *config.Faults) {
	if s.File != "" {
		bad.Add("File", s.File, "only sglang.bench_serving's random takes its prompts from a file: leave --dataset-path out, or name the kind of the file")
	}
	if s.OutputRatio != nil {
		bad.Add("OutputRatio", *s.OutputRatio, "only vllm bench serve has a ratio of its own for outputs: use --compat vllm")
	}
	bad.Refuse(s.Requests < 1 && (s.Requests < 0 || s.Duration <= 0), "Requests", s.Requests, "use 1 or more")
	bad.Refuse(!(s.RangeRatio >= 0 && s.RangeRatio < 1), "RangeRatio", s.RangeRatio, "use 0 to below 1")
	config.Between(bad, "InputLen", s.InputLen, 1, maxLen)
	config.Between(bad, "OutputLen", s.OutputLen, 1, maxLen)
	s.Sharing.check(s, bad)
	config.Between(bad, "PrefixLen", s.PrefixLen, 0, maxLen)
	config.Between(bad, "Vocab", s.Vocab, 1, 1<<30)
}

// draws are requests of random lengths and tokens, all due at once.
type draws struct {
	Spec
	rng    *rand.Rand
	n      int
	prefix []kvcache.Token
	shared *sharing // nil if prompts have no wanted beginning
}

func newDraws(s Spec) *draws {
	d := &draws{Spec: s, rng: rand.New(rand.NewPCG(s.Seed, 0x6b76666572727921))}
	if s.Sharing.HitRate > 0 {
		d.shared = newSharing(s.Sharing, s.Seed, s.Vocab)
	}
	return d
}

func (d *draws) Next() (Request, bool, error) {
	if d.n >= d.Requests && d.Requests > 0 { // 0: without end
		return Request{}, false, nil
	}
	d.n++
	if d.prefix == nil && d.PrefixLen > 0 {
		d.prefix = fill(nil, d.PrefixLen, d.rng.Uint64(), d.Vocab)
	}
	prompt := make([]kvcache.Token, 0, d.PrefixLen+int(float64(d.InputLen)*(1+d.RangeRatio)))
	prompt = append(prompt, d.prefix...)
	length := d.length(d.InputLen)
	if d.shared != nil {
		prompt = d.shared.begin(prompt, length)
		length -= len(prompt)
	}
	prompt = fill(prompt, length, d.rng.Uint64(), d.Vocab)
	return Request{Prompt: prompt, MaxTokens: d.length(d.OutputLen)}, true, nil
}

func (d *draws) length(mean int) int {
	low, high := int(math.Ceil(float64(mean)*(1-d.RangeRatio))), int(float64(mean)*(1+d.RangeRatio))
	return max(low+d.rng.IntN(high-low+1), 1)
}

// fill appends n tokens that follow from the seed: splitmix64, at a nanosecond
// each where math/rand takes four.
func fill(tokens []kvcache.Token, n int, seed uint64, vocab int) []kvcache.Token {
	for range n {
		seed += 0x9e3779b97f4a7c15
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		tokens = append(tokens, kvcache.Token((z>>32)*uint64(vocab)>>32))
	}
	return tokens
}
