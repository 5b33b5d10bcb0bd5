package simulation

import (
	"fmt"
)

// hits are the shares of the tokens asked of the prefix caches of nodes that compute prompts which
// each tier had.
func (r *Result) hits() (gpu, host, disk float64) {
	if len(r.Roles) == 0 || r.Roles[0].PrefixAsked == 0 {
		return 0, 0, 0
	}
	k := r.Roles[0] // decode nodes come after it
	asked := float64(k.PrefixAsked)
	return float64(k.PrefixHits) / asked, float64(k.HostHits) / asked, float64(k.DiskHits) / asked
}

// tierLines are what a report says of tiers, if there are any.
func (r *Result) tierLines() (lines []string) {
	t := r.Cluster.Node.Tiers
	if !t.Asked() {
		return nil
	}
	gpu, host, disk := r.hits()
	lines = append(lines, fmt.Sprintf("tiers        GPU %.1f %%, host %.1f %% (%g GiB, %g GB/s), disk %.1f %% (%g GiB, %g GB/s) of the prompt tokens were found there",
		100*gpu, 100*host, t.HostGiB, t.PCIe, 100*disk, t.DiskGiB, t.Disk))
	for _, k := range r.Roles {
		lines = append(lines, fmt.Sprintf("             %s: %.1f GB loaded, %.1f stored, %.1f read from disk, %.1f written", k.Role, k.LoadedGB, k.StoredGB, k.ReadGB, k.WrittenGB))
	}
	return lines
}
