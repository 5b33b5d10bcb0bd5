package node

import "kvferry/handoff"

// decodeFirst reports whether a hand-off's requests go to the decode node first.
func decodeFirst(name string) bool {
	h, err := handoff.Parse(name)
	return err == nil && h.First == handoff.DecodeLeg
}

// prefillSpeaks reports whether a hand-off's first token comes from the prefill node.
func prefillSpeaks(name string) bool {
	h, err := handoff.Parse(name)
	return err == nil && h.FirstToken == handoff.PrefillLeg
}
