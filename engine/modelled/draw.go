package modelled

import (
	"hash/crc32"

	"kvferry/engine"
	"kvferry/kvcache"
)

// draw returns the token after a sequence's first n, whose KV is in its blocks.
func (m *Executor) draw(q *engine.Sequence, n int) kvcache.Token {
	if !m.TokensFromKV {
		return q.NextToken(m.vocab)
	}
	g, state := m.slab.Geometry(), q.Variant
	for _, ref := range q.Table.Refs()[:g.Blocks(n)] {
		state = fold(state, g, m.slab.Bytes()[g.BlockOffset(ref.ID):], min(n, g.BlockTokens))
		n -= g.BlockTokens
		m.written.Add(1)
	}
	return q.Words.Draw(state, m.vocab)
}

// Answer returns the tokens that executors with TokensFromKV draw for a request if no byte of KV is
// wrong: from the prompt, adapter, salt, variant and words alone. Nodes give the same answer wherever its
// tokens are drawn. A request of the first n of them in the prompt and n fewer MaxTokens has the others.
//
// A token depends on every byte of K and V of all tokens before it, not on hidden states.
func Answer(g kvcache.Geometry, vocab int, r *engine.Request) []kvcache.Token {
	c := kvcache.NewContent(g, r.Adapter, r.Salt, r.Prompt)
	block, answer := make([]byte, g.BlockBytes()), make([]kvcache.Token, 0, r.MaxTokens)
	full := r.Variant // state after the full blocks
	for at := 0; len(answer) < r.MaxTokens; {
		state := full
		for ; at < g.Blocks(c.Tokens()); at++ {
			for l := range g.Layers {
				c.Fill(block[l*g.LayerBytes():], at, l)
			}
			state = fold(full, g, block, min(c.Tokens()-at*g.BlockTokens, g.BlockTokens))
			if (at+1)*g.BlockTokens > c.Tokens() {
				break
			}
			full = state
		}
		answer = append(answer, r.Words.Draw(state, vocab))
		c.Append(answer[len(answer)-1])
	}
	return answer
}

// fold takes K and V of a block's first tokens into a state. For given bytes it is a bijection of the
// state, so a difference stays. CRC-32C finds every change of up to 32 bits in a row, at the speed of
// memory.
func fold(state uint64, g kvcache.Geometry, block []byte, tokens int) uint64 {
	plane, sum := g.LayerBytes()/2, uint32(0)
	for at := 0; at < g.BlockBytes(); at += plane {
		sum = crc32.Update(sum, castagnoli, block[at:at+plane/g.BlockTokens*tokens])
	}
	return (state ^ uint64(sum)) * 0x9e3779b97f4a7c15
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
