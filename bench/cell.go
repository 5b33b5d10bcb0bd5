package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"kvferry/handoff"
)

func newCell(cfg Config, w Workload, s Setting, repeat int) *Cell {
	c := &Cell{Row: Row{
		Workload: w.Name, Setting: s.Name, Repeat: repeat,
		Handoff: s.Handoff, Faults: []string{}, Notes: []string{},
	}}
	if s.Handoff == "" {
		c.Handoff = noHandoff
	}
	// Fewer requests or another seed are other bursts: 1024/q2 mean TTFT
	// varies by +-30 % between seeds, so an error would mean nothing.
	if cfg.NumPrompts == PublishedPrompts && cfg.Seed == 0 {
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
func (x *run) cell(ctx context.Context, w Workload, s Setting, repeat int, schedule Schedule) (*Cell, error) {
	var attempts []*Cell
	for n := 0; ; n++ {
		c := newCell(x.cfg, w, s, repeat)
		c.Attempt = n
		c.Clock = ClockReal // also of a cluster that does not start
		x.bar.begin(c.name(), schedule.End)
		err := x.attempt(ctx, c, w, s, schedule)
		// What has faults is reported: a fault must not be measured away.
		again := err == nil && c.disturbed() && n < x.cfg.RetriesDisturbed && len(c.Faults) == 0 && ctx.Err() == nil
		x.bar.end(c, schedule.End, again)
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
		if len(best.Faults) == 0 && c.Disturbance != nil && (best.Disturbance == nil || c.Disturbance.score() < best.Disturbance.score()) {
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
func (x *run) attempt(ctx context.Context, c *Cell, w Workload, s Setting, schedule Schedule) error {
	cfg := x.cfg
	cluster, err := cfg.Start(ctx, s)
	if err != nil {
		c.unserved(ctx, "cluster did not start: %v", err)
		return nil
	}
	defer func() {
		if err := cluster.Close(); err != nil && ctx.Err() == nil {
			c.fault("cluster did not stop cleanly: %v", err)
		}
	}()
	client := NewClient(cluster.URL(), cfg.RequestTimeout, cfg.Clock)
	defer client.Close()
	ready, cancel := context.WithTimeoutCause(ctx, cfg.ReadyTimeout, fmt.Errorf("not ready within %v", cfg.ReadyTimeout))
	defer cancel()
	model, err := client.Ready(ready)
	if err != nil {
		c.unserved(ctx, "%v", err)
		return nil
	}
	if c.Server, err = client.ServerInfo(ready); err != nil {
		c.unserved(ctx, "%v", err)
		return nil
	}
	if link := cluster.Link(); link != nil {
		c.Link = *link
	} else if err := c.askedOf(cluster.URL(), s, cfg.ParseLink); err != nil {
		return err
	}
	salt, vocab := fmt.Sprintf("%d", c.Repeat), c.Server.vocabulary()
	if c.Attempt > 0 {
		salt += fmt.Sprintf(" attempt %d", c.Attempt)
	}
	warmUp, _, err := client.Run(ctx, model, w.Requests(1, cfg.Seed, salt+" warm-up", vocab), Schedule{At: []time.Duration{0}}, nil)
	if err != nil || warmUp[0].Error != "" {
		if err == nil {
			err = errors.New(warmUp[0].Error)
		}
		c.unserved(ctx, "warm-up request failed: %v", err)
		return nil
	}
	before, err := client.KVCounters(ctx)
	if err != nil {
		c.note("no counters to check against: %v", err)
	}
	requests := w.Requests(cfg.NumPrompts, cfg.Seed, salt, vocab)
	runtime.GC() // the prompts' garbage is not the run's

	var pids []int
	if local, ok := cluster.(LocalCluster); ok {
		pids = local.Pids()
	}
	end, err := x.watch(pids)
	if err != nil {
		c.unserved(ctx, "%v", err)
		return nil
	}
	records, duration, err := client.Run(ctx, model, requests, schedule, func(r *Record) {
		r.Workload, r.Setting, r.Repeat, r.Attempt, r.Clock = c.Workload, c.Setting, c.Repeat, c.Attempt, ClockReal
		x.out.record(r)
		x.bar.requestDone()
	})
	disturbance, unseen := end()
	c.Records = records
	m := Measure(records, duration)
	c.Metrics = &m
	c.judgeRequests()
	if err != nil {
		c.Published = nil
		c.unserved(ctx, "%v", err)
		return nil
	}
	if c.Published != nil {
		c.RelErr = relErr(m.Figures, c.Published.Figures)
	}
	c.Disturbance = disturbance
	if unseen != nil {
		c.note("who used the CPUs is not known: %v", unseen)
	}
	if pids == nil {
		c.note("only this machine was watched, and what the nodes use of it, if they are here, counts as others' programs'")
	}
	c.judge(s)
	if before != nil {
		c.crossCheck(ctx, client, before)
	}
	return nil
}

// askedOf labels the cell by what the server says of itself. The error is a
// MismatchError.
func (c *Cell) askedOf(url string, s Setting, parse func(string) NodeLink) error {
	info := c.Server
	c.Handoff, c.Link = info.handoff(), info.link(parse)
	if info == nil {
		c.note("the server at %s does not say what it is: it is compared with %s because it was named so", url, s.Name)
		return nil
	}
	if err := info.check(url, s, parse); err != nil {
		return err
	}
	c.Notes = append(c.Notes, info.remarks()...)
	if !info.published() {
		c.Published = nil
		c.note("%s: nothing published to compare with", info.describe(parse))
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
			if why := r.failure(); why != "" && r.Status != StatusInterrupted {
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
	case s.Mode == ModeDisagg && m.KVBytes == 0:
		c.fault("no KV moved between nodes: the cluster does not serve the setting %s", s.Name)
	case s.Mode == ModeDisagg && m.KVBlocksChecked == 0:
		c.fault("no KV block was checked by the decode node")
	case s.Mode == ModeNonDisagg && m.KVBytes > 0:
		c.fault("%d bytes of KV moved between nodes: the cluster does not serve the setting %s", m.KVBytes, s.Name)
	}
	share, median, known := c.behindLink()
	// Layers move while the prompt is computed, whatever the link has room for then.
	h, err := handoff.Parse(s.Handoff)
	known = known && err == nil && h.Parts != handoff.Layers
	if c.Disturbance != nil && known {
		c.Disturbance.behindLink(share)
	}
	if known && share > notedBehind {
		c.note("this machine's own network did not keep up with the link: %.0f %% of the transfers took over %.1f times what they take at %.2f GB/s, the median %.2f times, so the figures are those of a slower link",
			100*share, behind, c.PacedTo/1e9, median)
	}
	if m.Retries > 0 {
		c.note("%d requests were moved to another node", m.Retries)
	}
	if m.P99SendDelayMS > lateSend {
		c.note("the client was late: P99 of sent - intended is %.1f ms (most %.1f), so the machine was too busy to trust small differences", m.P99SendDelayMS, m.MaxSendDelayMS)
	}
}

// A transfer is behind its modelled link if it took this many times as long. Up
// to a tenth of them may, before the cell says so: a paced link never delivers
// early, but bytes that are late are late.
const (
	behind      = 1.1
	notedBehind = 0.1
)

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
			if t > behind {
				late++
			}
		}
	}
	if len(times) == 0 {
		return 0, 0, false
	}
	slices.Sort(times)
	return float64(late) / float64(len(times)), percentile(times, 50), true
}

func (c *Cell) print(w io.Writer) error {
	label := c.Label
	if label == "" {
		label = "never served"
	}
	fmt.Fprintf(w, "%s (hand-off %s; %s)\n", c.name(), c.Handoff, label)
	if c.Metrics != nil {
		if err := WriteReport(w, c.Metrics); err != nil {
			return err
		}
	}
	for _, f := range c.Faults {
		fmt.Fprintln(w, "fault:", f)
	}
	if c.disturbed() {
		fmt.Fprintln(w, "disturbed:", c.Disturbance)
	}
	for _, n := range c.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	_, err := fmt.Fprintln(w)
	return err
}
