package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/bench"
	"kvferry/bench/document"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/internal/knob"

	"kvferry/internal/config"
	"kvferry/load"
	"kvferry/node"
	"kvferry/transport/rails"
)

// mooncakeFlags are the command line of kvferry reproduce mooncake. Names of flags are those of vLLM's
// benchmark and server where these have them.
type mooncakeFlags struct {
	rows, settings string
	out, proxy     string
	nodes          cluster.Spec // of the settings that move KV; its link and rails are instead of each setting's
	less           string       // why less of the KV pools is in memory beforehand than by default; empty if it is not
	clock          string
	numPrompts     int
	seed           uint32
	repeat         int
	retries        int
	timeout, ready time.Duration

	log lazyFile // of the daemons
}

func mooncakeCommand(terminal bool) *cobra.Command {
	f := mooncakeFlags{nodes: cluster.Spec{Prefill: 1, Decode: 1}}
	f.nodes.Node.WarmBytes = warmBytes
	cmd := &cobra.Command{
		Use:   "mooncake",
		Short: "Measure Mooncake's published A10 table",
		Long: `Replay the workload of Mooncake's A10 tables (200 requests, the same arrivals to
the millisecond, prompts of the same lengths, 6 tokens each) against a cluster,
and set what was measured beside what was published.

A row is a workload, prompt length and requests a second; a setting is what
serves it:

  nondisagg   one node, whole prompts first       (published)
  chunked     one node, chunked prefill           (published)
  rdma        prefill + decode node, one NIC      (published; link paced)
  rdma2       prefill + decode node, two NICs     (published; link paced)
  tcp         prefill + decode node, TCP          (published; link paced)
  pull        prefill + decode node, TCP, KV read when the prompt is computed,
              without stalling the batch; not in the default list
  push        prefill + decode node, TCP, KV sent when the prompt is computed;
              not in the default list
  layerwise   prefill + decode node, TCP, KV sent layer by layer while the next
              layer computes: kvferry's own hand-off, nothing published

A paced transfer moves its bytes at once, and completes when the setting's NIC would
have delivered them: over TCP sockets for tcp, pull, push and layerwise, and for rdma and
rdma2 by a copy from one process's memory to the other's (cma), which on this machine
is as fast as two such NICs. Each row says which. Where the kernel does not allow
that copy, rdma and rdma2 go over TCP sockets too, and the row says that and why.

Each measured cell starts a cluster of its own, warms it up with one request, and
takes as long as its arrivals: 25 s at 8 requests a second, 99 s at 2.

A machine that does other things at the same time disturbs a measurement. Every row
carries how much: timers that came late, CPU time that a hypervisor took or other
programs used. A cell above the thresholds is measured again (--retries-disturbed);
if that was no better, its row is marked with a tilde.

With --proxy a cluster that somebody else started is measured. It is asked what it is
(GET /server_info): rows are labelled by the answer, and a setting that does not
match it is refused. Any server with OpenAI's completions can be measured; if it does
not say what it is, its row says "unknown".

In virtual time (--clock virtual) the same scheduler, hand-offs and placement run
over modelled links without waiting, and all rows and settings take a second or
two. Without --clock, the chosen rows are measured and the whole table in virtual
time is printed after them, if it is comparable with the published.

Results go to --out as they come: results.jsonl (a request when it ends), and after
each cell summary.json, table.md, report.html. Ctrl-C, SIGTERM and a terminal that
hangs up stop the run and keep them: requests in flight are "interrupted". Results
that cannot be written are printed all the same.

Exit status: 0 all cells sound; 1 a cell has faults (failed requests, wrong KV), or
results could not be written; 2 bad flags, or a server that is another setting;
130 interrupted.`,
		Example: `  kvferry reproduce mooncake                                       # six settings at 256/q8, three minutes
  kvferry reproduce mooncake --clock virtual                       # every row and setting, in seconds
  kvferry reproduce mooncake --clock both                          # 256/q8 measured, and beside it in virtual time
  kvferry reproduce mooncake --rows 1024/q2 --settings nondisagg,tcp,layerwise
  kvferry reproduce mooncake --rows all --out table                # all 25 published cells and 5 more, 29 minutes
  kvferry reproduce mooncake --settings layerwise --num-prompts 20 # a quick look, not comparable
  kvferry reproduce mooncake --proxy 10.0.0.5:8000 --settings tcp`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.config(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			if f.less != "" {
				cmd.PrintErrln(f.less)
			}
			_, err = bench.Run(cmd.Context(), cfg)
			if f.log.err != nil && err == nil {
				return fmt.Errorf("the daemons' log is not kept: %w", f.log.err)
			}
			if mismatch := (*bench.MismatchError)(nil); errors.As(err, &mismatch) {
				return config.Faults{{Field: "--settings", Err: mismatch}}.Err("")
			}
			return config.Named(err, mooncakeNames)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// register adds the flags, in the order in which help lists them.
func (f *mooncakeFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.rows, "rows", "256/q8", "workloads: all, or a list of 1024/q2, 256/q2, 256/q4, 256/q6, 256/q8")
	fs.StringVar(&f.settings, "settings", "nondisagg,chunked,rdma,rdma2,tcp,layerwise", "settings to measure, in this order")
	fs.StringVar(&f.clock, "clock", "", "real: measure only; virtual: compute only, all rows and settings if none are named; both: the same cells either way (default: measure, then compute the whole table)")
	fs.StringVar(&f.out, "out", "", outHelp)
	fs.StringVar(&f.proxy, "proxy", "", "measure the cluster behind the proxy at this address (10.0.0.5:8000) instead of starting one; --settings names the one setting it serves, and it is asked whether it does")
	addKnobs(fs, mooncakeKnobs, &f.nodes, 0)
	for _, name := range []string{"link", "rail"} { // by default each setting's own
		of := fs.Lookup(name)
		of.Usage, of.DefValue = "instead of each setting's "+name+": "+of.Usage, ""
	}
	fs.IntVar(&f.numPrompts, "num-prompts", load.PublishedPrompts, "requests a cell; only 200 can be compared with the published")
	fs.Uint32Var(&f.seed, "seed", 0, "seed of arrivals and prompts; only 0 can be compared with the published")
	fs.IntVar(&f.repeat, "repeat", 1, "how many times to run the whole list of cells")
	fs.IntVar(&f.retries, "retries-disturbed", 1, "how many times to measure a cell again that the machine disturbed; the least disturbed attempt is reported")
	fs.DurationVar(&f.timeout, "request-timeout", 2*time.Minute, "give a request up after this long")
	fs.DurationVar(&f.ready, "ready-timeout", time.Minute, "give a cluster up that does not serve after this long")
	Positive(fs, "num-prompts", "repeat", "request-timeout", "ready-timeout")
}

// mooncakeNames are the flags that set the fields of a bench.Config, and of the
// cluster.Spec of each cell.
var mooncakeNames = joined(mooncakeKnobs.Names(), map[string]string{
	"Workloads": "--rows", "Settings": "--settings", "NumPrompts": "--num-prompts", "Seed": "--seed", "Repeat": "--repeat", "RetriesDisturbed": "--retries-disturbed", "Out": "--out",
	"RequestTimeout": "--request-timeout", "ReadyTimeout": "--ready-timeout", "Start": "--proxy", "Virtual": "--clock",
})

// mooncakeKnobs are the settings of the nodes that do not belong to a setting of the table.
var mooncakeKnobs = slices.DeleteFunc(cluster.Knobs.For(cluster.Bench), func(k knob.Knob[cluster.Spec]) bool {
	return !slices.Contains([]string{"profile", "link", "rail", "kv-blocks", "kv-warm-mib"}, k.Name)
})

// config turns flags into a run, or names every flag that is wrong and the fix.
// changed tells flags that were given from those with their default.
func (f *mooncakeFlags) config(changed func(flag string) bool) (bench.Config, error) {
	var bad, fields config.Faults // by the names of flags, and of fields
	cfg := bench.Config{
		NumPrompts: f.numPrompts, Seed: f.seed, Repeat: f.repeat, RetriesDisturbed: f.retries, Out: resultsFolder(f.out),
		RequestTimeout: f.timeout, ReadyTimeout: f.ready,
		Command: masked(os.Args),
	}
	f.log.dir = cfg.Out
	var err error
	Parse(&bad, "--rows", f.rows, &cfg.Workloads, bench.ParseRows)
	Parse(&bad, "--settings", f.settings, &cfg.Settings, bench.ParseSettings)
	bad.Refuse(!slices.Contains([]string{"", "real", "virtual", "both"}, f.clock), "--clock", f.clock, "use real, virtual or both")
	for _, s := range rails.Check(&fields, f.nodes.Node.Rails) {
		if s.Listen != "" && !strings.HasSuffix(s.Listen, ":0") {
			fields.Add("Rails", s, "all nodes are on this machine and cannot all listen there: use port 0")
		}
	}
	p, err := f.nodes.Engine()
	bad.Check("", config.Named(err, cluster.Names))
	if f.proxy != "" {
		base, err := config.PublicURL(f.proxy)
		bad.Check("--proxy", err)
		cfg.Start = running(base)
		bad = append(bad, mooncakeKnobs.Refuse("it is for a cluster that kvferry starts: leave it out, the nodes behind --proxy have their own", changed)...)
		if !changed("settings") || len(cfg.Settings) > 1 {
			bad.Check("--settings", errors.New("a running cluster serves one setting: name the one behind --proxy, for example --settings tcp"))
		}
		bad.Refuse(f.clock == "virtual", "--clock", f.clock, "it computes what --proxy would measure: leave one of them out")
	}
	if p != nil {
		cfg.ParseLink = nodeLink(p)
		if f.proxy == "" {
			cfg.System = map[string]any{"profile": p, "link": f.nodes.Link, "rail": strings.Join(f.nodes.Node.Rails, ",")}
			if !changed("kv-warm-mib") && f.clock != "virtual" {
				f.less = fitWarm(&f.nodes)
			}
			cfg.Start = embedded(hardware{f.nodes}, &f.log)
			if f.clock != "virtual" && len(bad) == 0 {
				fields.Check("", f.nodes.Validate())
			}
		}
		f.virtual(&cfg, p, changed)
		f.checkLinks(&bad, &cfg, p)
	}
	if len(bad) == 0 {
		fields.Check("", cfg.Validate())
	}
	return cfg, Check(bad, fields.Err("bench.Config"), mooncakeNames)
}

// virtual sets what is computed in virtual time: nothing, the chosen cells or the whole table,
// as --clock says. Without one the whole table is computed beside what is measured, as it costs
// seconds, unless its figures would stand beside others that they cannot be compared with.
func (f *mooncakeFlags) virtual(cfg *bench.Config, p *engine.Profile, changed func(flag string) bool) {
	v := &bench.Virtual{Workloads: cfg.Workloads, Settings: cfg.Settings, Profile: p, Link: func(s bench.Setting) (string, error) {
		return cmp.Or(f.nodes.Link, s.Link), nil
	}}
	switch f.clock {
	case "real":
		return
	case "both":
	case "virtual":
		cfg.Start = nil
		if !changed("rows") {
			v.Workloads = load.Workloads()
		}
		if !changed("settings") {
			v.Settings = bench.Settings()
		}
	default:
		if f.proxy != "" || f.nodes.Link == "native" || f.numPrompts != load.PublishedPrompts || f.seed != 0 {
			return // not modelled here, or not comparable with what was published
		}
		v.Workloads, v.Settings = load.Workloads(), bench.Settings()
	}
	cfg.Virtual = v
}

// checkLinks looks at the link of each setting once, whichever clock it is for: before the first
// cell, which takes minutes, and not before the one that needs it.
func (f *mooncakeFlags) checkLinks(bad *config.Faults, cfg *bench.Config, p *engine.Profile) {
	if text := f.nodes.Link; text != "" {
		_, err := node.ResolveLink(p, text)
		if err == nil && cfg.Virtual != nil {
			_, err = (&cluster.Spec{Costs: p, Prefill: 1, Decode: 1, Link: text}).Model() // native is none
			if fault := (*config.Fault)(nil); errors.As(err, &fault) {
				err = fault.Err
			}
		}
		bad.Check("--link", err)
		return
	}
	settings := slices.Clone(cfg.Settings)
	if cfg.Virtual != nil {
		settings = append(settings, cfg.Virtual.Settings...)
	}
	told := make(map[string]bool)
	for _, s := range settings {
		if _, err := node.ResolveLink(p, s.Link); err != nil && !told[s.Link] {
			told[s.Link] = true
			bad.Add("--profile", cmp.Or(f.nodes.Profile, engine.DefaultProfile), "it has no link %q, which setting %s goes over: add it, name another with --link, or leave the setting out", s.Link, s.Name)
		}
	}
}

// A lazyFile is the daemons' log, cluster.log in the folder of the results,
// created with its first line: a run that writes none leaves no empty file, and a command line
// that is refused no folder. Writes come one at a time, see cluster.Spec.
type lazyFile struct {
	dir string
	f   *os.File
	err error // the first, after which nothing is written
}

func (l *lazyFile) Write(b []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	if l.f == nil {
		if l.err = document.MakeFolder(l.dir); l.err == nil {
			l.f, l.err = os.Create(filepath.Join(l.dir, document.LogFile))
		}
	}
	n := 0
	if l.err == nil {
		n, l.err = l.f.Write(b)
	}
	return n, l.err
}
