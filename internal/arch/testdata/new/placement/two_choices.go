package placement

import "math/rand/v2"

// TwoChoices draws two nodes and takes the one with fewer prompt tokens to compute: nearly
// as even as to ask all (Mitzenmacher 2001, "the power of two choices").
const TwoChoices = "two-choices"

var twoChoicesKind = kind[placer]{TwoChoices, "of two drawn, the one with fewer prompt tokens to compute", func(int, bool) Policy {
	return &twoChoices{rand.New(rand.NewPCG(1, 2))}
}}

type twoChoices struct{ rng *rand.Rand } // seeded, so that runs repeat

func (p *twoChoices) Place(_ Request, candidates []Candidate) int {
	a, b := p.rng.IntN(len(candidates)), p.rng.IntN(len(candidates))
	if candidates[b].WaitingTokens < candidates[a].WaitingTokens {
		return b
	}
	return a
}

func (p *twoChoices) WantsPrefix() bool { return false }
