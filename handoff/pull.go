package handoff

// Pull is vLLM's NIXL connector: when the prompt is computed, decode allocates blocks, reads
// the KV one-sided in the background, and goes on decoding other requests meanwhile.
var Pull = Handoff{Name: "pull", First: PrefillLeg, Parts: Whole, FirstToken: DecodeLeg}
