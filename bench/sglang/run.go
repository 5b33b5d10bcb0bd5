package sglang

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"kvferry/bench/bar"
	"kvferry/bench/client"
	"kvferry/bench/machine"
	"kvferry/bench/page"
	"kvferry/bench/report"
	"kvferry/bench/serve"
	"kvferry/bench/simulation"
	"kvferry/config"
	"kvferry/engine"
	"kvferry/placement"
)

// Config is what to run, and where it goes. Zero values take the defaults.
type Config struct {
	Runs    []string // workloads, or workloads and settings such as deepseek-v3/triton/128x16; default all
	Profile string   // in place of each run's own: a shipped profile's name, or a file
	// TracePath is the Azure Functions trace of 2021, for the runs with LoRA adapters. Without it
	// their arrivals are rebuilt from what the record counts.
	TracePath string
	Out       string   // folder for the results; it is created
	Command   []string // the command line, for the record

	Stdout   io.Writer // the tables, default none
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal

	server *engine.Profile // the one that Profile names, as Validate has read it
}

// A Row of summary.json is one run.
type Row struct {
	Workload string   `json:"workload"`
	Setting  string   `json:"setting"`
	Clock    string   `json:"clock"`              // report.ClockVirtual
	Compute  string   `json:"compute"`            // "modelled"
	Transfer string   `json:"transfer"`           // "none": one server, which is not disaggregated
	Profile  string   `json:"profile"`            // of the modelled server
	Arrivals string   `json:"arrivals,omitempty"` // of a run with LoRA adapters: rebuilt or recorded
	Metrics  Figures  `json:"metrics"`
	Counts   Counts   `json:"counts"`
	Said     Figures  `json:"published"`
	Recorded Counts   `json:"published_counts"`
	RelErr   Figures  `json:"rel_err"` // (metrics - published) / published
	Within   int      `json:"within_10_percent"`
	Judged   int      `json:"judged"` // see Judged
	Faults   []string `json:"faults"` // what makes the row unusable
	Remarks  []string `json:"remarks"`
}

func (r *Row) name() string { return r.Workload + " " + r.Setting }

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

// chosen are the runs that cfg.Runs names, in the order of the tables.
func (cfg *Config) chosen() []Published {
	if len(cfg.Runs) == 0 {
		return Runs()
	}
	return slices.DeleteFunc(slices.Clone(Runs()), func(p Published) bool {
		return !slices.Contains(cfg.Runs, p.Workload) && !slices.Contains(cfg.Runs, p.Workload+"/"+p.Setting)
	})
}

// Validate reads the profile, and lists every fault by its field, as a [config.Invalid].
func (cfg *Config) Validate() error {
	var bad config.Faults
	for _, name := range cfg.Runs {
		if !slices.Contains(Names(), name) {
			bad.Add("Runs", name, "use some of %s, or leave it out for all", strings.Join(Names(), ", "))
		}
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
	if cfg.Out == "" {
		bad.Add("Out", nil, "name a folder for the results")
	} else {
		bad.Check("Out", page.CheckNew(cfg.Out))
	}
	return bad.Err("sglang.Config")
}

// Run computes the chosen runs, prints their tables and writes their files. When ctx is done it
// keeps and prints what there is, and returns ctx's error.
func Run(ctx context.Context, cfg Config) (*Results, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Stdout == nil {
		cfg.Stdout = io.Discard
	}
	if cfg.Progress == nil {
		cfg.Progress, cfg.Terminal = io.Discard, false
	}
	chosen := cfg.chosen()
	requests := 0
	for _, p := range chosen {
		requests += p.NumPrompts
	}
	b := bar.New(cfg.Progress, cfg.Terminal)
	b.Show(bar.Look{Max: int64(requests), What: "requests simulated", Count: true, Throttle: barPeriod})
	out := page.OpenFolder(cfg.Out, b.Say)
	r := &Results{Command: cfg.Command, Started: time.Now(), Machine: machine.Describe()}
	var err error
	done := int64(0)
	for _, p := range chosen {
		var row *Row
		if row, err = run(ctx, &cfg, &p, func(rec *Record) {
			out.Record(rec)
			done++
			b.Set(done)
		}); err != nil {
			err = fmt.Errorf("%s: %w", p.Name(), err)
			break
		}
		r.Rows = append(r.Rows, *row)
	}
	b.Wipe()
	return r, r.finish(cfg, out, err)
}

const barPeriod = 500 * time.Millisecond

// Compute computes a published run with another server.
func Compute(ctx context.Context, p *Published, server *engine.Profile) (*Row, error) {
	return run(ctx, &Config{server: server}, p, func(*Record) {})
}

// run computes one, with its own server if none is given.
func run(ctx context.Context, cfg *Config, p *Published, tell func(*Record)) (*Row, error) {
	server := cfg.server
	if server == nil {
		var err error
		if server, err = engine.LoadProfile(p.Profile); err != nil {
			return nil, err
		}
	}
	asked, err := p.asked(cfg, server)
	if err != nil {
		return nil, err
	}
	// The published client spoke to the server itself: there is no proxy, and no message between nodes.
	servers := simulation.Cluster{Profile: server, Nondisagg: 1, NICs: 1}
	if p.Trace != nil {
		servers.Nondisagg, servers.Placement = p.Trace.servers(), placement.Static
	}
	target := serve.Model(servers, "")
	if _, err := target.Open(ctx); err != nil {
		return nil, err
	}
	of := &report.Run{Setup: report.Setup{Clock: report.ClockVirtual, Backend: p.Backend, MaxConcurrency: p.MaxConcurrency, NumPrompts: p.NumPrompts}}
	took, err := target.Run(ctx, asked, func(rec *client.Record) {
		of.Records = append(of.Records, *rec)
		tell(&Record{Workload: p.Workload, Setting: p.Setting, Clock: report.ClockVirtual, Record: *rec})
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(of.Records, func(a, b client.Record) int { return a.Index - b.Index })
	of.Duration = took.Seconds()
	m := of.Metrics()
	row := &Row{
		Workload: p.Workload, Setting: p.Setting, Clock: report.ClockVirtual, Compute: "modelled", Transfer: "none", Profile: server.Name, Arrivals: p.source(cfg),
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
