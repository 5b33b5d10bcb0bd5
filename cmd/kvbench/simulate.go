package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/bench/simulation"
	"kvferry/command"
	"kvferry/config"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/node"
	"kvferry/placement"
	"kvferry/sim"
)

// simulateFlags are the command line of kvbench simulate.
type simulateFlags struct {
	s             simulation.Simulation
	load          loadFlags
	profile, link string
	goodput       string
	sweeps        []string
	out           string
	detailed      bool
}

func simulateCommand(terminal bool) *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Any cluster in virtual time: how many decode nodes, how fast a NIC?",
		Long: `Run a cluster of any size in virtual time: the scheduler, hand-offs and placement
of the daemons, driven by an event loop over modelled GPUs and NICs. Nothing is
waited for: 12,000 requests of a trace on 16 nodes take seconds, a million on
1,000 nodes a minute or two. Everything is modelled and labelled so.

The load is drawn (--request-rate, --random-input-len ...) or a request trace in
Mooncake's format (--trace): JSON lines with timestamp in ms, input_length,
output_length and hash_ids, one per 512 tokens, equal where prompts are equal.

--sweep runs a point for each value of a parameter, or for each pair of two, and
marks the best: of the points where --attainment of the requests keep --goodput,
the most goodput a GPU, and within 1 % of that the least network. Parameters:
  ` + strings.Join(simulation.SweepExamples(), "\n  ") + `

Results go to --out: summary.json and results.jsonl (every request), or
sweep.json; and report.html with the curves. The same flags give the same
figures to the last digit.

Exit status: 0 done; 1 nothing could be served; 2 bad flags, or a trace with a bad
line; 130 interrupted (the points that had ended are kept).`,
		Example: `  kvbench simulate --prefill 2 --decode 2 --request-rate 4 --random-input-len 1024 --random-output-len 128
  kvbench simulate --trace mooncake_conversation.jsonl --prefill 8 --decode 8 --placement prefix-aware
  kvbench simulate --nondisagg 16 --chunked --trace mooncake_conversation.jsonl
  kvbench simulate --request-rate 16 --sweep nodes=2:6,3:5,4:4,5:3,6:2 --sweep link=10gbit,25gbit,100gbit
  kvbench simulate --sweep rate=1,2,4,8 --sweep handoff=v0,pull,layerwise --link tcp --goodput ttft:1000,tpot:30`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.config(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			return config.Named(simulation.Run(cmd.Context(), cfg), simulateNames)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// register adds the flags, in the order in which help lists them.
func (f *simulateFlags) register(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.IntVar(&f.s.Prefill, "prefill", 1, "prefill nodes")
	fs.IntVar(&f.s.Decode, "decode", 1, "decode nodes")
	fs.IntVar(&f.s.Nondisagg, "nondisagg", 0, "non-disaggregated nodes instead of prefill and decode nodes")
	fs.BoolVar(&f.s.Chunked, "chunked", false, "chunked prefill on non-disaggregated nodes")
	fs.StringVar(&f.s.Handoff, "handoff", "layerwise", "how KV gets from prefill to decode: "+handoff.List())
	fs.StringVar(&f.s.Placement, "placement", placement.LeastLoaded, "which node takes a request: "+placement.Help())
	fs.StringVar(&f.profile, "profile", engine.DefaultProfile, "what the modelled GPU costs: a shipped profile or a JSON file")
	fs.IntVar(&f.s.NICs, "nics", 1, "NICs of a prefill or decode node; a transfer is spread over all of them")
	fs.StringVar(&f.link, "link", "rate=12.5GB/s,latency=10us", "one NIC: a link of the profile (tcp, rdma), 100gbit, or rate=..,latency=..")
	fs.DurationVar(&f.s.RPC, "rpc", sim.DefaultRPC, "what a control message takes, between proxy and node or two nodes; 0: nothing")
	fs.BoolVar(&f.s.PrefixCaching, "enable-prefix-caching", false, "reuse the KV blocks of equal prompt prefixes (default: with --trace)")
	fs.IntVar(&f.s.KVBlocks, "kv-blocks", 0, "KV blocks of a node (default: the profile's GPU memory)")
	fs.IntVar(&f.s.MaxModelLen, "max-model-len", 0, "longest prompt and output together (default: the profile's; with --trace as long as the trace needs and the pool holds)")
	f.load.register(fs)
	fs.StringVar(&f.goodput, "goodput", "ttft:2000,tpot:50", "SLO in ms of ttft, tpot and e2el, or none; a request counts as good if it keeps all that are named")
	fs.Float64Var(&f.s.Attainment, "attainment", 0.99, "share of the requests that must be good for a point of a sweep to count")
	fs.StringArrayVar(&f.sweeps, "sweep", nil, "parameter=value,value,...; twice for each pair of two")
	fs.StringVar(&f.out, "out", "", "folder for the results (default kvbench-out/<time>)")
	fs.BoolVar(&f.detailed, "save-detailed", true, "write results.jsonl, a line for each request; never for a sweep")
	command.Positive(fs, "nics", "kv-blocks", "max-model-len")
}

// simulateNames are the flags that set the fields of a simulation.Config, its Sweep and that
// one's Base.
var simulateNames = joined(within("Load", loadNames), map[string]string{
	"Sweep": "", "Base": "", "Params": "--sweep", "Out": "--out",
	"Profile": "--profile", "Prefill": "--prefill", "Decode": "--decode", "Nondisagg": "--nondisagg", "Chunked": "--chunked", "Handoff": "--handoff",
	"Placement": "--placement", "PrefixCaching": "--enable-prefix-caching", "KVBlocks": "--kv-blocks", "MaxModelLen": "--max-model-len", "NICs": "--nics", "NIC": "--link", "RPC": "--rpc",
	"Longest": "--trace", "SLO": "--goodput", "Attainment": "--attainment", "Records": "--save-detailed",
})

// config turns flags into a simulation; an error names each that is wrong.
func (f *simulateFlags) config(changed func(flag string) bool) (simulation.Config, error) {
	var bad config.Faults
	cfg := simulation.Config{Out: resultsFolder(f.out), Detailed: f.detailed, Command: os.Args}
	var err error
	f.s.Profile, err = engine.LoadProfile(f.profile)
	bad.Check("--profile", err)
	f.s.SLO, err = simulation.ParseGoodput(f.goodput)
	bad.Check("--goodput", err)
	for i, text := range f.sweeps {
		p, err := simulation.ParseSweep(text)
		bad.Check("--sweep", err)
		if i == 2 {
			bad.Add("--sweep", text, "given more than twice: sweep one parameter, or two")
		}
		if err == nil {
			cfg.Sweep.Params = append(cfg.Sweep.Params, p)
		}
	}
	for _, p := range cfg.Sweep.Params {
		for _, field := range p.Fields() {
			// The latency of --link is that of the rates that are swept.
			if flag := simulateNames[field]; changed(flag[2:]) && field != "NIC" {
				bad.Check(flag, fmt.Errorf("--sweep %s sets it: leave one out", p.Name))
			}
		}
	}
	f.nodes(cfg.Sweep.Params, changed, &bad)
	f.load.settle(changed, &bad)
	if f.load.spec.Kind == load.Traced && !changed("enable-prefix-caching") {
		f.s.PrefixCaching = true
	}
	if f.s.Profile == nil {
		return cfg, bad.Err("")
	}
	cfg.Sweep.ParseNIC = func(text string) (sim.NIC, error) { return oneNIC(f.s.Profile, text) }
	f.s.NIC, err = cfg.Sweep.ParseNIC(f.link)
	bad.Check("--link", err)
	f.s.Longest = f.load.scan(&bad)
	f.s.Load = f.load.spec
	f.s.FitLoad()
	cfg.Sweep.Base = f.s
	if len(cfg.Sweep.Params) > 0 && len(bad) == 0 {
		return cfg, command.Check(bad, cfg.Sweep.Validate(), simulateNames)
	}
	return cfg, command.Check(bad, f.s.Validate(), simulateNames)
}

// nodes settles which of the two kinds of cluster is meant.
func (f *simulateFlags) nodes(sweeps []simulation.SweepParam, changed func(string) bool, bad *config.Faults) {
	swept := func(names ...string) bool {
		return slices.ContainsFunc(sweeps, func(p simulation.SweepParam) bool { return slices.Contains(names, p.Name) })
	}
	pair := changed("prefill") || changed("decode") || swept("nodes", "prefill", "decode")
	plain := changed("nondisagg") || swept("nondisagg")
	switch {
	case plain && pair:
		bad.Check("--nondisagg", errors.New("a cluster has prefill and decode nodes, or nodes that do both: leave one kind out"))
	case plain:
		f.s.Prefill, f.s.Decode = 0, 0
		for _, flag := range []string{"handoff", "nics", "link"} {
			if changed(flag) || swept(flag) {
				bad.Check("--"+flag, errors.New("non-disaggregated nodes move no KV: leave it out"))
			}
		}
	case f.s.Chunked:
		bad.Check("--chunked", errors.New("is for --nondisagg nodes: prefill nodes compute whole prompts"))
	}
}

// oneNIC reads a NIC: a link of the profile, a rate, or rate=..,latency=...
func oneNIC(p *engine.Profile, text string) (sim.NIC, error) {
	if _, known := p.Links[text]; !known && !strings.Contains(text, "=") && strings.ContainsAny(text, "0123456789") {
		text = "rate=" + text
	}
	l, err := node.ResolveLink(p, text)
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
