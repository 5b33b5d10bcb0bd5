// Package handofftest has the hand-offs that tests run over.
package handofftest

import (
	"fmt"
	"slices"

	"kvferry/handoff"
)

// Every is the hand-offs there are, and those there could be: all that the properties allow.
// What asks for properties, and knows no hand-off by name, can do these too.
func Every() []handoff.Handoff {
	all := handoff.All()
	for i := range 2 * 3 * 2 * 2 {
		h := handoff.Handoff{
			First:      handoff.PrefillLeg + handoff.Leg(i%2),
			Parts:      handoff.Parts(i / 2 % 3),
			InStep:     i/6%2 == 1,
			FirstToken: handoff.PrefillLeg + handoff.Leg(i/12),
		}
		h.Name = fmt.Sprintf("%v-first-%v-token-from-%v", h.First, h.Parts, h.FirstToken)
		known := slices.ContainsFunc(all, func(o handoff.Handoff) bool {
			o.Name = h.Name
			return o == h
		})
		if !known && h.Validate() == nil {
			all = append(all, h)
		}
	}
	return all
}
