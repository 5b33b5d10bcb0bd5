package load

import (
	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
)

// sharingKnobs are the knobs of prompts that begin alike.
var sharingKnobs = Knobs{
	{Name: "prefix-hit-rate", Group: AskedGroup, Fields: []string{"Sharing.HitRate"}, Value: knob.Float(func(s *Spec) *float64 { return &s.Sharing.HitRate }), Help: "have random prompts begin alike, so that this share of their tokens can come from a prefix cache"},
	{Name: "prefix-block-size", Group: AskedGroup, Fields: []string{"Sharing.BlockSize"}, Default: "16", Needs: "prefix-hit-rate", Value: knob.Int(func(s *Spec) *int { return &s.Sharing.BlockSize }), Help: "tokens of a block of that cache"},
	{Name: "prefix-groups", Group: AskedGroup, Fields: []string{"Sharing.Groups"}, Default: "1", Needs: "prefix-hit-rate", Value: knob.Int(func(s *Spec) *int { return &s.Sharing.Groups }), Help: "how many beginnings there are, which prompts take in turn"},
}

// Sharing has prompts that are drawn begin alike, so that a wanted share of all their tokens
// can come from a cache of prefixes.
type Sharing struct {
	// HitRate is that share, from 0 to below 1: of all prompt tokens, those of whole blocks
	// that an earlier prompt began with too. A cache that keeps everything reaches it; what a
	// server reports is less where its cache is too small, its blocks are larger, or a
	// prompt comes before the one that it begins like has been prefilled.
	HitRate   float64
	BlockSize int // tokens of a block of the server's cache
	Groups    int // how many beginnings there are, that prompts take in turn
}

func (h Sharing) check(s Spec, bad *config.Faults) {
	if h == (Sharing{}) {
		return
	}
	bad.Refuse(!(h.HitRate >= 0 && h.HitRate < 1), "Sharing.HitRate", h.HitRate, "use 0 to below 1")
	config.Between(bad, "Sharing.BlockSize", h.BlockSize, 1, 1<<16)
	config.Between(bad, "Sharing.Groups", h.Groups, 1, 1<<16)
	bad.Refuse(s.PrefixLen > 0 && h.HitRate != 0, "PrefixLen", s.PrefixLen, "leave it out: how much prompts share follows from the hit rate")
	if h.BlockSize > 0 && s.InputLen > 0 {
		// At least one token of a prompt is always computed: its answer begins with it.
		if most := float64((s.InputLen-1)/h.BlockSize*h.BlockSize) / float64(s.InputLen); h.HitRate > most && h.HitRate < 1 {
			bad.Add("Sharing.HitRate", h.HitRate, "use up to %.3f: that is how much of %d tokens is in whole blocks of %d, without the last token", most, s.InputLen, h.BlockSize)
		}
	}
}

// sharing makes the beginnings. Each of a group's prompts begins with a stretch of one
// endless stem. What an earlier prompt had of the stem is in an ideal cache, the rest is not;
// so every prompt takes as many blocks as bring the hits of all so far to the wanted share,
// and one that must go beyond what is cached only makes it so for the next.
type sharing struct {
	Sharing
	vocab  int
	seed   uint64
	stems  []int   // blocks of each group's stem that an ideal cache has
	tokens float64 // of all prompts
	hits   float64 // of those, in an ideal cache
	n      int
}

func newSharing(h Sharing, seed uint64, vocab int) *sharing {
	return &sharing{Sharing: h, vocab: vocab, seed: seed, stems: make([]int, h.Groups)}
}

// begin appends what the next prompt of that length begins with.
func (s *sharing) begin(prompt []kvcache.Token, length int) []kvcache.Token {
	group := s.n % s.Groups
	s.n++
	s.tokens += float64(length)
	missing := s.HitRate*s.tokens - s.hits
	blocks := min(max(int(missing/float64(s.BlockSize)+0.5), 0), (length-1)/s.BlockSize)
	s.hits += float64(min(blocks, s.stems[group]) * s.BlockSize)
	s.stems[group] = max(s.stems[group], blocks)
	return fill(prompt, blocks*s.BlockSize, s.seed^(uint64(group)+1)*0xa54ff53a5f1d36f1, s.vocab)
}
