package handofftest

import "kvferry/handoff"

// DecodeFirst reports whether the requests of the hand-off of that name go to the decode node
// first; not those of none, and of a name that there is not.
func DecodeFirst(name string) bool {
	h, err := handoff.Parse(name)
	return err == nil && h.First == handoff.DecodeLeg
}

// PrefillSpeaks reports whether the first token of the hand-off of that name comes from the
// prefill node.
func PrefillSpeaks(name string) bool {
	h, err := handoff.Parse(name)
	return err == nil && h.FirstToken == handoff.PrefillLeg
}
