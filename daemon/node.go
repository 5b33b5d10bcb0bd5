package daemon

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// NodeFlags is the command line of cmd/prefill and cmd/decode, with the names
// that vLLM's users know where it has them.
//
// Flags whose text is a Config's field are in cfg as they are parsed; the others are kept as
// texts and numbers until Config, since they depend on each other: a link may be one of the
// profile's, and the profile has the defaults of the batch's limits.
type NodeFlags struct {
	profile, scheduler, link, selection string
	maxNumSeqs, maxBatched              int            // 0: the profile's
	maxLoRAs, maxCPULoRAs               int            // likewise
	mergeLoRAs                          engine.Merging // likewise
	warmMiB                             int
	cfg                                 node.Config
}

// AddFlags adds the node's flags.
func (f *NodeFlags) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.cfg.ID, "id", "", "name of this node, unique in the cluster (required), like decode-1")
	fs.StringVar(&f.cfg.Proxy, "proxy", "127.0.0.1:9000", "host:port where the proxy takes registrations")
	fs.StringVar(&f.cfg.GRPCAddr, "grpc", "127.0.0.1:0", "host:port where the proxy and other nodes reach this one; port 0 takes a free one")
	fs.Var((*rails.Specs)(&f.cfg.Rails), "rail", "what to move KV over, one a NIC, with commas or the flag again for several: "+rails.Flag()+" (default "+node.DefaultRail+")")
	fs.StringVar(&f.selection, "select", string(transport.Affinity), "how KV is spread over several rails: affinity (the one that finishes first, near the memory), static, round-robin, single")
	fs.StringVar(&f.cfg.KVLocation, "kv-location", topology.Any, "NUMA node of the KV pool's memory, cpu:1: its transfers prefer the NICs near it (kvferry rail topo shows which)")
	fs.StringVar(&f.cfg.Matrix, "matrix", "", "JSON file with rows that replace those of kvferry rail topo, as Mooncake writes them")
	fs.StringVar(&f.profile, "profile", engine.DefaultProfile, "what the modelled GPU costs: a shipped profile (a10-qwen2.5-7b-int4, zero) or a JSON file")
	fs.StringVar(&f.scheduler, "scheduler", "", "whose scheduler forms the steps: "+strings.Join(engine.Schedulers(), ", ")+" (default the profile's, which has its options)")
	fs.StringVar(&f.cfg.Model, "served-model-name", "", "model name that clients ask for (default the profile's)")
	fs.StringVar(&f.link, "link", "native", "native for the network as it is, a link of the profile (tcp, rdma, rdma2), a rate such as 100gbit, or rate=1.29GB/s,latency=10us, to pace this node's transfers to")
	fs.StringVar(&f.cfg.Ledger, "link-ledger", "", "file by which nodes of this machine share their modelled NICs, the same for all, made if it is not there: with it, what several move to one meets (default none: what one node moves meets)")
	fs.BoolVar(&f.cfg.Chunked, "enable-chunked-prefill", false, "with --role both, of vllm-v0: compute prompts in chunks beside decodes, instead of prompts first")
	fs.BoolVar(&f.cfg.PrefixCaching, "enable-prefix-caching", false, "reuse the KV blocks of equal prompt prefixes")
	TierFlags(fs, &f.cfg.Tiers)
	fs.BoolVar(&f.cfg.TokensFromKV, "tokens-from-kv", false, "draw each token from all KV bytes of its sequence, so that a wrong byte gives wrong tokens: each step reads all of them; for all nodes of a cluster or none")
	fs.StringVar(&f.cfg.KVChecks, "kv-checks", node.DefaultKVChecks, "when KV blocks are compared with their digests: landing (from another node) and, behind commas, hit (the prefix cache had them), first (before a decode node's first token leaves), last (before its last token), every=N (each N of its tokens); or none, on all nodes or on none of them")
	fs.IntVar(&f.cfg.KVBlocks, "num-gpu-blocks-override", 0, "KV blocks of 16 tokens (default what the profile's GPU holds)")
	// 512 MiB are 8 prompts of the shipped profile's longest row, 66 MB each.
	fs.IntVar(&f.warmMiB, "kv-warm-mib", 512, "MiB of the KV pool to have in memory before serving, so that a burst does not wait for it; 0 for none")
	fs.IntVar(&f.maxNumSeqs, "max-num-seqs", 0, "sequences in a batch (default the profile's)")
	fs.IntVar(&f.maxBatched, "max-num-batched-tokens", 0, "prompt tokens in a step, with vllm-v1 of decodes too (default the profile's)")
	AddLoRAFlags(fs, &f.maxLoRAs, &f.maxCPULoRAs, &f.mergeLoRAs)
	fs.DurationVar(&f.cfg.TransferTimeout, "transfer-timeout", 10*time.Second, "give one KV transfer up after this long")
	fs.DurationVar(&f.cfg.HoldTimeout, "hold-timeout", time.Minute, "keep computed blocks for a consumer this long")
	fs.DurationVar(&f.cfg.DrainTimeout, "drain-timeout", 30*time.Second, "let running requests end for this long on SIGTERM; 0: end them at once")
}

// AddLoRAFlags adds the flags of what a node does with LoRA adapters.
func AddLoRAFlags(fs *pflag.FlagSet, slots, host *int, merged *engine.Merging) {
	fs.IntVar(slots, "max-loras", 0, "LoRA adapters on a node's GPU, and in a batch (default the profile's, and without: any number)")
	fs.IntVar(host, "max-cpu-loras", 0, "LoRA adapters in a node's host memory, others come from disk (default the profile's, and without: any number)")
	fs.StringVar((*string)(merged), "merge-loras", "", "when a LoRA adapter is merged into the model's weights: "+strings.Join(engine.Mergings(), ", ")+" (default the profile's, and without: never)")
}

// PositiveNodeFlags are those for which 0 makes no sense.
var PositiveNodeFlags = []string{"num-gpu-blocks-override", "max-num-seqs", "max-num-batched-tokens", "max-loras", "max-cpu-loras", "transfer-timeout", "hold-timeout"}

// NodeFlagNames are the flags that set the fields of a node.Config.
var NodeFlagNames = withTiers(map[string]string{
	"ID": "--id", "Proxy": "--proxy", "GRPCAddr": "--grpc", "Rails": "--rail", "Select": "--select", "Matrix": "--matrix", "KVLocation": "--kv-location",
	"Profile": "--profile", "Profile.max_num_seqs": "--max-num-seqs", "Profile.max_num_batched_tokens": "--max-num-batched-tokens", "Profile.engine.scheduler": "--scheduler",
	"Profile.engine.max_num_batched_tokens": "--max-num-batched-tokens", "Profile.lora.max_loras": "--max-loras", "Profile.lora.max_cpu_loras": "--max-cpu-loras", "Profile.lora.merged": "--merge-loras", "Model": "--served-model-name",
	"Chunked": "--enable-chunked-prefill", "PrefixCaching": "--enable-prefix-caching", "KVChecks": "--kv-checks", "TokensFromKV": "--tokens-from-kv", "KVBlocks": "--num-gpu-blocks-override", "WarmBytes": "--kv-warm-mib", "Link": "--link", "Ledger": "--link-ledger",
	"TransferTimeout": "--transfer-timeout", "HoldTimeout": "--hold-timeout", "DrainTimeout": "--drain-timeout",
})

// Config turns the flags, once they are parsed, into a node.Config. What it cannot read is in
// the [config.Invalid] that it returns beside it; it does not validate the rest.
func (f *NodeFlags) Config() (node.Config, error) {
	c := f.cfg
	var bad config.Faults
	// On a command line 0 is 0.
	c.WarmBytes, c.DrainTimeout = config.OrNone(f.warmMiB<<20), config.OrNone(c.DrainTimeout)
	if f.warmMiB > math.MaxInt>>20 {
		bad.Check("WarmBytes", fmt.Errorf("%d MiB: no machine has that much memory: use less", f.warmMiB))
	}
	var err error
	c.Select, err = transport.ParseSelection(f.selection)
	bad.Check("Select", err)
	if c.Profile, err = engine.LoadProfile(f.profile); err != nil {
		bad.Check("Profile", err)
		return c, bad.Err("node.Config")
	}
	c.Profile = c.Profile.WithScheduler(f.scheduler).WithLoRA(f.maxLoRAs, f.maxCPULoRAs, f.mergeLoRAs)
	c.Profile.SetBatch(f.maxNumSeqs, f.maxBatched)
	c.Link, err = node.ResolveLink(c.Profile, f.link)
	bad.Check("Link", err)
	return c, bad.Err("node.Config")
}
