package load

import (
	"fmt"
	"slices"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
)

// prefixRepetitionKnobs are the knobs of prompts with a few beginnings.
var prefixRepetitionKnobs = Knobs{
	{Name: "prefix-repetition-prefix-len", Group: AskedGroup, Fields: []string{"PrefixRepetition.PrefixLen"}, Default: "256", Value: knob.Int(func(s *Spec) *int { return &s.PrefixRepetition.PrefixLen }), Help: "tokens of a prefix"},
	{Name: "prefix-repetition-suffix-len", Aliases: []string{inputLen}, Group: AskedGroup, Fields: []string{"PrefixRepetition.SuffixLen"}, Default: "256", Value: knob.Int(func(s *Spec) *int { return &s.PrefixRepetition.SuffixLen }), Help: "tokens after it"},
	{Name: "prefix-repetition-num-prefixes", Group: AskedGroup, Fields: []string{"PrefixRepetition.Prefixes"}, Default: "10", Value: knob.Int(func(s *Spec) *int { return &s.PrefixRepetition.Prefixes }), Help: "how many prefixes there are"},
	{Name: "prefix-repetition-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"PrefixRepetition.OutputLen"}, Default: "128", Value: knob.Int(func(s *Spec) *int { return &s.PrefixRepetition.OutputLen }), Help: "output tokens"},
}

var prefixRepetitionKind = Kind{
	Name:  PrefixRepetitionName,
	About: "random tokens after one of a few random beginnings",
	Knobs: slices.Concat(Knobs{seedKnob}, prefixRepetitionKnobs, orderKnobs[:1]),
	Times: Arriving,
	Check: checkPrefixRepetition,
	Open:  vllmPrefixRepetition,
}

// PrefixRepetition are its options. Lengths are tokens.
type PrefixRepetition struct {
	PrefixLen, SuffixLen int
	Prefixes             int // how many beginnings there are
	OutputLen            int
}

// vllmPrefixRepetition is PrefixRepetitionRandomDataset: every
// beginning has as many requests, with random endings, in an order that is drawn. What is
// left over of Requests is not asked.
//
// Shuffling comes last, so all of it is drawn beforehand: the endings are in memory, 4 bytes a
// token.
func vllmPrefixRepetition(s Spec) (Load, error) {
	o := s.PrefixRepetition
	g := newGenerators(s.Seed)
	r := &repetition{tokenizer: s.Tokenizer, output: o.OutputLen}
	each := s.Requests / o.Prefixes
	for range o.Prefixes {
		prefix := s.randomTokens(&g, o.PrefixLen)
		for range each {
			r.parts = append(r.parts, [2][]kvcache.Token{prefix, s.randomTokens(&g, o.SuffixLen)})
		}
	}
	shuffled(s, r.parts, &g)
	l := Load{Source: r, Count: len(r.parts), Generators: &g}
	if n := len(r.parts); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%d requests are %d for each of %d prefixes: the other %d of %d are not asked, as with vllm bench serve", n, each, o.Prefixes, s.Requests-n, s.Requests))
	}
	return l, nil
}

// randomTokens are so many, which stay that many as a text.
func (s Spec) randomTokens(g *Generators, n int) []kvcache.Token {
	draw := func() kvcache.Token { return kvcache.Token(g.Numpy.Randint(0, int64(s.vocab()))) }
	ids := make([]kvcache.Token, n)
	for i := range ids {
		ids[i] = draw()
	}
	if s.Tokenizer != nil {
		_, ids = exactly(s.Tokenizer, ids, n, draw)
	}
	return ids
}

// repetition are beginnings and endings to come.
type repetition struct {
	parts     [][2][]kvcache.Token
	tokenizer Tokenizer // nil: no text
	output    int
}

func (r *repetition) Next() (Request, bool, error) {
	if len(r.parts) == 0 {
		return Request{}, false, nil
	}
	next := r.parts[0]
	r.parts[0] = [2][]kvcache.Token{}
	r.parts = r.parts[1:]
	q := Request{MaxTokens: r.output, MayStop: true}
	q.Prompt = append(append(make([]kvcache.Token, 0, len(next[0])+len(next[1])), next[0]...), next[1]...)
	if r.tokenizer != nil {
		q.Text = r.tokenizer.Decode(q.Prompt, false)
	}
	return q, true, nil
}

// checkPrefixRepetition wants at least a request a prefix, as there would be none of some.
func checkPrefixRepetition(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	o := s.PrefixRepetition
	config.Between(bad, "PrefixRepetition.PrefixLen", o.PrefixLen, 0, maxLen)
	config.Between(bad, "PrefixRepetition.SuffixLen", o.SuffixLen, 0, maxLen)
	config.Between(bad, "PrefixRepetition.OutputLen", o.OutputLen, 1, maxLen)
	config.Between(bad, "PrefixRepetition.Prefixes", o.Prefixes, 1, maxLen)
	bad.Refuse(o.PrefixLen == 0 && o.SuffixLen == 0, "PrefixRepetition.SuffixLen", o.SuffixLen, "prompts would be empty: use more")
	bad.Refuse(s.Requests < max(o.Prefixes, 1), "Requests", s.Requests, "use as many as there are prefixes, %d, or more", o.Prefixes)
	checkHeld(bad, "Requests", s.Requests, float64(s.Requests)*float64(o.SuffixLen)+float64(o.Prefixes)*float64(o.PrefixLen))
	checkVocab(s, bad)
}
