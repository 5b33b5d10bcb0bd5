package load

import (
	"fmt"
	"strings"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/tooldraws"
)

// sglangLengths is compute_random_lens of sglang.bench_serving: uniform from longest x ratio
// to longest, both included. So ratio 1 is one length and ratio 0 anything from 1 on, the
// opposite of what vLLM means.
func sglangLengths(rng *tooldraws.RandomState, longest int, ratio float64, n int) []int32 {
	lengths := make([]int32, n)
	low := max(int(float64(longest)*ratio), 1)
	for i := range lengths {
		lengths[i] = int32(rng.Randint(int64(low), int64(longest)+1))
	}
	return lengths
}

// sglangRandom is the source of random-ids: lengths from numpy's global generator, and
// tokens that follow one another in the vocabulary from a drawn place on. Lengths and places
// are drawn beforehand, as the tool does: 12 bytes a request.
type sglangRandom struct {
	inputs, outputs, places []int32
	vocab                   int
	tokenizer               Tokenizer // nil: no text
	n                       int
}

// sglangDraws are the lengths that random and random-ids draw alike: all inputs first, then all
// outputs.
func sglangDraws(s Spec) (inputs, outputs []int32, g Generators) {
	g = newGenerators(s.Seed)
	inputs = sglangLengths(g.Numpy, s.InputLen, s.RangeRatio, s.Requests)
	outputs = sglangLengths(g.Numpy, s.OutputLen, s.RangeRatio, s.Requests)
	if !s.TokenIDs { // the server will put its special tokens around a text
		special := int32(s.special())
		for i := range inputs {
			inputs[i] = max(1, inputs[i]-special)
		}
	}
	return inputs, outputs, g
}

// sglangRandomIDs is RandomDataset under its name random-ids.
func sglangRandomIDs(s Spec) (Load, error) {
	inputs, outputs, g := sglangDraws(s)
	r := &sglangRandom{inputs: inputs, outputs: outputs, places: make([]int32, s.Requests), vocab: s.vocab()}
	for i := range r.places {
		r.places[i] = int32(g.Numpy.Randint(0, int64(r.vocab)))
	}
	if !s.TokenIDs {
		r.tokenizer = s.Tokenizer
	}
	return Load{Source: r, Count: s.Requests, Generators: &g}, nil
}

func (r *sglangRandom) Next() (Request, bool, error) {
	if r.n == len(r.inputs) {
		return Request{}, false, nil
	}
	place := int(r.places[r.n]) + r.n
	prompt := make([]kvcache.Token, r.inputs[r.n])
	for i := range prompt {
		prompt[i] = kvcache.Token((place + i) % r.vocab)
	}
	next := Request{Prompt: prompt, MaxTokens: int(r.outputs[r.n])}
	if r.tokenizer != nil {
		next.Text = r.tokenizer.Decode(prompt, false)
	}
	r.n++
	return next, true, nil
}

// sglangRandoms is RandomDataset under its name random: ShareGPT's prompts, each cut or
// repeated to a drawn length; the prompts to come are in memory. Without the file the lengths
// are the same, and the tokens those of random-ids.
func sglangRandoms(s Spec) (Load, error) {
	if s.File == "" {
		l, err := sglangRandomIDs(s)
		l.Notes = append(l.Notes, "random without a file of conversations (--dataset-path): "+
			"lengths are those that sglang.bench_serving draws, tokens those of its random-ids")
		return l, err
	}
	inputs, outputs, g := sglangDraws(s)
	file, err := readConversations(s.File, true)
	if err != nil {
		return Load{}, err
	}
	g.Python.Shuffle(len(file), func(i, j int) { file[i], file[j] = file[j], file[i] })
	f := &fitted{inputs: inputs, outputs: outputs, tokenizer: s.Tokenizer, text: !s.TokenIDs}
	for i := 0; i < len(file) && len(f.prompts) < s.Requests; i++ {
		// One without a token has nothing to repeat.
		if q := file[i].question; strings.TrimSpace(q) != "" || len(s.Tokenizer.Encode(q, true)) > 0 {
			f.prompts = append(f.prompts, q)
		}
	}
	l := Load{Source: f, Count: len(f.prompts), Generators: &g}
	if n := len(f.prompts); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d conversations, so there are %d requests and not %d, as with sglang.bench_serving", s.File, n, n, s.Requests))
	}
	return l, nil
}

// fitted are prompts cut or repeated to given lengths.
type fitted struct {
	prompts         []string
	inputs, outputs []int32
	tokenizer       Tokenizer
	text            bool
	n               int
}

func (f *fitted) Next() (Request, bool, error) {
	if f.n == len(f.prompts) {
		return Request{}, false, nil
	}
	ids := f.tokenizer.Encode(f.prompts[f.n], true)
	if len(ids) == 0 {
		return Request{}, false, fmt.Errorf("conversation %.40q has no tokens", f.prompts[f.n])
	}
	f.prompts[f.n] = ""
	prompt := make([]kvcache.Token, f.inputs[f.n])
	for i := range prompt {
		prompt[i] = ids[i%len(ids)]
	}
	next := Request{Prompt: prompt, MaxTokens: int(f.outputs[f.n])}
	if f.text {
		next.Text = f.tokenizer.Decode(prompt, false)
	}
	f.n++
	return next, true, nil
}

// checkSGLangRandom checks what SGLang's random and random-ids read.
func checkSGLangRandom(s Spec, bad *config.Faults) {
	checkLengths(s, bad)
	checkSGLangRatio(bad, "RangeRatio", s.RangeRatio)
	if s.OutputRatio != nil {
		bad.Add("OutputRatio", *s.OutputRatio, "sglang.bench_serving has one ratio for both: leave it out, or use --compat vllm")
	}
	if s.PrefixLen != 0 {
		bad.Add("PrefixLen", s.PrefixLen, "sglang.bench_serving has no prefix: use 0, or --compat vllm")
	}
	if s.File != "" && s.Tokenizer == nil {
		bad.Add("Tokenizer", nil, "prompts of a file are cut to lengths in tokens: give --tokenizer, or leave --dataset-path out")
	}
}
