package batching

import "kvferry/engine"

// A Policy says which prompts and decodes share a step.
type Policy uint8

const (
	PrefillFirst Policy = iota // of vLLM 0.6
	Chunked                    // of vLLM 0.6, with chunked prefill
	V1                         // of vLLM since 0.8
	SGLang
)

func (p Policy) String() string {
	return [...]string{"prefill-first", "chunked", "vllm-v1", "sglang"}[p]
}

// PolicyOf is the policy of a profile's engine; chunked is the setting of vLLM 0.6, which no
// other has: see engine.Profile.CheckChunked.
func PolicyOf(p *engine.Profile, chunked bool) Policy {
	switch p.Scheduler() {
	case engine.VLLMV1:
		return V1
	case engine.SGLang:
		return SGLang
	}
	if chunked {
		return Chunked
	}
	return PrefillFirst
}

// A former is what one policy does otherwise than the others. Whatever they have in common is
// the Scheduler's: it applies events, gives blocks to sequences whose KV comes from elsewhere,
// fetches inside a step, ends steps and lets tokens leave.
type former interface {
	// form adds to the step what it computes, with the blocks that this needs.
	form(s *Scheduler, step *engine.Step)
	// kind is that of a step that computes prompts.
	kind() engine.Kind
	// reserve is how many blocks must be left when q, which has adopted what the prefix cache
	// had of it, gets its others. It is 0 where no other has any.
	reserve(s *Scheduler, q *sequence) int
	// piecemeal reports whether a prompt that is computed here gets its blocks as it is
	// computed, and not all when it is admitted.
	piecemeal() bool
	// decoded notes a step that decodes all that runs, with blocks for all and nobody waiting.
	decoded()
}

func (c *Config) former() former {
	switch c.Policy {
	case V1:
		return v1{}
	case SGLang:
		return newSGLang(c)
	default:
		return v0{chunked: c.Policy == Chunked}
	}
}
