package handoff

// Push is layerwise in one piece: decode allocates blocks first, and when the prompt is
// computed, prefill writes all of its KV to them, and streams the first token itself. Its writes
// are fewer and larger than those of layerwise. But none of them is hidden: all begin when
// the prompt is computed.
var Push = Handoff{Name: "push", First: DecodeLeg, Parts: Whole, FirstToken: PrefillLeg}
