package kvcache

import (
	"math"

	"kvferry/internal/config"
)

// TierConfig is how large the tiers below a node's pool are, and how fast. Sizes of 0 are none.
type TierConfig struct {
	HostGiB float64 `json:"host_gib"`
	DiskGiB float64 `json:"disk_gib"`
	// PCIe is what joins the node's GPUs with host memory and the NICs: 1e9 bytes/s, each way by itself.
	PCIe float64 `json:"pcie_gb_s"`
	Disk float64 `json:"disk_gb_s"` // 1e9 bytes/s, for what is read and written together
}

// What --pcie-gb-s and --disk-gb-s are if nobody says: PCIe 4.0 x16, and one NVMe disk on four lanes of it.
const (
	DefaultPCIe = 25
	DefaultDisk = 5
)

// Asked reports whether there is a tier.
func (c TierConfig) Asked() bool { return c.HostGiB != 0 || c.DiskGiB != 0 }

// Validate lists every fault by its field, as a [config.Invalid].
func (c TierConfig) Validate(prefixCaching bool) error {
	var bad config.Faults
	const most = 1e6
	for _, f := range []struct {
		field string
		v     float64
		none  bool // 0 is allowed
	}{{"HostGiB", c.HostGiB, true}, {"DiskGiB", c.DiskGiB, true}, {"PCIe", c.PCIe, !c.Asked()}, {"Disk", c.Disk, c.DiskGiB == 0}} {
		if !(f.v >= 0 && f.v <= most) || f.v == 0 && !f.none {
			bad.Add(f.field, f.v, "use a number above 0, at most 1e6")
		}
	}
	switch {
	case c.Asked() && !prefixCaching:
		bad.Add("HostGiB", c.HostGiB, "what goes to host memory is found by its prefix: use --enable-prefix-caching too")
	case c.DiskGiB > 0 && c.HostGiB == 0:
		bad.Add("DiskGiB", c.DiskGiB, "what goes to the disk and comes from it passes host memory: use --kv-offloading-size too")
	}
	return bad.Err("kvcache.TierConfig")
}

// New returns the tiers of a node, nil if there are none.
func (c TierConfig) New(g Geometry) *Tiers { return NewTiers(c.blocks(g)) }

func (c TierConfig) blocks(g Geometry) (host, disk int) {
	in := func(gib float64) int { return int(min(gib*(1<<30)/float64(g.BlockBytes()), math.MaxInt32)) }
	return in(c.HostGiB), in(c.DiskGiB)
}

// Holds is how many blocks of prefixes a node can have with a pool of so many: each tier has what
// the smaller ones above it have.
func (c TierConfig) Holds(pool int, g Geometry) int {
	host, disk := c.blocks(g)
	return max(pool, host, disk)
}
