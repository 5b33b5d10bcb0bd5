package engine

import (
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

// A Request is what Add brings.
type Request struct {
	ID     uint64
	Prompt []kvcache.Token
	// Prefix is kvcache.PrefixHashes of the prompt if the caller has it already;
	// nil and it is computed where it is needed.
	Prefix    []kvcache.Hash
	MaxTokens int
	Ready     time.Duration // may be scheduled from then on
	KV        KVSource
	// Keep leaves the sequence's blocks held after its last token, until Free:
	// a consumer is going to read them.
	Keep bool
	// AtOnce lets its outputs leave with the end of their step. Otherwise they wait
	// for the launch of the next one; see Costs.OutputDelayMS.
	AtOnce bool
}

// A Sequence is a request in the scheduler. The executor and the hand-offs read
// it; only the scheduler writes it.
type Sequence struct {
	Request
	Table kvcache.Table

	tokens   []kvcache.Token // prompt and output so far
	computed int             // tokens whose KV is in the blocks
	cached   int             // of these, found in the prefix cache at admission
	// committed is how many full blocks have been offered to the prefix cache.
	committed int
	hashes    []kvcache.Hash // of the prompt's full blocks, if prefix caching is on
	refused   refusal        // when blocks were last asked for in vain
	state     uint64         // digest of tokens, from which the next one is drawn
	where     place
	runnable  time.Duration // when it became so; a step is not launched before

	// When things happened, for the breakdown; zero if they did not.
	Launched time.Duration // first step that computed its prompt
	Computed time.Duration // prompt computed
}

// A refusal is what the pool was like when it had too few blocks for a sequence.
// While it has no more, nor other prefixes, asking again is in vain; asking means
// to look up every block of the prompt, at every step of a node that is full.
type refusal struct{ free, prefixes int }

type place uint8

const (
	inFuture place = iota
	inWaiting
	inPending // blocks allocated, KV on its way
	inRunning
	finished
	kept // finished, blocks held for a consumer
)

// Tokens are the prompt and the output so far. The slice is the scheduler's.
func (s *Sequence) Tokens() []kvcache.Token { return s.tokens }

// Output is the number of output tokens so far, given ones included.
func (s *Sequence) Output() int { return len(s.tokens) - len(s.Prompt) }

// Cached is the number of prompt tokens that the prefix cache had.
func (s *Sequence) Cached() int { return s.cached }

// NextToken is what the modelled engine generates after the sequence's present
// tokens: a deterministic function of all of them, so that any node continues a
// sequence as any other would have, and the same prompt has the same answer
// under every hand-off.
func (s *Sequence) NextToken(vocab int) kvcache.Token {
	return kvcache.Token(mix(s.state) % uint64(vocab))
}

func (s *Sequence) append(t kvcache.Token) {
	s.tokens = append(s.tokens, t)
	s.state = fold(s.state, t)
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
