package handoff

// V0 is the system that Mooncake published in 2024, with what was slow about it: decode
// fetches one request's tensors after another inside its step, while everything waits; the
// copies for it queue behind the prefill node's steps and hold back the next one, and with it
// the answer of the last.
var V0 = Handoff{Name: "v0", First: PrefillLeg, Parts: Tensors, InStep: true, FirstToken: DecodeLeg}
