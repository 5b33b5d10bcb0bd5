package sglang

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/serve"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/internal/progress"
	"kvferry/placement"
)

// Clocks are what Config.Clock takes: both real and virtual time, or one of them.
var Clocks = []string{report.ClockVirtual, report.ClockReal, bothClocks}

const bothClocks = "both"

// Config is what to run, and where it goes. Zero values take the defaults.
type Config struct {
	Runs    []string // workloads, or workloads and settings such as deepseek-v3/triton/128x16; default all
	Clock   string   // one of Clocks, default virtual
	Profile string   // in place of each run's own: a shipped profile's name, or a file
	// TracePath is the Azure Functions trace of 2021, for the runs with LoRA adapters. Without it
	// their arrivals are rebuilt from what the record counts.
	TracePath string
	// Start starts modelled servers on this machine, with a profile that is named as Profile is: what
	// real time asks. In virtual time it may be nil.
	Start func(ctx context.Context, servers cluster.Spec) (serve.Cluster, error)

	Out     string   // folder for the results; it is created
	Command []string // the command line, for the record

	Stdout   io.Writer // the tables, default none
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal

	server *engine.Profile // the one that Profile names, as Validate has read it
}

// A Row of summary.json is one run.
type Row struct {
	Workload string  `json:"workload"`
	Setting  string  `json:"setting"`
	Source   Source  `json:"source"`             // of what was published
	Clock    string  `json:"clock"`              // report.ClockVirtual, or report.ClockReal: modelled servers on this machine
	Compute  string  `json:"compute"`            // "modelled"
	Transfer string  `json:"transfer"`           // "none": one server, which is not disaggregated
	Profile  string  `json:"profile"`            // of the modelled server
	Arrivals string  `json:"arrivals,omitempty"` // of a run with LoRA adapters: rebuilt or recorded
	Metrics  Figures `json:"metrics"`
	Counts   Counts  `json:"counts"`
	Said     Figures `json:"published"`
	Recorded Counts  `json:"published_counts"`
	RelErr   Figures `json:"rel_err"` // (metrics - published) / published
	Within   int     `json:"within_10_percent"`
	Judged   int     `json:"judged"` // see Judged
	// InSample says that the profile was fitted to what is published here: each that ships is.
	InSample bool     `json:"in_sample"`
	Faults   []string `json:"faults"` // what makes the row unusable
	Remarks  []string `json:"remarks"`
	// Disturbance is what else the machine did in real time; nil in virtual time.
	Disturbance *observe.Disturbance `json:"disturbance"`
}

func (r *Row) name() string { return r.Workload + " " + r.Setting }

// timed is its name with its clock.
func (r *Row) timed() string { return r.name() + " in " + r.Clock + " time" }

// A Record is what happened to one request of a run: a line of results.jsonl.
type Record struct {
	Workload string `json:"workload"`
	Setting  string `json:"setting"`
	Clock    string `json:"clock"`
	client.Record
}

// Names are what Config.Runs takes: the workloads, and each run.
func Names() []string {
	var names []string
	for _, p := range Runs() {
		if !slices.Contains(names, p.Workload) {
			names = append(names, p.Workload)
		}
	}
	for _, p := range Runs() {
		names = append(names, p.Workload+"/"+p.Setting)
	}
	return names
}

// clocks are those of cfg.Clock.
func (cfg *Config) clocks() []string {
	if cfg.Clock == bothClocks {
		return []string{report.ClockVirtual, report.ClockReal}
	}
	return []string{cmp.Or(cfg.Clock, report.ClockVirtual)}
}

// short is how long a published run took at most, in seconds, that is run in real time without
// being named.
const short = 60

// chosen are the runs that cfg.Runs names, in the order of the tables. Without names they are all,
// and in real time those that are short.
func (cfg *Config) chosen(clock string) []Published {
	return slices.DeleteFunc(slices.Clone(Runs()), func(p Published) bool {
		if len(cfg.Runs) == 0 {
			return clock == report.ClockReal && p.Figures["duration_s"] > short
		}
		return !slices.Contains(cfg.Runs, p.Workload) && !slices.Contains(cfg.Runs, p.Workload+"/"+p.Setting)
	})
}

// Validate reads the profile, and lists every fault by its field, as a [config.Invalid].
func (cfg *Config) Validate() error {
	var bad config.Faults
	for _, name := range cfg.Runs {
		bad.Refuse(!slices.Contains(Names(), name), "Runs", name, "use some of %s, or leave it out for all", strings.Join(Names(), ", "))
	}
	switch {
	case cfg.Clock != "" && !slices.Contains(Clocks, cfg.Clock):
		bad.Add("Clock", cfg.Clock, "use %s", config.Or(Clocks))
	case cfg.Start == nil && slices.Contains(cfg.clocks(), report.ClockReal):
		bad.Add("Start", nil, "say what starts the servers of real time")
	}
	if cfg.Profile != "" {
		var err error
		cfg.server, err = engine.LoadProfile(cfg.Profile)
		bad.Check("Profile", err)
	}
	if cfg.TracePath != "" {
		_, err := os.Stat(cfg.TracePath)
		bad.Check("TracePath", err)
	}
	bad.Check("Out", document.CheckNew(cfg.Out))
	return bad.Err("sglang.Config")
}

// Run computes the chosen runs, prints their tables and writes their files. When ctx is done it
// keeps and prints what there is, and returns ctx's error.
func Run(ctx context.Context, cfg Config) (*Results, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Stdout, io.Discard)
	config.Default(&cfg.Progress, io.Discard)
	var chosen []timedRun
	requests := 0
	for _, clock := range cfg.clocks() {
		for _, p := range cfg.chosen(clock) {
			chosen = append(chosen, timedRun{p, clock})
			requests += p.NumPrompts
		}
	}
	b := progress.New(cfg.Progress, cfg.Terminal)
	b.Start(progress.State{What: "starting", Total: int64(requests), Unit: "requests answered"})
	out := document.OpenFolder(cfg.Out, b.Say)
	r := &Results{Command: cfg.Command, Started: time.Now(), Machine: observe.Describe(), instead: cfg.server}
	var err error
	for _, c := range chosen {
		answered := 0
		c.show(b, &answered)
		var row *Row
		if row, err = c.run(ctx, &cfg, func(rec *Record) {
			out.Record(rec)
			b.Update(func(s *progress.State) { answered++; s.Done++ })
		}); err != nil {
			err = fmt.Errorf("%s in %s time: %w", c.Name(), c.clock, err)
			if answered > 0 {
				r.cut = fmt.Sprintf("%s in %s time is not complete, and has no row: %d of %d requests were answered", c.Name(), c.clock, answered, c.NumPrompts)
			}
			break
		}
		r.Rows = append(r.Rows, *row)
	}
	b.Stop()
	return r, r.finish(cfg, out, err)
}

// show names the run on t, with *answered of its requests. What changes *answered holds t's lock. In real time a line
// says for how long the run will take: as long as the record's client did.
func (p *timedRun) show(t *progress.Task, answered *int) {
	if p.clock == report.ClockReal {
		t.Say(fmt.Sprintf("%s in real time: starting its servers; the record's client took %.0f s", p.Name(), p.Figures["duration_s"]))
	}
	t.Poll(func(s *progress.State) {
		s.What = fmt.Sprintf("%s in %s time, %d of %d", p.Name(), p.clock, *answered, p.NumPrompts)
	})
}

// Compute computes a published run with another server.
func Compute(ctx context.Context, p *Published, server *engine.Profile) (*Row, error) {
	return timedRun{*p, report.ClockVirtual}.run(ctx, &Config{server: server}, func(*Record) {})
}

// A timedRun is a published run by one of the clocks.
type timedRun struct {
	Published
	clock string
}

// target is the run's servers: modelled ones, their model, or as processes of this machine.
func (p *timedRun) target(cfg *Config, server *engine.Profile) serve.Target {
	// The published client spoke to the server itself: in virtual time there is no proxy, and no message between nodes.
	servers := cluster.Spec{Costs: server, Nondisagg: 1, RPC: -1}
	if p.Trace != nil {
		servers.Nondisagg, servers.Proxy.Placement, servers.Proxy.LoRAs = p.Trace.servers(), placement.Static, cluster.LoRAs(p.Trace.ranks())
	}
	if p.clock == report.ClockVirtual {
		return serve.Model(servers)
	}
	start := func(ctx context.Context) (serve.Cluster, error) { return cfg.Start(ctx, servers) }
	return serve.Own(start, serve.InWords(servers), serve.Asking{Config: client.Config{Backend: p.Backend}})
}

// run computes or measures one, with its own server if none is given.
func (p timedRun) run(ctx context.Context, cfg *Config, tell func(*Record)) (row *Row, err error) {
	server := cfg.server
	if server == nil {
		if server, err = engine.LoadProfile(p.Profile); err != nil {
			return nil, err
		}
	}
	asked, err := p.asked(cfg, server)
	if err != nil {
		return nil, err
	}
	target := p.target(cfg, server)
	defer func() { err = errors.Join(err, target.Close()) }()
	facts, err := target.Open(ctx)
	if err != nil {
		return nil, err
	}
	runner := serve.Runner{Each: func(rec *client.Record) {
		tell(&Record{Workload: p.Workload, Setting: p.Setting, Clock: p.clock, Record: *rec})
	}}
	facts.Notes = nil // of a server that is known
	of, err := runner.Run(ctx, target, &facts, asked)
	if err != nil {
		return nil, err
	}
	of.Setup = report.Setup{Clock: p.clock, Backend: p.Backend, MaxConcurrency: p.MaxConcurrency, NumPrompts: p.NumPrompts}
	m := of.Metrics()
	row = &Row{
		InSample: cfg.Profile == "",
		Workload: p.Workload, Setting: p.Setting, Source: p.Source, Clock: p.clock, Disturbance: of.Disturbance, Compute: "modelled", Transfer: "none", Profile: server.Name, Arrivals: p.source(cfg),
		Metrics: Of(m), Counts: Counts{Successful: m.Successful, Input: m.InputTokens, Generated: m.GeneratedTokens},
		Said: p.Figures, Recorded: p.Counts, Faults: []string{}, Remarks: p.Remarks,
	}
	row.RelErr = row.Metrics.RelErr(p.Figures)
	row.Within, row.Judged = row.Metrics.Within(p.Figures, closeBy)
	for _, c := range []struct {
		what      string
		got, want int
	}{
		{"requests were answered", m.Successful, p.Counts.Successful},
		{"prompt tokens were asked", m.InputTokens, p.Counts.Input},
		{"tokens were generated", m.GeneratedTokens, p.generated()},
	} {
		if c.got != c.want {
			row.Faults = append(row.Faults, fmt.Sprintf("%d %s, and %d in the record", c.got, c.what, c.want))
		}
	}
	return row, nil
}

// closeBy is the relative error up to which a figure counts as reproduced.
const closeBy = 0.10
