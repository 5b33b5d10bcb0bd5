package rail

import (
	"fmt"

	"kvferry/internal/config"
	"kvferry/transport"
)

// A setup is what the initiator's engine is made with. Points of the same setup
// share an engine.
type setup struct {
	first, count int // of Config.Rails
	sel          transport.Selection
	peers        int // initiators: an engine each
}

// setups are those of a run in their order.
func (c *Config) setups() (all []setup) {
	for _, n := range c.Counts {
		for _, sel := range c.Selects {
			for _, peers := range c.Peers {
				all = append(all, setup{count: n, sel: sel, peers: peers})
			}
		}
	}
	return all
}

// plans are the points of a run in their order, and what is said of those that the
// memory is too small for.
func (c *Config) plans() (fit []plan, unfit []string) {
	setups := c.setups()
	for _, s := range setups {
		for _, base := range c.shapes() {
			p := base
			p.setup, p.Number = s, len(fit)+1
			p.Threads *= s.peers // thread i is initiator i mod peers'
			err := p.validate()
			if err == nil {
				fit = append(fit, p)
			} else if s == setups[0] { // it is no other's fault
				unfit = append(unfit, fmt.Sprintf("%v %s x %d, threads %d is left out: %v", p.Op, config.FormatSize(p.Block), p.Batch, p.Threads, err))
			}
		}
	}
	return fit, unfit
}

// shapes are the points of one setup.
func (c *Config) shapes() (all []plan) {
	for _, op := range c.Ops {
		for _, threads := range c.Threads {
			for _, depth := range c.Depths {
				for _, batch := range c.Batches {
					for _, block := range c.Blocks {
						for _, imm := range c.Imms {
							all = append(all, plan{
								Op: op, Block: block, Batch: batch, Threads: threads, Depth: depth,
								Segment: c.Segment, Seed: c.Seed, Check: c.Check, Corrupt: c.Corrupt, imm: imm, alone: c.Latency,
							})
						}
					}
				}
			}
		}
	}
	return all
}
