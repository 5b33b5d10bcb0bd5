package bench

import (
	"context"
	"fmt"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/sim"
)

// Virtual says which cells to compute in virtual time (package sim), besides
// those that are measured. The clients' requests and arrivals are the same, the
// results are of the same kind, in the same files, and say "virtual".
type Virtual struct {
	Workloads []Workload
	Settings  []Setting
	Profile   *engine.Profile
	// NIC is what carries a setting's KV, with its name for the report. Not asked
	// for settings that move none.
	NIC func(Setting) (nic sim.NIC, name string, err error)
}

// Values of Link.Clock and Record.Clock.
const (
	ClockReal    = "real"
	ClockVirtual = "virtual"
)

// simulateCells computes every cell of cfg.Virtual. Repeats would give the same
// again, so there is one of each.
func simulateCells(ctx context.Context, cfg Config) ([]Cell, error) {
	var cells []Cell
	for _, w := range cfg.Virtual.Workloads {
		schedule := PublishedSchedule(cfg.NumPrompts, w.QPS, cfg.Seed)
		requests := w.Requests(cfg.NumPrompts, cfg.Seed, "0", cfg.Virtual.Profile.Vocab)
		for _, s := range cfg.Virtual.Settings {
			c := newCell(cfg, w, s, 0)
			if cfg.Virtual.Profile.Fingerprint() != publishedGPU() {
				c.Published = nil
				c.note("profile %s: nothing published to compare with", cfg.Virtual.Profile.Name)
			}
			if err := c.simulate(ctx, cfg.Virtual, s, requests, schedule); err != nil {
				return cells, fmt.Errorf("%s in virtual time: %w", c.name(), err)
			}
			cells = append(cells, *c)
		}
	}
	return cells, nil
}

// simulate fills in the cell.
func (c *Cell) simulate(ctx context.Context, v *Virtual, s Setting, requests []Request, schedule Schedule) error {
	cfg := sim.Config{Profile: v.Profile, Nondisagg: 1, Chunked: s.Chunked, RPC: sim.DefaultRPC, RecordTokens: true}
	c.Link = Link{
		Clock: ClockVirtual, Compute: "modelled", Transfer: "none",
		Label: fmt.Sprintf("virtual time: compute modelled (%s), no KV transfer", v.Profile.GPU),
	}
	if s.Mode == ModeDisagg {
		nic, name, err := v.NIC(s)
		if err != nil {
			return err
		}
		if cfg.Handoff, err = handoff.Parse(s.Handoff); err != nil {
			return err
		}
		cfg.Nondisagg, cfg.Prefill, cfg.Decode, cfg.NICs = 0, 1, 1, []sim.NIC{nic}
		c.Transfer = "modelled"
		c.Label = fmt.Sprintf("virtual time: compute modelled, transfer modelled at %.2f GB/s (%s)", nic.BytesPerSecond/1e9, name)
	}
	c.Records = make([]Record, len(requests))
	load := make(sim.List, len(requests))
	for i, r := range requests {
		prompt := make([]kvcache.Token, len(r.Prompt))
		for j, t := range r.Prompt {
			prompt[j] = kvcache.Token(t)
		}
		load[i] = sim.Request{At: schedule.At[i], Prompt: prompt, MaxTokens: r.MaxTokens}
	}
	last := schedule.End
	cfg.OnOutcome = func(o *sim.Outcome) {
		last = max(last, o.Last)
		c.Records[o.Index] = virtualRecord(o, requests[o.Index].ID)
	}
	if _, err := sim.Run(ctx, cfg, &load); err != nil {
		return err
	}
	for i := range c.Records {
		r := &c.Records[i]
		r.Workload, r.Setting, r.Clock = c.Workload, c.Setting, ClockVirtual
		if r.Error != "" && len(c.Faults) == 0 {
			c.fault("request %d failed, perhaps others: %s", i, r.Error)
		}
	}
	m := Measure(c.Records, seconds(last))
	c.Metrics = &m
	if c.Published != nil {
		c.RelErr = relErr(m.Figures, c.Published.Figures)
	}
	return nil
}

func virtualRecord(o *sim.Outcome, id string) Record {
	us := func(d time.Duration) int64 { return d.Round(time.Microsecond).Microseconds() }
	r := Record{
		Index: o.Index, RequestID: id, PromptTokens: o.PromptTokens, MaxTokens: o.MaxTokens,
		Intended: seconds(o.Arrived), Sent: seconds(o.Arrived), FirstToken: seconds(o.First), Finish: seconds(o.Last),
		TokenTimes: make([]float64, len(o.TokenTimes)),
		Usage:      &Usage{PromptTokens: o.PromptTokens, CompletionTokens: o.Tokens},
		Breakdown: &Breakdown{
			ProxyUS: us(o.Breakdown.Proxy), QueueUS: us(o.Breakdown.Queue), PrefillUS: us(o.Breakdown.Prefill), PostUS: us(o.Breakdown.Post),
			WireUS: us(o.Breakdown.Wire), LandUS: us(o.Breakdown.Land), FirstDecodeUS: us(o.Breakdown.FirstDecode), KVBytes: o.Breakdown.Bytes,
		},
	}
	for i, t := range o.TokenTimes {
		r.TokenTimes[i] = seconds(t)
	}
	r.end(o.Err)
	return r
}
