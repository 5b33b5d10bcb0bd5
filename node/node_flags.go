package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// NodeFlags is the command line of cmd/prefill and cmd/decode, with the names
// that vLLM's users know where it has them.
type NodeFlags struct {
	ID, Proxy, GRPC, Profile, Model, Link string
	Select, Matrix, KVLocation            string
	Rails                                 []string
	Chunked, PrefixCaching, RecheckKV     bool
	KVBlocks, MaxNumSeqs, MaxBatched      int
	WarmMiB                               int
	cfg                                   Config
}

// AddFlags adds the node's flags; chunked says whether the daemon can serve
// without disaggregation.
func (f *NodeFlags) AddFlags(fs *pflag.FlagSet, chunked bool) {
	fs.SortFlags = false
	fs.StringVar(&f.ID, "id", "", "name of this node, unique in the cluster (required), like decode-1")
	fs.StringVar(&f.Proxy, "proxy", "127.0.0.1:9000", "host:port where the proxy takes registrations")
	fs.StringVar(&f.GRPC, "grpc", "127.0.0.1:0", "host:port where the proxy and other nodes reach this one; port 0 takes a free one")
	fs.StringSliceVar(&f.Rails, "rail", []string{DefaultRail}, "what to move KV over, one a NIC: host:port, tcp/eth0, tcp/eth0@:9101, rdma/mlx5_0, rdma/mlx5_0:1?gid=3&qps=2, cma (nodes of this machine, memory to memory)")
	fs.StringVar(&f.Select, "select", string(transport.Affinity), "how KV is spread over several rails: affinity (the one that finishes first, near the memory), static, round-robin, single")
	fs.StringVar(&f.KVLocation, "kv-location", topology.Any, "NUMA node of the KV pool's memory, cpu:1: its transfers prefer the NICs near it (kvbench topo shows which)")
	fs.StringVar(&f.Matrix, "matrix", "", "JSON file with rows that replace those of kvbench topo, as Mooncake writes them")
	fs.StringVar(&f.Profile, "profile", engine.DefaultProfile, "what the modelled GPU costs: a shipped profile (a10-qwen2.5-7b-int4, zero) or a JSON file")
	fs.StringVar(&f.Model, "served-model-name", "", "model name that clients ask for (default the profile's)")
	fs.StringVar(&f.Link, "link", "native", "native for the network as it is, a link of the profile (tcp, rdma, rdma2), or rate=1.29GB/s,latency=10us, to pace this node's transfers to")
	if chunked {
		fs.BoolVar(&f.Chunked, "enable-chunked-prefill", false, "with --nondisagg: compute prompts in chunks beside decodes, instead of prompts first")
	}
	fs.BoolVar(&f.PrefixCaching, "enable-prefix-caching", false, "reuse the KV blocks of equal prompt prefixes")
	fs.BoolVar(&f.RecheckKV, "recheck-kv", false, "compare a request's KV blocks again at its end, and fail it if they have changed since they landed")
	fs.IntVar(&f.KVBlocks, "num-gpu-blocks-override", 0, "KV blocks of 16 tokens (default what the profile's GPU holds)")
	fs.IntVar(&f.WarmMiB, "kv-warm-mib", 512, "MiB of the KV pool to have in memory before serving, so that a burst does not wait for it; 0 for none")
	fs.IntVar(&f.MaxNumSeqs, "max-num-seqs", 0, "sequences in a batch (default the profile's)")
	fs.IntVar(&f.MaxBatched, "max-num-batched-tokens", 0, "prompt tokens in a step (default the profile's)")
	fs.DurationVar(&f.cfg.TransferTimeout, "transfer-timeout", 0, "give one KV transfer up after this long (default 10s)")
	fs.DurationVar(&f.cfg.HoldTimeout, "hold-timeout", 0, "keep computed blocks for a consumer this long (default 1m0s)")
	fs.DurationVar(&f.cfg.DrainTimeout, "drain-timeout", 0, "let running requests end for this long on SIGTERM (default 30s)")
}

// Config turns the flags into a Config, or names every flag that is wrong.
func (f *NodeFlags) Config() (Config, error) {
	c := f.cfg
	c.ID, c.Proxy, c.GRPCAddr, c.Rails, c.Model = f.ID, f.Proxy, f.GRPC, f.Rails, f.Model
	c.Chunked, c.PrefixCaching, c.RecheckKV, c.KVBlocks = f.Chunked, f.PrefixCaching, f.RecheckKV, f.KVBlocks
	c.Matrix, c.KVLocation = f.Matrix, f.KVLocation
	c.WarmBytes = f.WarmMiB << 20
	if f.WarmMiB == 0 {
		c.WarmBytes = -1
	}
	var faults []error
	if f.ID == "" {
		faults = append(faults, errors.New("--id: not given: name the node, like decode-1"))
	}
	for _, spec := range f.Rails {
		if _, err := rails.Parse(spec); err != nil {
			faults = append(faults, fmt.Errorf("--rail: %w", err))
		}
	}
	if f.Select != "" {
		var err error
		if c.Select, err = transport.ParseSelection(f.Select); err != nil {
			faults = append(faults, fmt.Errorf("--select: %w", err))
		}
	}
	for _, n := range []struct {
		flag string
		v    int
	}{{"num-gpu-blocks-override", f.KVBlocks}, {"kv-warm-mib", f.WarmMiB}, {"max-num-seqs", f.MaxNumSeqs}, {"max-num-batched-tokens", f.MaxBatched}} {
		if n.v < 0 {
			faults = append(faults, fmt.Errorf("--%s: %d: want 1 or more, or leave it out", n.flag, n.v))
		}
	}
	p, err := engine.LoadProfile(f.Profile)
	if err != nil {
		return c, errors.Join(append(faults, fmt.Errorf("--profile: %w", err))...)
	}
	c.Profile = p
	if f.MaxNumSeqs > 0 {
		p.MaxNumSeqs = f.MaxNumSeqs
	}
	if f.MaxBatched > 0 {
		p.MaxBatchedTokens = f.MaxBatched
	}
	if err := p.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("--profile: %w", err))
	}
	if c.Link, err = ResolveLink(p, f.Link); err != nil {
		faults = append(faults, fmt.Errorf("--link: %w", err))
	}
	return c, errors.Join(faults...)
}

// ResolveLink finds the link that a name or a description means; nil is the
// network as it is.
func ResolveLink(p *engine.Profile, s string) (*transport.Link, error) {
	if s == "" || s == "native" {
		return nil, nil
	}
	if l, ok := p.Links[s]; ok {
		return &transport.Link{Name: s, BytesPerSecond: 1e9 / l.MSPerMB, Latency: time.Duration(l.LatencyUS * float64(time.Microsecond))}, nil
	}
	if strings.Contains(s, "=") {
		return transport.ParseLink(s)
	}
	names := slices.Sorted(maps.Keys(p.Links))
	return nil, fmt.Errorf("%q is unknown: use native, a link of profile %s (%s), or rate=1.29GB/s,latency=10us", s, p.Name, strings.Join(names, ", "))
}
