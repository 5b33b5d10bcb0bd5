package daemon

import (
	"maps"

	"github.com/spf13/pflag"

	"kvferry/kvcache"
)

// TierFlags adds the flags of the tiers below a node's prefix cache. kvferry has them too.
func TierFlags(fs *pflag.FlagSet, c *kvcache.TierConfig) {
	fs.Float64Var(&c.HostGiB, "kv-offloading-size", 0, "GiB of a node's host memory, as modelled, for KV that is to outlast the GPU's; with --enable-prefix-caching; 0: none")
	fs.Float64Var(&c.DiskGiB, "max-local-disk-size", 0, "GiB of a node's disk, as modelled, below its host memory; 0: none")
	fs.Float64Var(&c.PCIe, "pcie-gb-s", kvcache.DefaultPCIe, "GB/s each way between GPU and host memory, which modelled NICs share; 25 is PCIe 4.0 x16")
	fs.Float64Var(&c.Disk, "disk-gb-s", kvcache.DefaultDisk, "GB/s of the disk, reads and writes together")
}

// TierNeeds maps each flag that has no effect alone to the flag that it needs, for cli.Needs.
var TierNeeds = map[string]string{"pcie-gb-s": "kv-offloading-size", "disk-gb-s": "max-local-disk-size"}

// TierFlagNames are the flags that set the fields of a kvcache.TierConfig, those of vLLM and
// LMCache where they have one.
var TierFlagNames = map[string]string{
	"HostGiB": "--kv-offloading-size", "DiskGiB": "--max-local-disk-size", "PCIe": "--pcie-gb-s", "Disk": "--disk-gb-s",
}

// withTiers adds them to the names of flags that set the fields of what has one as Tiers.
func withTiers(names map[string]string) map[string]string {
	out := maps.Clone(names)
	for field, flag := range TierFlagNames {
		out["Tiers."+field] = flag
	}
	return out
}
