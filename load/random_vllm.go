package load

import (
	"math"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/tooldraws"
)

// vllmRandom is the source of RandomDataset: lengths are uniform in a range around InputLen and
// OutputLen, and tokens follow one another in the vocabulary from a drawn place on. Everything
// comes from one numpy Generator of its own, so the tool's global generators stay as they were
// seeded. Lengths and places are drawn beforehand, as the tool does: 12 bytes a request.
//
// With a tokenizer a prompt is text that has as many tokens as were drawn, as far as the tool
// gets it there (see [exactly]). Without one it is the tokens.
type vllmRandom struct {
	inputs, outputs, places []int32
	prefix                  []kvcache.Token
	special                 []kvcache.Token // ids that no prompt has, in ascending order
	allowed                 int             // how many others there are
	vocab                   int
	rng                     *tooldraws.NumpyGenerator
	tokenizer               Tokenizer // nil: tokens as they were drawn
	n                       int
}

// vllmRange is where lengths around that mean lie: from floor(mean (1 - ratio)) to ceil(mean (1 +
// ratio)), both included.
func vllmRange(mean int, ratio float64) (low, high int64) {
	return int64(math.Floor(float64(mean) * (1 - ratio))), int64(math.Ceil(float64(mean) * (1 + ratio)))
}

// vllmRandoms is RandomDataset. Without t prompts are tokens.
func vllmRandoms(s Spec, t Tokenizer) Load {
	v := &vllmRandom{rng: tooldraws.DefaultRNG(s.Seed), vocab: s.vocab(), tokenizer: t}
	v.special = s.specialIDs()
	v.allowed = s.plain()
	outputs := s.RangeRatio
	if s.OutputRatio != nil {
		outputs = *s.OutputRatio
	}
	low, high := vllmRange(max(0, s.InputLen-s.special()), s.RangeRatio)
	v.inputs = v.draw(s.Requests, low, high+1)
	low, high = vllmRange(s.OutputLen, outputs)
	v.outputs = v.draw(s.Requests, max(low, 1), max(high, 1)+1)
	v.places = v.draw(s.Requests, 0, int64(v.vocab))
	v.prefix = make([]kvcache.Token, s.PrefixLen)
	for i := range v.prefix {
		v.prefix[i] = v.token(int(v.rng.Integers(0, int64(v.allowed))))
	}
	if v.tokenizer != nil && s.PrefixLen > 0 {
		_, v.prefix = exactly(v.tokenizer, v.prefix, s.PrefixLen, v.another)
	}
	g := newGenerators(s.Seed)
	return Load{Source: v, Count: s.Requests, Generators: &g}
}

// draw are n numbers from low to below high, in the order in which they are drawn.
func (v *vllmRandom) draw(n int, low, high int64) []int32 {
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(v.rng.Integers(low, high))
	}
	return all
}

// token is the i-th that is not special.
func (v *vllmRandom) token(i int) kvcache.Token {
	id := kvcache.Token(i)
	for _, s := range v.special {
		if id >= s {
			id++
		}
	}
	return id
}

// another is a token for a prompt that has too few. It may be special.
func (v *vllmRandom) another() kvcache.Token {
	return kvcache.Token(v.rng.Integers(0, int64(v.vocab)))
}

func (v *vllmRandom) Next() (Request, bool, error) {
	if v.n == len(v.inputs) {
		return Request{}, false, nil
	}
	length, place := int(v.inputs[v.n]), int(v.places[v.n])+v.n
	r := Request{MaxTokens: int(v.outputs[v.n])}
	r.Prompt = append(make([]kvcache.Token, 0, len(v.prefix)+length), v.prefix...)
	for i := range length {
		r.Prompt = append(r.Prompt, v.token((place+i)%v.allowed))
	}
	if v.tokenizer != nil {
		r.Text, r.Prompt = exactly(v.tokenizer, r.Prompt, len(v.prefix)+length, v.another)
	}
	v.n++
	return r, true, nil
}

// exactly makes a text of so many tokens, without those that the tokenizer puts around it.
// Tokens that are decoded and encoded again may come out as fewer or more. Then they are
// filled up with others or cut, and again, ten times at most, as vLLM's
// gen_prompt_decode_to_target_len does it; what has another length after that keeps it.
func exactly(t Tokenizer, ids []kvcache.Token, length int, another func() kvcache.Token) (string, []kvcache.Token) {
	const tries = 10
	for try := 0; ; try++ {
		text := t.Decode(ids, false)
		ids = t.Encode(text, false)
		if len(ids) == length || try == tries {
			return text, ids
		}
		for len(ids) < length {
			ids = append(ids, another())
		}
		ids = ids[:length]
	}
}

// checkVLLMRandom checks what vLLM's random and random-ids read. Their ratio is a part on
// either side of a length, where SGLang's is the least part of it.
func checkVLLMRandom(s Spec, bad *config.Faults) {
	checkLengths(s, bad)
	bad.Refuse(!(s.RangeRatio >= 0 && s.RangeRatio < 1), "RangeRatio", s.RangeRatio, "use 0 to below 1: lengths are drawn from length x (1 -+ this)")
	if r := s.OutputRatio; r != nil && !(*r >= 0 && *r < 1) {
		bad.Add("OutputRatio", *r, "use 0 to below 1: lengths are drawn from length x (1 -+ this)")
	}
	if s.File != "" {
		bad.Add("File", s.File, "only sglang.bench_serving's random takes its prompts from a file: leave --dataset-path out, or name the kind of the file")
	}
	if low, _ := vllmRange(max(0, s.InputLen-s.special()), s.RangeRatio); len(*bad) == 0 && int64(s.PrefixLen)+low < 1 {
		bad.Add("InputLen", s.InputLen, "prompts could be empty: use more, or a smaller --random-range-ratio")
	}
}
