package selection

import "slices"

// A Pairing is a local rail, and the peer's rails that it may go with, best first.
type Pairing struct {
	Local  int
	Remote []int
}

// Pair says which of n rails here go with which of m rails of a peer: every rail of
// either side that reaches one is in a pairing, those on the same network with each
// other, and else the i-th with the i-th. order is how far one here is from one there: 0 on the
// same network, more beyond, negative if it cannot be reached.
func Pair(n, m int, order func(local, remote int) int) []Pairing {
	var ps []Pairing
	used := make([]int, m)
	usable := func(i, j int) bool { return order(i, j) >= 0 }
	// Rails with few choices choose first.
	locals := make([]int, n)
	choices := make([]int, n)
	for i := range n {
		locals[i] = i
		for j := range m {
			if usable(i, j) {
				choices[i]++
				if order(i, j) > 0 {
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
			if d := order(i, a) - order(i, b); d != 0 {
				return d
			}
			return used[a] - used[b]
		})
		if len(to) > 0 {
			used[to[0]]++
			ps = append(ps, Pairing{i, to})
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
			if usable(i, j) && (best < 0 || order(i, j) < order(best, j)) {
				best = i
			}
		}
		if best >= 0 {
			ps = append(ps, Pairing{best, []int{j}})
		}
	}
	slices.SortStableFunc(ps, func(a, b Pairing) int { return a.Local - b.Local })
	return ps
}
