package transport

import "kvferry/transport/selection"

// A Selection says how the slices of a batch are spread over the paths to its peer.
type Selection = selection.Policy

const (
	Affinity   = selection.Affinity
	Static     = selection.Static
	RoundRobin = selection.RoundRobin
	Single     = selection.Single
)

// Selections are all of them, the default first.
var Selections = selection.Policies

// ParseSelection reads the name of a selection.
func ParseSelection(s string) (Selection, error) { return selection.ParsePolicy(s) }
