package transport

import (
	"fmt"
	"slices"
	"strings"
)

// A Selection says how the slices of a batch are spread over the paths to its peer.
type Selection string

const (
	// Affinity gives a slice to the path that is expected to finish it first, by
	// the bytes it has under way and the rate it was seen to deliver, among those
	// whose rails sit closest to the memory; others help when that is faster.
	Affinity Selection = "affinity"
	// Static gives each path an equal, contiguous share of every batch.
	Static Selection = "static"
	// RoundRobin gives the paths slices in turn.
	RoundRobin Selection = "round-robin"
	// Single uses one path, the first that is up; the others stand by.
	Single Selection = "single"
)

// Selections are all of them, the default first.
var Selections = []Selection{Affinity, Static, RoundRobin, Single}

// ParseSelection reads the name of a selection.
func ParseSelection(s string) (Selection, error) {
	if slices.Contains(Selections, Selection(s)) {
		return Selection(s), nil
	}
	names := make([]string, len(Selections))
	for i, v := range Selections {
		names[i] = string(v)
	}
	return "", fmt.Errorf("%q: use one of %s", s, strings.Join(names, ", "))
}
