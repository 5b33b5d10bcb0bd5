package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/bench/simulation"
	"kvferry/cluster"
	"kvferry/internal/knob"

	"kvferry/internal/config"
	"kvferry/load"
)

// simFlags are the command line of kvferry sim.
type simFlags struct {
	cluster    clusterFlags
	load       loadFlags
	goodput    []string
	attainment float64
	sweeps     []string
	out        string
	detailed   bool
}

func simCommand(terminal bool) *cobra.Command {
	f := simFlags{cluster: newClusterFlags()}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Model a cluster in virtual time, and sweeps: how many nodes, how fast a NIC?",
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
sweep.json; table.md, and report.html with the curves. The same flags give the same
figures to the last digit.

Exit status: 0 done; 1 nothing could be served; 2 bad flags, or a trace with a bad
line; 130 interrupted (the points that had ended are kept).`,
		Example: `  kvferry sim --prefill 2 --decode 2 --request-rate 4 --random-input-len 1024 --random-output-len 128
  kvferry sim --trace mooncake_conversation.jsonl --prefill 8 --decode 8 --placement prefix-aware
  kvferry sim --both 16 --enable-chunked-prefill --trace mooncake_conversation.jsonl
  kvferry sim --request-rate 16 --sweep nodes=2:6,3:5,4:4,5:3,6:2 --sweep link=10gbit,25gbit,100gbit
  kvferry sim --sweep rate=1,2,4,8 --sweep handoff=v0,pull,layerwise --link tcp --goodput ttft:1000,tpot:30`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settleAliases(cmd.Flags())
			cfg, err := f.config(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			return config.Named(simulation.Run(cmd.Context(), cfg), simNames)
		},
	}
	AddGroups(cmd, true, f.groups()...)
	return cmd
}

// groups returns the flags, in the order in which help lists them.
func (f *simFlags) groups() []knob.Group {
	groups := cluster.Knobs.For(cluster.Sim).Flags(&f.cluster.Spec, cluster.Sim)
	for i := range groups {
		groups[i].Topic = "cluster"
		groups[i].Flags.VisitAll(func(of *pflag.Flag) { // what one needs may be swept
			if needs := of.Annotations[knob.Needs]; len(needs) > 0 {
				of.Annotations[knob.Needs] = append(needs, "sweep")
			}
		})
	}
	fs := pflag.NewFlagSet("sweep", pflag.ContinueOnError)
	fs.StringArrayVar(&f.goodput, "goodput", []string{"ttft:2000,tpot:50"}, "SLO in ms of ttft, tpot and e2el, or none; a request counts as good if it keeps all that are named")
	fs.Float64Var(&f.attainment, "attainment", 0.99, "share of the requests that must be good for a point of a sweep to count")
	fs.StringArrayVar(&f.sweeps, "sweep", nil, "parameter=value,value,...; twice for each pair of two")
	fs.StringVar(&f.out, "out", "", outHelp)
	fs.BoolVar(&f.detailed, "save-detailed", true, "write results.jsonl, a line for each request; never for a sweep")
	groups = slices.Concat(groups, f.load.groups(), []knob.Group{{Topic: "sweeps", Title: "Sweeps and results", Flags: fs}})
	first(groups, "prefill", "decode", "both", "handoff", "placement", "profile", "enable-prefix-caching", "link", "dataset-name", "dataset-path", "trace",
		"random-input-len", "random-output-len", "num-prompts", "request-rate", "seed", "goodput", "sweep", "out")
	return groups
}

// simNames are the flags that set the fields of a simulation.Config, its Sweep and that
// one's Base.
var simNames = joined(cluster.Knobs.For(cluster.Sim).Names(), within("Load", loadNames), map[string]string{
	"Sweep": "", "Base": "", "Spec": "", "Params": "--sweep", "Out": "--out",
	"SLO": "--goodput", "Attainment": "--attainment", "Records": "--save-detailed",
})

// config turns flags into a simulation; an error names each that is wrong.
func (f *simFlags) config(changed func(flag string) bool) (simulation.Config, error) {
	var bad config.Faults
	cfg := simulation.Config{Out: resultsFolder(f.out), Detailed: f.detailed, Command: os.Args}
	base := simulation.Simulation{Attainment: f.attainment}
	var err error
	base.SLO, err = simulation.ParseGoodput(f.goodput)
	bad.Check("--goodput", err)
	for i, text := range f.sweeps {
		p, err := simulation.ParseSweep(text)
		bad.Check("--sweep", err)
		bad.Refuse(i == 2, "--sweep", text, "given more than twice: sweep one parameter, or two")
		if err == nil {
			cfg.Sweep.Params = append(cfg.Sweep.Params, p)
		}
	}
	for _, p := range cfg.Sweep.Params {
		for _, name := range p.Names() {
			if changed(name) && name != "link" { // whose latency is that of the rates that are swept
				bad.Check("--"+name, fmt.Errorf("--sweep %s sets it: leave one out", p.Name))
			}
		}
		if p.Name == "both" { // its values replace the others
			f.cluster.Prefill, f.cluster.Decode = 0, 0
			f.cluster.Nondisagg = max(f.cluster.Nondisagg, 1)
		}
	}
	f.load.settle(changed, &bad)
	f.cluster.settle(changed, &bad)
	bad.Check("--lora-modules", f.cluster.Adapt(&f.load.spec.Adapters.Names))
	if f.load.spec.Kind == load.Traced && !changed("enable-prefix-caching") {
		f.cluster.Node.PrefixCaching = true
	}
	p, err := f.cluster.Engine()
	if err != nil {
		return cfg, bad.Err("")
	}
	f.cluster.FitLoad(f.load.scan(p, &bad))
	base.Spec, base.Load = f.cluster.Spec, f.load.spec
	cfg.Sweep.Base = base
	if len(cfg.Sweep.Params) > 0 && len(bad) == 0 {
		return cfg, Check(bad, cfg.Sweep.Validate(), simNames)
	}
	return cfg, Check(bad, base.Validate(), simNames)
}
