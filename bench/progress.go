package bench

import (
	"fmt"
	"sync/atomic"
	"time"

	"kvferry/bench/bar"
)

// progress shows how far a run is: a bar with the time left on a terminal, else
// one line a cell. The bar counts milliseconds of schedule, not requests,
// because requests come in bursts and rows differ in rate.
type progress struct {
	*bar.Bar

	cells    int // of the run
	requests int // of a cell
	finished int
	passed   time.Duration // schedule of the finished cells
	done     atomic.Int64  // requests of the running cell that are over
}

// The bar is drawn twice a second: the cluster under test runs on the same
// cores.
const barPeriod = 500 * time.Millisecond

func newProgress(cfg Config) *progress {
	p := &progress{Bar: bar.New(cfg.Progress, cfg.Terminal)}
	if cfg.Start == nil {
		return p
	}
	var total time.Duration
	for _, w := range cfg.Workloads {
		total += w.End(cfg.NumPrompts, cfg.Seed) * time.Duration(len(cfg.Settings)*cfg.Repeat)
	}
	p.cells, p.requests = len(cfg.Workloads)*len(cfg.Settings)*cfg.Repeat, cfg.NumPrompts
	p.Show(bar.Look{Max: total.Milliseconds(), ASCII: true})
	return p
}

// begin starts a cell whose schedule lasts length.
func (p *progress) begin(name string, length time.Duration) {
	p.done.Store(0)
	if !p.Shown() {
		return
	}
	started := time.Now()
	draw := func() {
		p.Describe(fmt.Sprintf("cell %d/%d  %-18s %3d/%d requests", p.finished+1, p.cells, name, p.done.Load(), p.requests))
		p.Set((p.passed + min(time.Since(started), length)).Milliseconds())
	}
	draw()
	p.Every(barPeriod, draw)
}

// requestDone counts a request of the running cell. It may be called from
// several goroutines.
func (p *progress) requestDone() { p.done.Add(1) }

// end finishes an attempt of a cell and wipes the bar, so that a report can be
// printed. again says that another attempt follows.
func (p *progress) end(c *Cell, length time.Duration, again bool) {
	n := p.finished + 1
	p.passed += length
	if !again {
		p.finished++
	}
	if p.Shown() {
		p.Wipe()
		if again {
			p.Lengthen(length.Milliseconds())
		}
		return
	}
	line := fmt.Sprintf("cell %d/%d %s: ", n, p.cells, c.name())
	switch m := c.Metrics; {
	case m == nil:
		line += "did not run"
	default:
		line += fmt.Sprintf("%d ok, %d failed in %.2f s, mean TTFT %.1f ms, mean TPOT %.1f ms",
			m.Successful, m.Failed, m.DurationS, m.MeanTTFTMS, m.MeanTPOTMS)
	}
	if c.Interrupted {
		line += ", interrupted"
	}
	if c.disturbed() {
		line += ", disturbed"
		if again {
			line += ": measured again"
		}
	}
	p.Say(line)
}
