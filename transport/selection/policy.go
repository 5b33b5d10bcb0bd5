package selection

import (
	"fmt"
	"slices"
	"strings"
)

// A Policy selects how the slices of a batch are spread over the paths to its peer.
type Policy string

const (
	// Affinity gives a slice to the path that is expected to finish it first, by
	// the bytes it has under way and the rate it was seen to deliver, among those
	// whose rails sit closest to the memory; others help when that is faster.
	Affinity Policy = "affinity"
	// Static gives each path an equal, contiguous share of every batch.
	Static Policy = "static"
	// RoundRobin gives the paths slices in turn.
	RoundRobin Policy = "round-robin"
	// Single uses one path, the first that is up; the others stand by.
	Single Policy = "single"
)

// Policies are all of them, the default first.
var Policies = []Policy{Affinity, Static, RoundRobin, Single}

// ParsePolicy reads the name of a policy.
func ParsePolicy(s string) (Policy, error) {
	if slices.Contains(Policies, Policy(s)) {
		return Policy(s), nil
	}
	names := make([]string, len(Policies))
	for i, v := range Policies {
		names[i] = string(v)
	}
	return "", fmt.Errorf("%q: use one of %s", s, strings.Join(names, ", "))
}
