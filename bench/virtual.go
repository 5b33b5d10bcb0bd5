package bench

import (
	"context"
	"fmt"

	"kvferry/bench/serve"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/load"
)

// Virtual says which cells to compute in virtual time (package sim), besides
// those that are measured. The clients' requests and arrivals are the same, the
// results are of the same kind, in the same files, and say "virtual".
type Virtual struct {
	Workloads []load.Workload
	Settings  []Setting
	Profile   *engine.Profile
	// Link returns the model of the NIC that carries a setting's KV, see [cluster.Spec]. It is not
	// asked for settings that move none.
	Link func(Setting) (string, error)
}

// Values of Link.Clock and Record.Clock.
const (
	ClockReal    = "real"
	ClockVirtual = "virtual"
)

// simulate computes every cell of cfg.Virtual. Repeats would give the same again, so there is
// one of each.
func (x *run) simulate(ctx context.Context) ([]Cell, error) {
	var cells []Cell
	v := x.cfg.Virtual
	for _, w := range v.Workloads {
		for _, s := range v.Settings {
			c := newCell(x.cfg, w, s, 0)
			if !publishedGPU(v.Profile.Fingerprint()) {
				c.Published = nil
				c.note("profile %s: nothing published to compare with", v.Profile.Name)
			}
			if err := x.compute(ctx, c, s, w.Load(x.cfg.NumPrompts, x.cfg.Seed, "0", v.Profile.Vocab)); err != nil {
				return cells, fmt.Errorf("%s in virtual time: %w", c.name(), err)
			}
			cells = append(cells, *c)
		}
	}
	return cells, nil
}

// compute runs a load against the model of a setting.
func (x *run) compute(ctx context.Context, c *Cell, s Setting, l load.Load) error {
	spec, err := x.cfg.Virtual.spec(c, s)
	if err == nil {
		_, err = x.record(ctx, c, serve.Model(spec), &serve.Facts{Clock: ClockVirtual}, l)
	}
	if err != nil {
		return err
	}
	for i := range c.Records {
		if r := &c.Records[i]; r.Error != "" && len(c.Faults) == 0 {
			c.fault("request %d failed, perhaps others: %s", i, r.Error)
		}
	}
	c.compare()
	return nil
}

// spec returns the cluster of a setting, and labels the cell by it.
func (v *Virtual) spec(c *Cell, s Setting) (cluster.Spec, error) {
	spec := cluster.Spec{Costs: v.Profile, Nondisagg: 1}
	spec.Node.Chunked = s.Chunked
	c.Link = Link{
		Clock: ClockVirtual, Compute: "modelled", Transfer: "none",
		Label: fmt.Sprintf("virtual time: compute modelled (%s), no KV transfer", v.Profile.GPU),
	}
	if s.Mode != ModeDisagg {
		return spec, nil
	}
	link, err := v.Link(s)
	if err != nil {
		return spec, err
	}
	spec.Nondisagg, spec.Prefill, spec.Decode, spec.Link, spec.Proxy.Handoff = 0, 1, 1, link, s.Handoff
	one := spec.Record()
	c.Transfer = "modelled"
	c.Label = fmt.Sprintf("virtual time: compute modelled, transfer modelled at %.2f GB/s (%s)", one.NIC().BytesPerSecond/1e9, link)
	return spec, nil
}
