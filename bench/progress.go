package bench

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows how far a run is: a bar with the time left on a terminal, else
// one line a cell. The bar counts milliseconds of schedule, not requests,
// because requests come in bursts and rows differ in rate.
type progress struct {
	w   io.Writer
	bar *progressbar.ProgressBar // nil where w is no terminal

	cells    int // of the run
	requests int // of a cell
	finished int
	passed   time.Duration // schedule of the finished cells

	stop    chan struct{}
	stopped sync.WaitGroup
	done    atomic.Int64 // requests of the running cell that are over

	mu sync.Mutex // of what is written
}

// The bar is drawn twice a second: the cluster under test runs on the same
// cores.
const barPeriod = 500 * time.Millisecond

func newProgress(cfg Config) *progress {
	p := &progress{w: cfg.Progress}
	if cfg.Start == nil {
		return p
	}
	var total time.Duration
	for _, w := range cfg.Workloads {
		total += w.End(cfg.NumPrompts, cfg.Seed) * time.Duration(len(cfg.Settings)*cfg.Repeat)
	}
	p.cells, p.requests = len(cfg.Workloads)*len(cfg.Settings)*cfg.Repeat, cfg.NumPrompts
	if cfg.Terminal {
		p.bar = progressbar.NewOptions64(max(total.Milliseconds(), 1),
			progressbar.OptionSetWriter(cfg.Progress),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}),
		)
	}
	return p
}

// say prints a line between the cells' own. It may be called from several goroutines.
func (p *progress) say(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.w, line)
}

// begin starts a cell whose schedule lasts length.
func (p *progress) begin(name string, length time.Duration) {
	p.done.Store(0)
	if p.bar == nil {
		return
	}
	p.stop = make(chan struct{})
	started := time.Now()
	draw := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.bar.Describe(fmt.Sprintf("cell %d/%d  %-18s %3d/%d requests", p.finished+1, p.cells, name, p.done.Load(), p.requests))
		at := p.passed + min(time.Since(started), length)
		// At its maximum a bar is finished for good; close does that.
		_ = p.bar.Set64(min(at.Milliseconds(), p.bar.GetMax64()-1))
	}
	draw()
	p.stopped.Go(func() {
		tick := time.NewTicker(barPeriod)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				draw()
			case <-p.stop:
				return
			}
		}
	})
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
	if p.bar != nil {
		close(p.stop)
		p.stopped.Wait()
		_ = p.bar.Clear()
		if again {
			p.bar.ChangeMax64(p.bar.GetMax64() + length.Milliseconds())
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
	fmt.Fprintln(p.w, line)
}
