package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/serve"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/load"
	"kvferry/proxy/serverinfo"
)

// A Link says what carried the KV cache, and so what a row's numbers are.
type Link struct {
	Clock    string `json:"clock"`    // ClockReal or ClockVirtual
	Compute  string `json:"compute"`  // "modelled", "measured" of real engines, or "unknown" of a server that does not say
	Transfer string `json:"transfer"` // "measured", "paced", "modelled", "none", "unknown"
	// Label is the same in words: "compute modelled, transfer paced 1.29 GB/s".
	Label string `json:"label"`
	// Rail is what moved the bytes: "tcp/loopback", "cma", or the nodes' --rail.
	Rail string `json:"rail,omitempty"`
	// PacedTo is the modelled NIC's rate in bytes a second, of a paced transfer.
	PacedTo float64 `json:"paced_to,omitempty"`
}

// A Cluster is something that serves a setting.
type Cluster interface {
	// URL is the proxy's address, "http://127.0.0.1:8000".
	URL() string
	// Link says what carries the KV. Nil leaves it to the server to say what it is,
	// and whether it is the setting.
	Link() *Link
	// Close stops what was started for this cell. Its error says what did not
	// end as it should, a crashed node for one.
	Close() error
}

// A LocalCluster knows its processes on this machine. What they use is not used by
// others.
type LocalCluster interface {
	Cluster
	Pids() []int
}

// A Starter starts a cluster for one cell. It may return before the cluster
// serves.
type Starter func(ctx context.Context, s Setting) (Cluster, error)

// Config is a run of the published table. Zero values take the defaults.
type Config struct {
	Workloads  []load.Workload // default: 256/q8
	Settings   []Setting       // default: MeasuredSettings
	NumPrompts int             // requests a cell, default 200
	Seed       uint32          // of arrivals and prompts; published: 0
	Repeat     int             // runs of each cell, default 1
	// RetriesDisturbed is how many times a cell that was disturbed is measured again.
	// The least disturbed attempt is reported. Default 0.
	RetriesDisturbed int
	Out              string   // folder for the results; it is created
	Start            Starter  // nil: nothing is measured
	Virtual          *Virtual // nil: nothing is computed
	// ParseLink reads what a node says of its link. Default: it is a name.
	ParseLink func(string) serverinfo.Link

	RequestTimeout time.Duration // default 120 s
	ReadyTimeout   time.Duration // default 60 s: start to serving

	Clock   clock.Clock // default clock.Precise()
	Command []string    // the command line, for the record
	System  any         // what serves, for the record: the profile, for one

	Stdout   io.Writer // reports and the final table, default none
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal
}

func (c Config) withDefaults() Config {
	if len(c.Workloads) == 0 {
		c.Workloads, _ = ParseRows("256/q8")
	}
	if len(c.Settings) == 0 {
		c.Settings = MeasuredSettings()
	}
	config.Default(&c.NumPrompts, load.PublishedPrompts)
	config.Default(&c.Repeat, 1)
	config.Default(&c.RequestTimeout, 120*time.Second)
	config.Default(&c.ReadyTimeout, 60*time.Second)
	if c.ParseLink == nil {
		c.ParseLink = func(text string) serverinfo.Link { return serverinfo.Link{Name: text, Native: text == "native"} }
	}
	if c.Clock == nil {
		c.Clock = clock.Precise()
	}
	config.Default(&c.Stdout, io.Discard)
	config.Default(&c.Progress, io.Discard)
	return c
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	var bad config.Faults
	for _, n := range []struct {
		field string
		v     int
	}{{"NumPrompts", c.NumPrompts}, {"Repeat", c.Repeat}, {"RetriesDisturbed", c.RetriesDisturbed}} {
		if n.v != 0 {
			config.Between(&bad, n.field, n.v, 1, 1<<20)
		}
	}
	for _, d := range []struct {
		field string
		v     time.Duration
	}{{"RequestTimeout", c.RequestTimeout}, {"ReadyTimeout", c.ReadyTimeout}} {
		bad.Refuse(d.v < 0, d.field, d.v, "use a positive duration such as 2m")
	}
	bad.Check("Out", document.CheckNew(c.Out))
	switch {
	case c.Start == nil && c.Virtual == nil:
		bad.Add("Start", nil, "there is nothing to do: say what is measured, what is computed, or both")
	case c.Virtual != nil && (c.Virtual.Profile == nil || c.Virtual.Link == nil):
		bad.Add("Virtual", nil, "virtual time needs a profile and a NIC")
	}
	for _, w := range c.Workloads {
		bad.Refuse(w.QPS <= 0 || w.InputLen <= 0, "Workloads", w.Name, "its input length is %d and its rate %v: use more than 0", w.InputLen, w.QPS)
	}
	return bad.Err("bench.Config")
}

// ErrFaults is what Run's error unwraps to when all cells were gone through but
// some have faults: failed requests, wrong KV, a cluster that did not start.
var ErrFaults = errors.New("cells with faults")

// Run goes through the cells, prints each one's report and in the end the
// comparison. Records are kept as requests end, the rest of the output folder is
// rewritten after each cell. When ctx is done it keeps and prints what there is and
// returns ctx's error. Results are returned with any error that came after the first
// cell began: ErrFaults, a MismatchError, and a document.OutputError for a folder that
// could not be written.
func Run(ctx context.Context, cfg Config) (*Results, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	x := &run{cfg: cfg, results: &Results{Machine: observe.Describe(), Config: cfg.record()}, bar: newProgress(cfg)}
	x.runner.Clock = cfg.Clock
	return x.run(ctx)
}

func (x *run) run(ctx context.Context) (*Results, error) {
	cfg := x.cfg
	x.out = document.OpenFolder(cfg.Out, x.bar.Say)
	err := x.cells(ctx)
	r := x.results
	if len(r.Cells) > 0 {
		err = errors.Join(err, x.out.End(r.document(), cfg.Stdout))
	} else {
		err = errors.Join(err, x.out.Close())
	}
	if err = errors.Join(ctx.Err(), err); err != nil {
		return r, err
	}
	return r, r.faults()
}

// faults is ErrFaults with all of them.
func (r *Results) faults() error {
	var faults []error
	for i := range r.Cells {
		for _, f := range r.Cells[i].Faults {
			faults = append(faults, fmt.Errorf("%s: %s", r.Cells[i].name(), f))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%w", ErrFaults, errors.Join(faults...))
}

// A run is one that goes on.
type run struct {
	cfg     Config
	results *Results
	out     *document.Folder
	bar     *cellProgress
	runner  serve.Runner
}

// cells measures and computes the cells. An error that is not ctx's ends the run.
func (x *run) cells(ctx context.Context) error {
	if x.cfg.Start != nil {
		if err := x.measure(ctx); err != nil {
			return err
		}
	}
	if x.cfg.Virtual == nil || ctx.Err() != nil {
		return nil
	}
	cells, err := x.simulate(ctx)
	if ctx.Err() != nil {
		return nil
	}
	x.results.Cells = append(x.results.Cells, cells...)
	x.out.Save(x.results.document().Files()...)
	return err
}

// measure runs every cell against a cluster, prints each one's report and keeps it.
func (x *run) measure(ctx context.Context) error {
	cfg := x.cfg
	defer x.bar.Stop()
	for repeat := range cfg.Repeat {
		for _, w := range cfg.Workloads {
			for _, s := range cfg.Settings {
				if ctx.Err() != nil {
					return nil // Run says so, after it has printed what there is
				}
				c, err := x.cell(ctx, w, s, repeat)
				if err != nil {
					return err
				}
				x.results.Cells = append(x.results.Cells, *c)
				x.out.Save(x.results.document().Files()...)
				x.bar.Pause(func() { err = c.print(cfg.Stdout) })
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c Config) record() RunConfig {
	return RunConfig{
		Workloads:    workloadNames(c.Workloads),
		Settings:     c.Settings,
		NumPrompts:   c.NumPrompts,
		OutputTokens: load.PublishedTokens,
		Seed:         c.Seed,
		Repeat:       c.Repeat,
		Retries:      c.RetriesDisturbed,
		Arrivals:     fmt.Sprintf("numpy MT19937 exponential gaps, first request at 0, client drift %v a gap", load.ClientDrift),
		TimeoutS:     c.RequestTimeout.Seconds(),
		Started:      time.Now(),
		Command:      c.Command,
		System:       c.System,
	}
}
