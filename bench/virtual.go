package bench

import (
	"context"
	"fmt"
	"slices"

	"kvferry/bench/simulation"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/sim"
)

// Virtual says which cells to compute in virtual time (package sim), besides
// those that are measured. The clients' requests and arrivals are the same, the
// results are of the same kind, in the same files, and say "virtual".
type Virtual struct {
	Workloads []load.Workload
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
		for _, s := range cfg.Virtual.Settings {
			c := newCell(cfg, w, s, 0)
			if !publishedGPU(cfg.Virtual.Profile.Fingerprint()) {
				c.Published = nil
				c.note("profile %s: nothing published to compare with", cfg.Virtual.Profile.Name)
			}
			if err := c.simulate(ctx, cfg.Virtual, s, w.Load(cfg.NumPrompts, cfg.Seed, "0", cfg.Virtual.Profile.Vocab)); err != nil {
				return cells, fmt.Errorf("%s in virtual time: %w", c.name(), err)
			}
			cells = append(cells, *c)
		}
	}
	return cells, nil
}

// simulate fills in the cell.
func (c *Cell) simulate(ctx context.Context, v *Virtual, s Setting, asked load.Load) error {
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
	last := asked.End
	cfg.OnOutcome = func(o *sim.Outcome) {
		last = max(last, o.Last)
		c.Records = append(c.Records, Record{Workload: c.Workload, Setting: c.Setting, Clock: ClockVirtual, Record: *simulation.Record(o)})
	}
	if _, err := sim.Run(ctx, cfg, asked); err != nil {
		return err
	}
	slices.SortFunc(c.Records, func(a, b Record) int { return a.Index - b.Index })
	for i := range c.Records {
		if r := &c.Records[i]; r.Error != "" && len(c.Faults) == 0 {
			c.fault("request %d failed, perhaps others: %s", i, r.Error)
		}
	}
	c.measure(last)
	c.compare()
	return nil
}
