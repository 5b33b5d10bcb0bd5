// Package handoff says how the KV of a prompt gets from the node that computes it to the
// node that decodes it.
//
// A hand-off is a value: a [Handoff] has a name and four properties, and the nodes (package
// connector), the proxy and the simulator ask it for these. None of them knows a hand-off
// by name. A new one is a file here, and a line in all.
//
//	           first    parts    in a step  first token from
//	v0         prefill  tensors  yes        decode
//	pull       prefill  whole    no         decode
//	push       decode   whole    no         prefill
//	layerwise  decode   layers   no         prefill
//
// A request has two legs, one on each node. The first leg's node offers blocks: those it has
// computed, or those it has reserved. The second leg is told of them, and its node moves the
// KV: it reads what is offered by a prefill node, and writes to what is offered by a decode
// node.
package handoff

import (
	"errors"
	"fmt"
	"slices"

	"kvferry/internal/config"
)

// Handoff is a way for KV to get from prefill to decode. The zero value is [None].
type Handoff struct {
	Name string
	// First is the leg that is submitted first, PrefillLeg or DecodeLeg.
	First Leg
	// Parts is what one move carries.
	Parts Parts
	// InStep has decode fetch the KV inside a step, one request after another, while its
	// engine does nothing else; and the tensors are copied for it on the GPU of the prefill
	// node, in turns with that node's steps. Otherwise KV moves beside the steps of both.
	InStep bool
	// FirstToken is the leg that emits the first token. If prefill does, decode begins with
	// the second. A decode leg that does so draws it once more, from the KV that came; under
	// InStep it says the one that prefill has drawn.
	FirstToken Leg
	// Running is of Migration alone: the request generates while its KV is moved, and which
	// tokens have come is said when all is there.
	Running bool
}

// None is of a request whose KV stays where it was computed.
var None Handoff

// all are the hand-offs there are.
var all = []Handoff{
	V0,
	Pull,
	Push,
	Layerwise,
}

// All lists the hand-offs. The slice is the caller's.
func All() []Handoff { return slices.Clone(all) }

// Names are what Parse knows.
func Names() []string {
	names := make([]string, len(all))
	for i, h := range all {
		names[i] = h.Name
	}
	return names
}

// List is the names in a sentence, "a, b or c".
func List() string { return config.Or(Names()) }

// Parse returns the hand-off of that name; None of "".
func Parse(name string) (Handoff, error) {
	if name == "" {
		return None, nil
	}
	for _, h := range all {
		if h.Name == name {
			return h, nil
		}
	}
	return None, fmt.Errorf("%q: there is no such hand-off: use %s", name, List())
}

// String is the name; "" of None.
func (h Handoff) String() string { return h.Name }

// Offers reports whether a leg is submitted first: its node says which blocks of its own the
// other side may touch.
func (h Handoff) Offers(l Leg) bool { return h != None && l == h.First }

// Moves reports whether a leg is submitted second: it is told which blocks are offered, and
// its node moves the KV. A decode leg that does reads, a prefill leg writes.
func (h Handoff) Moves(l Leg) bool { return h != None && l != FullLeg && l != h.First }

// Validate says why the nodes could not carry this hand-off out, if they could not.
func (h Handoff) Validate() error {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("hand-off %q: "+format, append([]any{h.Name}, args...)...))
	}
	if h.Name == "" {
		bad("it has no name")
	}
	if h.First != PrefillLeg && h.First != DecodeLeg {
		bad("First is %v: use PrefillLeg or DecodeLeg", h.First)
	}
	if h.FirstToken != PrefillLeg && h.FirstToken != DecodeLeg {
		bad("FirstToken is %v: use PrefillLeg or DecodeLeg", h.FirstToken)
	}
	switch h.Parts {
	case Whole:
	case Layers:
		if !h.Moves(PrefillLeg) {
			bad("layers are moved by the node that computes them: First must be DecodeLeg")
		}
	case Tensors:
		if !h.InStep {
			bad("tensors are fetched by a decode step: InStep must be true")
		}
	default:
		bad("Parts is %d: use Whole, Layers or Tensors", h.Parts)
	}
	if h.InStep && (h.Parts != Tensors || h.First != PrefillLeg || h.FirstToken != DecodeLeg) {
		bad("a decode step fetches tensors of a prompt that is computed: Parts must be Tensors, First PrefillLeg and FirstToken DecodeLeg")
	}
	return errors.Join(faults...)
}
