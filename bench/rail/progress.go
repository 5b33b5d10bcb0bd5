package rail

import (
	"fmt"
	"time"

	"kvferry/bench/bar"
	"kvferry/internal/config"
)

// barPeriod is how often a bar is drawn at most: a point may take a millisecond.
const barPeriod = 100 * time.Millisecond

// progress shows how far a run is: a bar of points on a terminal, else a line a
// point.
type progress struct {
	*bar.Bar
	n    int
	done int
}

func newProgress(cfg *Config, points int) *progress {
	p := &progress{Bar: bar.New(cfg.Progress, cfg.Terminal), n: points}
	p.Show(bar.Look{Max: int64(points + 1), Count: true, Throttle: barPeriod})
	return p
}

func (p *progress) begin(pl *plan) {
	if p.Shown() {
		p.Describe(fmt.Sprintf("%v %s x %d, %d rails, %s", pl.Op, config.FormatSize(pl.Block), pl.Batch, pl.setup.count, pl.setup.sel))
		p.Set(int64(p.done))
	}
}

func (p *progress) end(pt *Point) {
	p.done++
	if p.Shown() {
		p.Set(int64(p.done))
		return
	}
	line := fmt.Sprintf("point %d/%d %s %s x %d, threads %d, depth %d, rails %d, %s: %.2f GB/s, p50 %.1f us, p99 %.1f us", p.done, p.n,
		pt.Op, config.FormatSize(pt.Block), pt.Batch, pt.Threads, pt.Depth, pt.Count, pt.Select, pt.GBps, pt.Latency.P50US, pt.Latency.P99US)
	if pt.Errors > 0 {
		line += fmt.Sprintf(", %d batches failed", pt.Errors)
	}
	if pt.Bad != nil {
		line += fmt.Sprintf(", %d blocks checked, %d bad", *pt.Checked, *pt.Bad)
	}
	if pt.Interrupted {
		line += ", interrupted"
	}
	p.Say(line)
}

// newCountdown shows how much of a run's time has passed, in milliseconds, on a terminal.
func newCountdown(cfg *Config, d time.Duration) *bar.Bar {
	b := bar.New(cfg.Progress, cfg.Terminal)
	b.Show(bar.Look{Max: d.Milliseconds(), What: "loading", Throttle: barPeriod})
	return b
}
