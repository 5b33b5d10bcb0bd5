package bench

import (
	"fmt"
	"time"

	"kvferry/internal/progress"
)

// cellProgress shows how far a run is, and logs each cell that ends. Its Task counts milliseconds of schedule, not
// requests, because requests come in bursts and rows differ in rate.
type cellProgress struct {
	*progress.Task

	cells    int // of the run
	requests int // of a cell
	finished int
	passed   time.Duration // schedule of the finished attempts
	done     int           // requests of the running attempt that have ended; the Task's lock guards it
}

func newProgress(cfg Config) *cellProgress {
	p := &cellProgress{Task: progress.New(cfg.Progress, cfg.Terminal)}
	if cfg.Start == nil {
		return p
	}
	var total time.Duration
	for _, w := range cfg.Workloads {
		total += w.End(cfg.NumPrompts, cfg.Seed) * time.Duration(len(cfg.Settings)*cfg.Repeat)
	}
	p.cells, p.requests = len(cfg.Workloads)*len(cfg.Settings)*cfg.Repeat, cfg.NumPrompts
	p.Start(progress.State{What: "starting", Total: total.Milliseconds()})
	return p
}

// begin starts an attempt of a cell whose schedule lasts length.
func (p *cellProgress) begin(name string, length time.Duration) {
	p.Update(func(*progress.State) { p.done = 0 })
	began, passed, n := time.Now(), p.passed, p.finished+1
	p.Poll(func(s *progress.State) {
		s.What = fmt.Sprintf("cell %d/%d %s, %d/%d requests", n, p.cells, name, p.done, p.requests)
		s.Done = (passed + min(time.Since(began), length)).Milliseconds()
	})
}

// requestDone counts a request of the running attempt. It may be called from several goroutines.
func (p *cellProgress) requestDone() { p.Update(func(*progress.State) { p.done++ }) }

// end finishes an attempt of a cell and logs it. The argument again reports whether another attempt follows.
func (p *cellProgress) end(c *Cell, length time.Duration, again bool) {
	n := p.finished + 1
	p.passed += length
	if again {
		p.Update(func(s *progress.State) { s.Total += length.Milliseconds() })
	} else {
		p.finished++
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
	p.Log(line)
}
