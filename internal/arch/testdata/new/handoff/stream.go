package handoff

// Stream is layerwise for a proxy that passes on nothing of what prefill draws: decode draws
// the first token itself, from the KV that came.
var Stream = Handoff{Name: "stream", First: DecodeLeg, Parts: Layers, FirstToken: DecodeLeg}
