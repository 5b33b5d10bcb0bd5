package tooldraws

import "fmt"

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
func vllmPrefixRepetition(s Spec) (Sampled, error) {
	o := s.PrefixRepetition
	g := seeded(s.Seed)
	r := &repetition{tokenizer: s.Tokenizer, output: o.OutputLen}
	each := s.Requests / o.Prefixes
	for range o.Prefixes {
		prefix := s.randomTokens(&g, o.PrefixLen)
		for range each {
			r.parts = append(r.parts, [2][]Token{prefix, s.randomTokens(&g, o.SuffixLen)})
		}
	}
	shuffled(s, r.parts, &g)
	l := Sampled{Source: r, Count: len(r.parts), g: &g}
	if n := len(r.parts); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%d requests are %d for each of %d prefixes: the other %d of %d are not asked, as with vllm bench serve", n, each, o.Prefixes, s.Requests-n, s.Requests))
	}
	return l, nil
}

// randomTokens are so many, which stay that many as a text.
func (s Spec) randomTokens(g *generators, n int) []Token {
	draw := func() Token { return Token(g.Numpy.Randint(0, int64(s.vocab()))) }
	ids := make([]Token, n)
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
	parts     [][2][]Token
	tokenizer Tokenizer // nil: no text
	output    int
}

func (r *repetition) Next() (Request, bool, error) {
	if len(r.parts) == 0 {
		return Request{}, false, nil
	}
	next := r.parts[0]
	r.parts[0] = [2][]Token{}
	r.parts = r.parts[1:]
	q := Request{MaxTokens: r.output, MayStop: true}
	q.Prompt = append(append(make([]Token, 0, len(next[0])+len(next[1])), next[0]...), next[1]...)
	if r.tokenizer != nil {
		q.Text = r.tokenizer.Decode(q.Prompt, false)
	}
	return q, true, nil
}
