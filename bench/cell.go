package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/serve"
	"kvferry/bench/stats"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/proxy/serverinfo"
)

func newCell(cfg Config, w load.Workload, s Setting, repeat int) *Cell {
	c := &Cell{Row: Row{
		Workload: w.Name, Setting: s.Name, Repeat: repeat,
		Handoff: s.Handoff, Faults: []string{}, Notes: []string{},
	}}
	if s.Handoff == "" {
		c.Handoff = noHandoff
	}
	// Fewer requests or another seed are other bursts: 1024/q2 mean TTFT
	// varies by +-30 % between seeds, so an error would mean nothing.
	if cfg.NumPrompts == load.PublishedPrompts && cfg.Seed == 0 {
		c.Published = PublishedFigures(w.Name, s.Name)
	}
	return c
}

func (c *Cell) fault(format string, args ...any) {
	c.Faults = append(c.Faults, fmt.Sprintf(format, args...))
}

func (c *Cell) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// cell measures a cell, again if it was disturbed, and returns the attempt that is to
// be reported. The error is a MismatchError.
func (x *run) cell(ctx context.Context, w load.Workload, s Setting, repeat int) (*Cell, error) {
	var attempts []*Cell
	length := w.End(x.cfg.NumPrompts, x.cfg.Seed)
	for n := 0; ; n++ {
		c := newCell(x.cfg, w, s, repeat)
		c.Attempt = n
		c.Clock = ClockReal // also of a cluster that does not start
		x.bar.begin(c.name(), length)
		err := x.attempt(ctx, c, w, s)
		// What has faults is reported: a fault must not be measured away.
		again := err == nil && c.disturbed() && n < x.cfg.RetriesDisturbed && len(c.Faults) == 0 && ctx.Err() == nil
		x.bar.end(c, length, again)
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, c)
		if !again {
			return reported(attempts), nil
		}
	}
}

// reported is the least disturbed attempt, or one with faults, with a word on the
// others.
func reported(attempts []*Cell) *Cell {
	best := attempts[len(attempts)-1]
	if len(attempts) == 1 {
		return best
	}
	for _, c := range attempts {
		if len(best.Faults) == 0 && c.Disturbance != nil && (best.Disturbance == nil || c.Disturbance.Score() < best.Disturbance.Score()) {
			best = c
		}
	}
	for i, c := range attempts {
		a := Attempt{Attempt: i, Disturbance: c.Disturbance, Interrupted: c.Interrupted}
		if c.Metrics != nil {
			a.MeanTTFTMS, a.MeanTPOTMS = c.Metrics.MeanTTFTMS, c.Metrics.MeanTPOTMS
		}
		best.Attempts = append(best.Attempts, a)
		switch {
		case c == best:
		case c.disturbed():
			best.note("attempt %d is not reported, mean TTFT %.1f ms, mean TPOT %.1f ms: %v", i+1, a.MeanTTFTMS, a.MeanTPOTMS, c.Disturbance)
		default:
			best.note("attempt %d is not reported: it did not come to its end", i+1)
		}
	}
	return best
}

// attempt measures a cell once. What goes wrong becomes a fault of the cell, so that
// one bad setting does not cost the others. The error is a MismatchError.
func (x *run) attempt(ctx context.Context, c *Cell, w load.Workload, s Setting) error {
	cluster, err := x.cfg.Start(ctx, s)
	if err != nil {
		c.unserved(ctx, "cluster did not start: %v", err)
		return nil
	}
	defer func() {
		if err := cluster.Close(); err != nil && ctx.Err() == nil {
			c.fault("cluster did not stop cleanly: %v", err)
		}
	}()
	asker := client.New(client.Config{URL: cluster.URL(), Timeout: x.cfg.RequestTimeout, Clock: x.cfg.Clock})
	defer asker.Close()
	model, err := x.ready(ctx, c, cluster, asker, s)
	if err != nil || model == "" {
		return err
	}
	t := asking{asker, model}
	if err := x.warmUp(ctx, c, w, t); err != nil {
		c.unserved(ctx, "%v", err)
		return nil
	}
	before, err := readCounters(ctx, asker)
	if err != nil {
		c.note("no counters to check against: %v", err)
	}
	runtime.GC() // what garbage there is so far is not the run's
	if x.replay(ctx, c, w, cluster, t) {
		c.judge(s)
		if before != nil {
			c.crossCheck(ctx, asker, before)
		}
	}
	return nil
}

// ready waits until the cluster serves, and has it say what it is. The model is "" if it
// does not serve, and the cell has the reason. The error is a MismatchError.
func (x *run) ready(ctx context.Context, c *Cell, cluster Cluster, asker *client.Client, s Setting) (model string, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, x.cfg.ReadyTimeout, fmt.Errorf("not ready within %v (--ready-timeout)", x.cfg.ReadyTimeout))
	defer cancel()
	if model, err = asker.Ready(limited); err == nil {
		c.Server, err = asker.ServerInfo(limited)
	}
	if err != nil {
		said := ""
		if len(document.Present(x.cfg.Out, document.LogFile)) > 0 {
			said = ", see " + filepath.Join(x.cfg.Out, document.LogFile)
		}
		c.unserved(ctx, "%v%s", err, said)
		return "", nil
	}
	if link := cluster.Link(); link != nil {
		c.Link = *link
		return model, nil
	}
	return model, c.askedOf(cluster.URL(), s, x.cfg.ParseLink)
}

// salt keeps the prompts of a cell's attempts apart, and those of its repeats.
func (c *Cell) salt() string {
	salt := fmt.Sprintf("%d", c.Repeat)
	if c.Attempt > 0 {
		salt += fmt.Sprintf(" attempt %d", c.Attempt)
	}
	return salt
}

// asking is a server that serves, as a target.
type asking struct {
	*client.Client
	model string
}

func (a asking) Open(context.Context) (serve.Facts, error) { return serve.Facts{}, nil }

func (a asking) Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error) {
	return a.Client.Run(ctx, a.model, l, done)
}

func (a asking) Close() error { return nil } // the client is the caller's

// warmUp sends one request that is not counted.
func (x *run) warmUp(ctx context.Context, c *Cell, w load.Workload, t serve.Target) error {
	first, _, err := w.Load(1, x.cfg.Seed, c.salt()+" warm-up", c.Server.Vocabulary()).Next()
	if err != nil {
		return err
	}
	return x.runner.WarmUp(ctx, t, load.List{first}, nil)
}

// replay asks what the workload says, watches the machine meanwhile, and has the cell's
// metrics. It reports whether the cell came to its end.
func (x *run) replay(ctx context.Context, c *Cell, w load.Workload, cluster Cluster, t serve.Target) bool {
	f := serve.Facts{Clock: ClockReal}
	if local, ok := cluster.(LocalCluster); ok {
		f.Pids = local.Pids()
	} else {
		f.Notes = []string{"only this machine was watched, and what the nodes use of it, if they are here, counts as others' programs'"}
	}
	r, err := x.record(ctx, c, t, &f, w.Load(x.cfg.NumPrompts, x.cfg.Seed, c.salt(), c.Server.Vocabulary()))
	c.judgeRequests()
	if err != nil {
		c.Published = nil
		c.unserved(ctx, "%v", err)
		return false
	}
	c.compare()
	c.Disturbance = r.Disturbance
	return true
}

// record runs a load and gives the cell its records, notes and metrics.
func (x *run) record(ctx context.Context, c *Cell, t serve.Target, f *serve.Facts, l load.Load) (*report.Run, error) {
	x.runner.Each = func(r *client.Record) {
		if x.out != nil {
			x.out.Record(c.line(r))
		}
		if f.Clock == ClockReal {
			x.bar.requestDone()
		}
	}
	r, err := x.runner.Run(ctx, t, f, l)
	for i := range r.Records {
		c.Records = append(c.Records, *c.line(&r.Records[i]))
	}
	c.Notes, c.Steady = append(c.Notes, r.Notes...), r.Steady
	c.measure(r.Duration)
	return r, err
}

// line is a request of the cell, as results.jsonl has it.
func (c *Cell) line(r *client.Record) *Record {
	return &Record{Workload: c.Workload, Setting: c.Setting, Repeat: c.Repeat, Attempt: c.Attempt, Clock: c.Clock, Record: *r}
}

// measure computes the metrics of the records. took is the run's length in seconds.
func (c *Cell) measure(took float64) {
	var m client.Meter
	for i := range c.Records {
		m.Add(&c.Records[i].Record)
	}
	metrics := m.Metrics(took)
	c.Metrics = &metrics
}

// compare sets the metrics beside the published ones, if there are any.
func (c *Cell) compare() {
	if c.Published != nil {
		c.RelErr = relErr(c.Metrics.Figures, c.Published.Figures)
	}
}

// askedOf labels the cell by what the server says of itself. The error is a
// MismatchError.
func (c *Cell) askedOf(url string, s Setting, parse func(string) serverinfo.Link) error {
	info := c.Server
	c.Handoff, c.Link = info.HandoffName(), linkOf(info, parse)
	if info == nil {
		c.note("the server at %s does not say what it is: it is compared with %s because it was named so", url, s.Name)
		return nil
	}
	if err := check(info, url, s, parse); err != nil {
		return err
	}
	if info.Engines() {
		c.note("the engines at %s do not say what GPU they have, nor what carries their KV: they are compared with %s because it was named so", url, s.Name)
	}
	c.Notes = append(c.Notes, remarks(info)...)
	if !comparable(info) {
		c.Published = nil
		what := append([]string{info.Describe(parse)}, beside(info)...)
		c.note("%s: nothing published to compare with", strings.Join(what, ", "))
	}
	return nil
}

// unserved records why a cell has no whole result: the run was stopped, or a
// fault.
func (c *Cell) unserved(ctx context.Context, format string, args ...any) {
	if ctx.Err() != nil {
		c.Interrupted = true
		inFlight := 0
		if c.Metrics != nil {
			inFlight = c.Metrics.Interrupted
		}
		c.note("interrupted after %d requests, %d of them in flight", len(c.Records), inFlight)
		return
	}
	c.fault(format, args...)
}

// lateSend is how late the client may be before its own lateness shows in the
// figures: half a decode step.
const lateSend = 5.0 // ms

// judgeRequests looks for requests that went wrong.
func (c *Cell) judgeRequests() {
	m := c.Metrics
	if m.Failed > 0 {
		for i := range c.Records {
			r := &c.Records[i]
			if why := r.Failure(); why != "" && r.Status != client.StatusInterrupted {
				c.fault("%d of %d requests failed, the first is request %d (%s): %s", m.Failed, len(c.Records), r.Index, r.RequestID, why)
				break
			}
		}
	}
	if m.KVBlocksBad > 0 {
		c.fault("%d of %d KV blocks were wrong at the consumer", m.KVBlocksBad, m.KVBlocksChecked)
	}
}

// judge looks for what else makes the metrics untrustworthy.
func (c *Cell) judge(s Setting) {
	m := c.Metrics
	switch {
	case m.Stages == nil:
		c.note("the server gives no breakdown: KV is not accounted for")
	case c.Compute == serverinfo.Measured && m.KVUnknown > 0:
		c.note("of %d requests the engines' connector did not say how much KV it moved, nor for how long", m.KVUnknown)
	case s.Mode == ModeDisagg && m.KVBytes == 0:
		c.fault("no KV moved between nodes: the cluster does not serve the setting %s", s.Name)
	case s.Mode == ModeDisagg && m.KVBlocksChecked == 0 && c.Compute != serverinfo.Measured:
		c.fault("no KV block was checked by the decode node")
	case s.Mode == ModeNonDisagg && m.KVBytes > 0:
		c.fault("%d bytes of KV moved between nodes: the cluster does not serve the setting %s", m.KVBytes, s.Name)
	}
	share, median, known := c.behindLink()
	// Layers move while the prompt is computed, whatever the link has room for then.
	h, err := handoff.Parse(s.Handoff)
	known = known && err == nil && h.Parts != handoff.Layers
	if c.Disturbance != nil && known {
		c.Disturbance.BehindLink(share)
	}
	if known && share > notedBehind {
		c.note("this machine's own network did not keep up with the link: %.0f %% of the transfers took over %.1f times what they take at %.2f GB/s, the median %.2f times, so the figures are those of a slower link",
			100*share, observe.Behind, c.PacedTo/1e9, median)
	}
	if m.Retries > 0 {
		c.note("%d requests were moved to another node", m.Retries)
	}
	if m.P99SendDelayMS > lateSend {
		c.note("the client was late: P99 of sent - intended is %.1f ms (most %.1f), so the machine was too busy to trust small differences", m.P99SendDelayMS, m.MaxSendDelayMS)
	}
}

// notedBehind is the share of transfers that may be behind their modelled link
// (machine.Behind) before the cell says so.
const notedBehind = 0.1

// behindLink is the share of transfers that are behind, and the median of what
// transfers took as a multiple of what the link takes. Under layerwise most of a
// transfer goes on while the prompt is computed, and there is nothing to compare.
func (c *Cell) behindLink() (share, median float64, known bool) {
	var times []float64
	late := 0
	for i := range c.Records {
		if b := c.Records[i].Breakdown; c.PacedTo > 0 && b != nil && b.KVBytes > 0 {
			t := float64(b.WireUS) / 1e6 / (float64(b.KVBytes) / c.PacedTo)
			times = append(times, t)
			if t > observe.Behind {
				late++
			}
		}
	}
	if len(times) == 0 {
		return 0, 0, false
	}
	slices.Sort(times)
	return float64(late) / float64(len(times)), stats.Percentile(times, 50), true
}

func (c *Cell) print(w io.Writer) error {
	label := cmp.Or(c.Label, "never served")
	fmt.Fprintf(w, "%s (hand-off %s; %s)\n", c.name(), c.Handoff, label)
	if c.Metrics != nil {
		if err := WriteReport(w, c.Metrics); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, c.remarks("", "").InWords())
	return err
}
