package transfer

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows how far a run is: a bar of points on a terminal, else a line a
// point.
type progress struct {
	w    io.Writer
	bar  *progressbar.ProgressBar // nil where w is no terminal
	n    int
	done int
}

func newProgress(cfg *Config, points int) *progress {
	p := &progress{w: cfg.Progress, n: points}
	if cfg.Terminal {
		p.bar = progressbar.NewOptions(points+1,
			progressbar.OptionSetWriter(cfg.Progress),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

func (p *progress) begin(pl *plan) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%v %s x %d, %d rails, %s", pl.Op, FormatSize(pl.Block), pl.Batch, pl.setup.count, pl.setup.sel))
		_ = p.bar.Set(p.done)
	}
}

func (p *progress) end(pt *Point) {
	p.done++
	if p.bar != nil {
		_ = p.bar.Set(p.done)
		return
	}
	line := fmt.Sprintf("point %d/%d %s %s x %d, threads %d, depth %d, rails %d, %s: %.2f GB/s, p50 %.1f us, p99 %.1f us", p.done, p.n,
		pt.Op, FormatSize(pt.Block), pt.Batch, pt.Threads, pt.Depth, pt.Count, pt.Select, pt.GBps, pt.Latency.P50US, pt.Latency.P99US)
	if pt.Errors > 0 {
		line += fmt.Sprintf(", %d batches failed", pt.Errors)
	}
	if pt.Bad != nil {
		line += fmt.Sprintf(", %d blocks checked, %d bad", *pt.Checked, *pt.Bad)
	}
	if pt.Interrupted {
		line += ", interrupted"
	}
	fmt.Fprintln(p.w, line)
}

// A countdown shows how much of a run's time has passed, on a terminal.
type countdown struct{ bar *progressbar.ProgressBar }

func newCountdown(cfg *Config, d time.Duration) *countdown {
	c := &countdown{}
	if cfg.Terminal {
		c.bar = progressbar.NewOptions64(d.Milliseconds(),
			progressbar.OptionSetWriter(cfg.Progress),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetDescription("loading"),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return c
}

func (c *countdown) at(d time.Duration) {
	if c.bar != nil {
		_ = c.bar.Set64(d.Milliseconds())
	}
}

func (c *countdown) close() {
	if c.bar != nil {
		_ = c.bar.Clear()
	}
}

// close wipes the bar, so that a report can be printed.
func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
