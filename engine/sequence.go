package engine

import (
	"fmt"
	"slices"
	"time"

	"kvferry/kvcache"
)

// KVSource says where the KV of a request's prompt comes from.
type KVSource uint8

const (
	// Compute: this engine computes the prompt.
	Compute KVSource = iota
	// Await: another node computes it and it arrives in the background. The
	// scheduler allocates the blocks, reports them in Ready.Allocated, and runs the
	// sequence after its Landed event.
	Await
	// Blocking: another node computed it, and this engine fetches it inside a step
	// of kind Receive, while everything else waits (hand-off v0).
	Blocking
)

// Words are the tokens that are generated: Count of them, from First on; with Count 0 it is the
// whole vocabulary. A proxy names those which are a word each, so that text of them that a
// client encodes again is as many tokens as were generated.
type Words struct{ First, Count kvcache.Token }

// Validate says whether a vocabulary has all of them.
func (w Words) Validate(vocab int) error {
	if end := uint64(w.First) + uint64(w.Count); end > uint64(vocab) {
		return fmt.Errorf("words: %d from %d: the vocabulary has %d tokens", w.Count, w.First, vocab)
	}
	return nil
}

// A Request is what Add brings.
type Request struct {
	ID     uint64
	Prompt []kvcache.Token
	// Prefix is kvcache.PrefixHashes of the prompt if the caller has it already;
	// nil and it is computed where it is needed.
	Prefix []kvcache.Hash
	// Adapter is the LoRA adapter that it is for, of AdapterRank; empty is the model itself.
	Adapter     string
	AdapterRank int
	// Salt is the request's cache salt: its KV is shared with requests of the same salt only.
	Salt string
	// Variant says which of the prompt's possible answers is wanted, where a real engine
	// would sample several: each variant has tokens of its own. The published rows have 0.
	Variant   uint64
	Words     Words // what its answer is made of
	MaxTokens int
	Ready     time.Duration // may be scheduled from then on
	KV        KVSource
	// Keep leaves the sequence's blocks held after its last token, until Free:
	// a consumer is going to read them.
	Keep bool
	// Reserve is for how many tokens beyond the prompt an Await sequence gets blocks with it: as
	// many of its answer may come with the prompt's KV.
	Reserve int
	// AtOnce lets its outputs leave with the end of their step. Otherwise they wait
	// for the launch of the next one; see Costs.OutputDelayMS.
	AtOnce bool
}

// Validate says whether a scheduler with these blocks and a model of that many tokens can
// ever serve the request: its error is one of this package's, and nil if it can.
func (r *Request) Validate(pool *kvcache.Pool, maxModelLen int) error {
	room := pool.Total() * pool.BlockTokens()
	switch {
	case len(r.Prompt) == 0:
		return ErrEmptyPrompt
	case r.MaxTokens < 1:
		return fmt.Errorf("max_tokens is %d: must be at least 1", r.MaxTokens)
	case r.Reserve < 0 || r.Reserve > r.MaxTokens:
		return fmt.Errorf("reserve is %d: max_tokens is %d", r.Reserve, r.MaxTokens)
	case r.MaxTokens > maxModelLen-len(r.Prompt):
		return fmt.Errorf("%w: %d + %d tokens, at most %d", ErrTooLong, len(r.Prompt), r.MaxTokens, maxModelLen)
	case r.MaxTokens > room-len(r.Prompt):
		return fmt.Errorf("%w: %d + %d tokens, at most %d", ErrPoolSize, len(r.Prompt), r.MaxTokens, room)
	}
	return nil
}

// A Sequence is a request in a scheduler. The executor and the hand-offs read it; only
// its scheduler writes it, and only between steps what the step under way works on. What
// a scheduler alone wants to know of it, it keeps beside it.
type Sequence struct {
	Request
	Table kvcache.Table // the blocks that hold its tokens' KV
	// Held is how many of its tokens, the first ones, have their KV in the blocks. While it
	// generates they are all but the last.
	Held int

	// When things happened, for the breakdown; zero if they did not.
	Launched time.Duration // first step that computed its prompt: see Launch
	Computed time.Duration // prompt computed

	launched bool            // perhaps at 0
	output   []kvcache.Token // so far
	state    uint64          // digest of all tokens, from which the next one is drawn
	cached   int             // prompt tokens that the prefix cache had
	found    int             // and before any were computed
}

// NewSequence makes what a scheduler has of a request: its prompt, which nobody changes, and no
// blocks yet.
func NewSequence(r Request) *Sequence {
	s := &Sequence{Request: r, state: r.Variant, output: make([]kvcache.Token, 0, min(r.MaxTokens, 256))}
	s.digest(r.Prompt...)
	return s
}

// Adopt makes blocks that the prefix cache had the sequence's first ones, if there are any;
// it has no others. See kvcache.Table.Adopt.
func (s *Sequence) Adopt(pool *kvcache.Pool, refs []kvcache.Ref) error {
	s.cached = len(refs) * pool.BlockTokens()
	s.noteFound()
	if len(refs) == 0 {
		return nil
	}
	return s.Table.Adopt(pool, refs)
}

// Load has tokens that a tier below the prefix cache has count as Cached, after Adopt.
func (s *Sequence) Load(tokens int) {
	s.cached += tokens
	s.noteFound()
}

// Launch notes that a step computes the prompt, or a part of it. The first one counts.
func (s *Sequence) Launch(at time.Duration) {
	if !s.launched {
		s.launched, s.Launched = true, at
	}
}

// noteFound notes what is cached, as long as nothing was computed or given.
func (s *Sequence) noteFound() {
	if !s.launched && s.Output() == 0 {
		s.found = s.cached
	}
}

// Found is what Cached was before the sequence began: what a preemption takes and a cache gives back
// does not count.
func (s *Sequence) Found() int { return s.found }

// Cached is the number of tokens that the prefix cache had when the sequence got
// its blocks, or a tier below it.
func (s *Sequence) Cached() int { return s.cached }

// Append adds a token of the output: drawn by the executor, or given by another node.
func (s *Sequence) Append(t kvcache.Token) {
	s.output = append(s.output, t)
	s.digest(t)
}

// digest takes tokens into the state. Where there is one word it decides nothing.
func (s *Sequence) digest(tokens ...kvcache.Token) {
	if s.Words.Count == 1 {
		return
	}
	for _, t := range tokens {
		s.state = fold(s.state, t)
	}
}

// Len is the number of its tokens: the prompt and the output so far.
func (s *Sequence) Len() int { return len(s.Prompt) + len(s.output) }

// Tokens are those of the prompt and the output so far, from a place on. The slice is not the
// caller's.
func (s *Sequence) Tokens(from int) []kvcache.Token {
	switch n := len(s.Prompt); {
	case from >= n:
		return s.output[from-n:]
	case len(s.output) == 0:
		return s.Prompt[from:]
	default:
		return slices.Concat(s.Prompt[from:], s.output)
	}
}

// Output is the number of output tokens so far, given ones included.
func (s *Sequence) Output() int { return len(s.output) }

// NextToken is what the modelled engine generates after the sequence's present
// tokens: a deterministic function of all of them and of the variant, so that any node
// continues a sequence as any other would have, and the same prompt has the same answer
// under every hand-off. It is one of the request's Words, or of a vocabulary of vocab.
func (s *Sequence) NextToken(vocab int) kvcache.Token { return s.Words.Draw(s.state, vocab) }

// Draw returns the word that a state determines, or the token of a vocabulary of vocab if w is zero.
func (w Words) Draw(state uint64, vocab int) kvcache.Token {
	first, n := kvcache.Token(0), uint64(vocab)
	if w.Count > 0 {
		first, n = w.First, uint64(w.Count)
	}
	if n == 1 {
		return first
	}
	return first + kvcache.Token(mix(state)%n)
}

// fold and mix are the steps of splitmix64 (Steele et al. 2014): cheap, and every
// bit of the digest depends on every token.
func fold(state uint64, t kvcache.Token) uint64 { return mix(state ^ uint64(t)*0x9e3779b97f4a7c15) }

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
