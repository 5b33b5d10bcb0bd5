package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
)

// Config describes a run of experiments that are repeated in rounds.
type Config struct {
	Rounds   int           // of each experiment, of which figures are medians
	Duration time.Duration // how long a rate is measured
	// Out is a folder for the result in JSON, the report and each round's failover reports. Default
	// none.
	Out      string
	Stdout   io.Writer // the tables, default none
	Progress io.Writer // a line an experiment, default none
	// Exe is kvferry's file. Default this program.
	Exe string
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	c.check(&bad)
	return bad.Err("bench/nics.Config")
}

func (c *Config) check(bad *config.Faults) {
	config.Between(bad, "Rounds", c.Rounds, 1, 99)
	bad.Refuse(c.Duration < 100*time.Millisecond, "Duration", c.Duration, "use 100ms or more")
}

// begin sets the defaults and returns the beginning of a result.
func (c *Config) begin() (o outcome, err error) {
	config.Default(&c.Stdout, io.Discard)
	config.Default(&c.Progress, io.Discard)
	if c.Exe == "" {
		c.Exe, err = os.Executable()
	}
	return outcome{Started: time.Now(), Machine: observe.Describe(), Rounds: c.Rounds}, err
}

// An outcome is the part of a result that all runs share.
type outcome struct {
	Started time.Time       `json:"started"`
	Seconds float64         `json:"seconds"`
	Machine observe.Machine `json:"machine"`
	Rounds  int             `json:"rounds"`
	Notes   []string        `json:"notes,omitempty"`
}

// end prints the report of a run whose rounds ended with err, writes it to Out, and returns judge's error
// if all went well. After an error, ctx's included, it reports what there is; some says whether that is anything.
func (c *Config) end(ctx context.Context, err error, o *outcome, some bool, report func() *document.Document, judge func() error) error {
	err = errors.Join(context.Cause(ctx), err)
	o.Seconds = time.Since(o.Started).Seconds()
	if err != nil && !some {
		return err
	}
	if err = errors.Join(err, report().Keep(c.Stdout, c.Out)); err != nil {
		return err
	}
	return judge()
}

// report returns a document of an outcome without its tables.
func (o *outcome) report(command, file string, data any, tables ...document.Table) *document.Document {
	d := &document.Document{
		Title: command, Made: document.When("Measured", o.Started), Head: []string{fmt.Sprintf("NIC lab on %s, %.0f s", o.Machine.String(), o.Seconds)},
		Data: data, DataName: file, Sections: []document.Section{{Tables: tables}},
	}
	d.Notes.Add(document.Fault, o.Notes...)
	return d
}

// Ports of the targets' control connections on host 1's management link.
const (
	port          = "18515"
	multipathPort = "18516"
)

// segment is the memory at either end: more than a last-level cache's slice, and
// soon filled.
const segment = "256m"

func railFlags(specs []string) (flags []string) {
	for _, s := range specs {
		flags = append(flags, "--rail", s)
	}
	return flags
}

// serve starts kvferry rail bench --server on host 1.
func (c *Config) serve(ctx context.Context, l *lab.Lab, port string, specs []string) (*proc.Proc, error) {
	args := []string{c.Exe, "rail", "bench", "--server", "--listen", lab.ManagementAddress(1) + ":" + port, "--segment", segment}
	return start(ctx, l, 1, proc.Cmd{Args: append(args, railFlags(specs)...), Announce: "serving clients at"})
}

// folder returns the folder of a program's results, below Out or, without that, one that remove removes.
func (c *Config) folder(name string) (dir string, remove func(), err error) {
	if c.Out != "" {
		return filepath.Join(c.Out, name), func() {}, nil
	}
	dir, err = os.MkdirTemp("", "kvferry-nics")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// bench runs kvferry rail bench on host 2 and returns its n points. name is the folder of its results.
func (c *Config) bench(ctx context.Context, l *lab.Lab, port, name string, n int, specs []string, args ...string) ([]rail.Point, error) {
	out, remove, err := c.folder(name)
	if err != nil {
		return nil, err
	}
	defer remove()
	args = append([]string{
		c.Exe, "rail", "bench", lab.ManagementAddress(1) + ":" + port, "--format", "json", "--check", "--limit", "none", "--segment", segment, "--out", out,
	}, append(args, railFlags(specs)...)...)
	text, err := output(ctx, l, 2, args...)
	if err != nil {
		return nil, err
	}
	var got rail.Result
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return nil, fmt.Errorf("kvferry rail bench printed no result: %w", err)
	}
	if len(got.Points) != n {
		return nil, fmt.Errorf("kvferry rail bench printed %d points, not %d", len(got.Points), n)
	}
	return got.Points, nil
}

// failover runs kvferry rail failover on host 2, towards the server on host 1, while the schedule happens to
// the links. name is the folder of its report. failed is how it ended: batches that failed are an
// error there, and its figures are right all the same.
func (c *Config) failover(ctx context.Context, l *lab.Lab, name string, specs []string, schedule []happening, end time.Duration) (got *rail.FailoverResult, failed, err error) {
	out, remove, err := c.folder(name)
	if err != nil {
		return nil, nil, err
	}
	defer remove()
	journal, err := os.CreateTemp("", "kvferry-faults")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(journal.Name())
	defer journal.Close()
	args := append([]string{
		c.Exe, "rail", "failover", lab.ManagementAddress(1) + ":" + port, "--faults", journal.Name(), "--segment", segment, "--duration", end.String(), "--out", out,
	}, railFlags(specs)...)
	p, err := start(ctx, l, 2, proc.Cmd{Args: args, Announce: rail.Loading})
	if err != nil {
		return nil, nil, err
	}
	began := time.Now()
	for _, h := range schedule {
		if !rail.Sleep(ctx, p.Done(), time.Until(began.Add(h.at))) {
			break
		}
		if err := h.inflict(l, journal); err != nil {
			_ = p.Stop()
			return nil, nil, err
		}
	}
	if failed = p.Wait(); failed != nil {
		failed = fmt.Errorf("kvferry rail failover on host 2: %w", p.WithLog(failed))
	}
	text, err := os.ReadFile(filepath.Join(out, "failover.json"))
	if err != nil {
		return nil, nil, errors.Join(failed, err)
	}
	got = &rail.FailoverResult{}
	if err := json.Unmarshal(text, got); err != nil {
		return nil, nil, fmt.Errorf("kvferry rail failover: %w", errors.Join(failed, err))
	}
	return got, failed, nil
}

// startTimeout bounds how long a program may take until it announces itself.
const startTimeout = time.Minute

// start starts kvferry, or a program that is measured beside it, on a host of the lab. The
// program is asked to end when ctx ends, too.
func start(ctx context.Context, l *lab.Lab, host int, c proc.Cmd) (*proc.Proc, error) {
	within, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it is not ready within %v", startTimeout))
	defer cancel()
	p, err := proc.Start(within, on(l, host, c))
	if err != nil {
		return nil, fmt.Errorf("%s on host %d: %w", name(c.Args), host, err)
	}
	context.AfterFunc(ctx, func() { _ = p.Stop() })
	return p, nil
}

// output runs a program on a host to its end, and returns its standard output.
func output(ctx context.Context, l *lab.Lab, host int, args ...string) (string, error) {
	var out strings.Builder
	err := proc.Run(ctx, on(l, host, proc.Cmd{Args: args, Out: &out}))
	if err != nil {
		err = fmt.Errorf("%s on host %d: %w", name(args), host, err)
	}
	return out.String(), err
}

// on adds to a command where it runs and how it is ended.
func on(l *lab.Lab, host int, c proc.Cmd) proc.Cmd {
	c.Namespace, c.Stop, c.Grace = l.Namespace(host), syscall.SIGTERM, 5*time.Second
	return c
}

// name is the program and what it was asked to do, "kvferry rail bench".
func name(args []string) string {
	name := filepath.Base(args[0])
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		name += " " + args[1]
	}
	return name
}
