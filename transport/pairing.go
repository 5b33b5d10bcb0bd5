package transport

import "slices"

// A Reach says how a local rail would reach a peer's address.
type Reach uint8

const (
	// Unknown: the rail cannot tell.
	Unknown Reach = iota
	// OnLink: the address is on a network of the rail's own NIC.
	OnLink
	// Routed: packets leave by the rail's own NIC, to a gateway.
	Routed
	// Elsewhere: packets would leave by another interface, whatever address they
	// come from.
	Elsewhere
	// NoRoute: the address cannot be reached from here.
	NoRoute
	// Beside: the address is a process of this machine, from whose memory or to whose the bytes
	// go without a NIC.
	Beside
	// OneSided: likewise, and this process copies by itself.
	OneSided
)

func (r Reach) String() string {
	return [...]string{"unknown", "on link", "routed", "by another interface", "no route", "beside", "one-sided"}[r]
}

// A Router is a rail that can tell how packets to a peer's address would leave: the
// engine pairs its rails with a peer's by that. A rail that is none is taken to reach
// every address of its kind.
type Router interface {
	// Route asks the system, and connects to nobody. why is for a person: "packets to
	// 10.77.0.2 leave by eth0, not eth1"; it is empty where there is nothing to say. It
	// may be called from any goroutine, and after Close, when it may answer Unknown.
	Route(addr string) (r Reach, why string)
}

// A pairing is a local rail, and the peer's rails that it may go with, best first.
type pairing struct {
	local  int
	remote []int
}

// order is how good a reach is; what leaves by another interface is not one.
var order = map[Reach]int{OneSided: 0, Beside: 0, OnLink: 0, Routed: 1, Unknown: 1}

// pair says which of n rails here go with which of m rails of a peer: every rail of
// either side that reaches one is in a pairing, those on the same network with each
// other, and else the i-th with the i-th.
func pair(n, m int, reach func(local, remote int) Reach) []pairing {
	var ps []pairing
	used := make([]int, m)
	usable := func(i, j int) bool { _, ok := order[reach(i, j)]; return ok }
	// Rails with few choices choose first.
	locals := make([]int, n)
	choices := make([]int, n)
	for i := range n {
		locals[i] = i
		for j := range m {
			if usable(i, j) {
				choices[i]++
				if reach(i, j) != OnLink {
					choices[i] += m
				}
			}
		}
	}
	slices.SortStableFunc(locals, func(a, b int) int { return choices[a] - choices[b] })
	for _, i := range locals {
		var to []int
		for j := range m {
			if j := (i + j) % m; usable(i, j) {
				to = append(to, j)
			}
		}
		slices.SortStableFunc(to, func(a, b int) int {
			if d := order[reach(i, a)] - order[reach(i, b)]; d != 0 {
				return d
			}
			return used[a] - used[b]
		})
		if len(to) > 0 {
			used[to[0]]++
			ps = append(ps, pairing{i, to})
		}
	}
	// Rails of the peer that are left go round the ones here.
	for j := range m {
		if used[j] > 0 {
			continue
		}
		best := -1
		for k := range n {
			i := (j + k) % n
			if usable(i, j) && (best < 0 || order[reach(i, j)] < order[reach(best, j)]) {
				best = i
			}
		}
		if best >= 0 {
			ps = append(ps, pairing{best, []int{j}})
		}
	}
	slices.SortStableFunc(ps, func(a, b pairing) int { return a.local - b.local })
	return ps
}
