package cli

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/bench/simulation"
	"kvferry/daemon"
	"kvferry/engine"
	"kvferry/handoff"

	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/placement"
	"kvferry/sim"
)

// clusterFlags say which nodes there are, in virtual time or as processes of this machine.
// kvferry bench and kvferry sim have them alike.
type clusterFlags struct {
	nodes   simulation.Cluster
	profile string
	link    string

	decodeLinks []string
}

// register adds the flags, in the order in which help lists them.
func (f *clusterFlags) register(fs *pflag.FlagSet) {
	c := &f.nodes
	fs.IntVar(&c.Prefill, "prefill", 1, "prefill nodes")
	fs.IntVar(&c.Decode, "decode", 1, "decode nodes")
	fs.IntVar(&c.Nondisagg, "both", 0, "non-disaggregated nodes instead of prefill and decode nodes")
	fs.BoolVar(&c.Chunked, "chunked", false, "chunked prefill on non-disaggregated nodes, of vllm-v0; the nodes call it --enable-chunked-prefill")
	fs.StringVar(&c.Handoff, "handoff", "layerwise", "how KV gets from prefill to decode: "+handoff.List())
	fs.StringVar(&c.Placement, "placement", placement.LeastLoaded, "which node takes a request: "+placement.Help())
	fs.IntVar(&c.ConditionalDisaggregation, "conditional-disaggregation", 0, placement.ConditionalHelp)
	daemon.AddMigrationFlags(fs, &c.Migration)
	fs.StringVar(&f.profile, "profile", engine.DefaultProfile, "what the modelled GPU costs: a shipped profile or a JSON file")
	fs.StringVar(&c.Scheduler, "scheduler", "", "whose scheduler forms the steps: "+strings.Join(engine.Schedulers(), ", ")+" (default: the profile's)")
	fs.IntVar(&c.NICs, "nics", 1, "NICs of a prefill or decode node; a transfer is spread over all of them")
	fs.StringVar(&f.link, "link", "tcp", "one NIC: a link of the profile (tcp, rdma), a rate such as 100gbit, which it is for a profile without links, or rate=..,latency=..; daemons are paced to it, and may have native, this machine's network as it is")
	fs.StringSliceVar(&f.decodeLinks, "decode-links", nil, "NICs of the decode nodes where they are not all like --link: the first node's, the second's, and so on, and then from the first again")
	fs.DurationVar(&c.RPC, "rpc", sim.DefaultRPC, "how long a control message takes between the proxy and a node, or between two nodes; 0: no time")
	fs.Float64Var(&c.Oversubscription, "oversubscription", 1, "of the switch above the prefill nodes and that above the decode nodes: 4 is uplinks that carry a quarter of what the NICs below do")
	fs.BoolVar(&c.PrefixCaching, "enable-prefix-caching", false, "reuse the KV blocks of equal prompt prefixes (default: with --trace)")
	daemon.TierFlags(fs, &c.Tiers)
	fs.IntVar(&c.KVBlocks, "kv-blocks", 0, "KV blocks of a node (default: the profile's GPU memory); the nodes call it --num-gpu-blocks-override")
	fs.IntVar(&c.MaxModelLen, "max-model-len", 0, "longest prompt and output together (default: the profile's, and of a load from a file as long as it needs and the pool holds)")
	daemon.AddLoRAFlags(fs, &c.MaxLoRAs, &c.MaxCPULoRAs, &c.MergeLoRAs)
	Positive(fs, "nics", "kv-blocks", "max-model-len", "max-loras", "max-cpu-loras", "migration-interval", "migration-threshold")
	Needs(fs, daemon.MigrationNeeds, "sweep")
	Needs(fs, daemon.TierNeeds, "sweep")
}

// clusterNames are the flags that set the fields of a simulation.Cluster.
var clusterNames = joined(within("Tiers", daemon.TierFlagNames), map[string]string{
	"Profile": "--profile", "Scheduler": "--scheduler", "Profile.engine.scheduler": "--scheduler", "Prefill": "--prefill", "Decode": "--decode", "Nondisagg": "--both", "Chunked": "--chunked", "Handoff": "--handoff",
	"Placement": "--placement", "Migration.Policy": "--migration", "Migration.Interval": "--migration-interval", "Migration.Threshold": "--migration-threshold", "ConditionalDisaggregation": "--conditional-disaggregation", "PrefixCaching": "--enable-prefix-caching", "KVBlocks": "--kv-blocks", "MaxLoRAs": "--max-loras", "MaxCPULoRAs": "--max-cpu-loras", "Ranks": "--lora-modules", "Profile.lora.max_loras": "--max-loras", "Profile.lora.max_cpu_loras": "--max-cpu-loras", "Profile.lora.merged": "--merge-loras", "MergeLoRAs": "--merge-loras", "MaxModelLen": "--max-model-len", "NICs": "--nics", "NIC": "--link", "DecodeNICs": "--decode-links", "RPC": "--rpc", "Oversubscription": "--oversubscription",
})

// unmeasuredLink is --link for a profile that no link was measured for, such as a datasheet's.
const unmeasuredLink = "100gbit"

// settle decides which of the two kinds of cluster the flags mean, and what its profile is.
func (f *clusterFlags) settle(changed func(flag string) bool, bad *config.Faults) {
	c := &f.nodes
	var err error
	c.Profile, err = engine.LoadProfile(f.profile)
	bad.Check("--profile", err)
	if err == nil && len(c.Profile.Links) == 0 && !changed("link") {
		f.link = unmeasuredLink
	}
	switch {
	case changed("both") && (changed("prefill") || changed("decode")):
		bad.Check("--both", errors.New("a cluster has prefill and decode nodes, or nodes that do both: leave one kind out"))
	case changed("both"):
		c.Prefill, c.Decode = 0, 0
		refuse(bad, changed, "non-disaggregated nodes hand off no KV: leave it out", "handoff", "decode-links", "oversubscription", "conditional-disaggregation")
		if !c.Migration.Migrates() {
			refuse(bad, changed, "non-disaggregated nodes move no KV but with --migration: leave it out", "nics", "link")
		}
	case c.Chunked:
		bad.Check("--chunked", errors.New("is for --both nodes: prefill nodes compute whole prompts"))
	}
}

// refuse says of each of these flags that was given why it cannot be, and what would do.
func refuse(bad *config.Faults, changed func(flag string) bool, why string, flags ...string) {
	for _, flag := range flags {
		if changed(flag) {
			bad.Check("--"+flag, errors.New(why))
		}
	}
}

// model reads the link as it is modelled; daemons may have this machine's network as it is, and
// nodes that move no KV need none, unless a sweep has them move it.
func (f *clusterFlags) model(bad *config.Faults) {
	if f.nodes.Profile != nil {
		var err error
		if f.nodes.NIC, err = f.nic(f.link); f.nodes.Nondisagg == 0 || f.nodes.Migration.Migrates() {
			bad.Check("--link", err)
		}
		for _, text := range f.decodeLinks {
			nic, err := f.nic(text)
			bad.Check("--decode-links", err)
			f.nodes.DecodeNICs = append(f.nodes.DecodeNICs, nic)
		}
	}
}

// nic reads a NIC: a link of the profile, a rate, or rate=..,latency=...
func (f *clusterFlags) nic(text string) (sim.NIC, error) {
	l, err := node.ResolveLink(f.nodes.Profile, text)
	switch {
	case err != nil:
		return sim.NIC{}, err
	case l == nil:
		return sim.NIC{}, errNativeVirtual
	case math.IsInf(l.BytesPerSecond, 0):
		return sim.NIC{}, fmt.Errorf("%q: it is infinite: name a rate that is not", text)
	}
	return sim.NIC{BytesPerSecond: l.BytesPerSecond, Latency: l.Latency}, nil
}
