package handoff

// Layerwise is Mooncake's later way: decode allocates blocks first, prefill writes each layer
// to them while it computes the next one, and streams the first token itself.
var Layerwise = Handoff{Name: "layerwise", First: DecodeLeg, Parts: Layers, FirstToken: PrefillLeg}
