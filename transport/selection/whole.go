package selection

// Whole reports whether slices of so many bytes together are done sooner on path i alone than
// spread over all that are as near to their memory, where the target is to be told of their end.
// Alone, that rides with the last of them; spread, it is sent when all are acknowledged, and costs
// a round trip more:
//
//	bytes/rate  against  bytes/sum(rates) + latency
//
// i is the path that Choose has chosen for the first of them. They have to fit into its window.
func Whole(paths []Path, ranks []uint8, i int, bytes int64) bool {
	rates := Rates(paths)
	avoid := Avoided(paths, func(i int) uint8 { return ranks[i] })
	sum := 0.0
	for k := range paths {
		if paths[k].Up && avoid&(1<<k) == 0 && ranks[k] == ranks[i] {
			sum += rates(k)
		}
	}
	alone, spread := float64(bytes)/rates(i), float64(bytes)/sum+paths[i].Latency.Seconds()
	return alone <= spread && paths[i].Inflight+bytes <= paths[i].limit()
}
