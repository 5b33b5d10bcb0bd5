package handoff

// Push is layerwise in one piece: decode allocates blocks first, and when the prompt is
// computed, prefill writes all of its KV to them, and streams the first token itself. Fewer
// and larger writes than layerwise has, but none of them behind the computation.
var Push = Handoff{Name: "push", First: DecodeLeg, Parts: Whole, FirstToken: PrefillLeg}
