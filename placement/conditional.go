package placement

// Conditional is conditional disaggregation, as Dynamo's router has it: a prompt that has few
// tokens to compute is computed where it is decoded, and no KV moves. What a decode node is taken
// to have in its prefix cache need not be computed; that counts where the policy goes by prefixes.
type Conditional struct {
	limit int
	caches
}

// ConditionalHelp is the help of the flag with its limit.
const ConditionalHelp = "prompts of at most so many tokens to compute are computed by the node that decodes them, and no KV moves; with a placement that goes by prefixes, what that node has cached does not count; 0: none"

// NewConditional returns it for prompts of at most limit tokens to compute, and decode nodes with
// blocks of blockTokens tokens. With a limit of 0 every prompt is computed elsewhere.
func NewConditional(limit, blockTokens int) *Conditional {
	return &Conditional{limit, newCaches(blockTokens)}
}

// Local returns the decode node that computes the prompt itself, or false if none does. Where all
// would, decode chooses; else it is the one that has the most of the prompt.
func (k *Conditional) Local(r Request, candidates []Candidate, decode Policy) (node int, ok bool) {
	if k.limit == 0 {
		return 0, false
	}
	if r.KVBytes = 0; r.Tokens <= k.limit {
		return decode.Place(r, candidates), true
	}
	node = least(k.turn, candidates, func(i int) int { return -k.saved(&candidates[i], &r) })
	return node, r.Tokens-k.saved(&candidates[node], &r) <= k.limit
}

// Takes notes that a decode node gets a prompt's KV, by whatever way.
func (k *Conditional) Takes(c *Candidate, r Request) {
	if k.limit > 0 {
		k.next()
		k.add(c, &r)
	}
}
