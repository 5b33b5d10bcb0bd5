package serve

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"kvferry/bench/client"
)

// The bar is drawn twice a second, a line is written every ten: the server may run on the same
// cores.
const (
	barPeriod  = 500 * time.Millisecond
	linePeriod = 10 * time.Second
)

// progress shows how far a run is: a bar with the time left on a terminal, else a line now
// and then. Its methods may be called from several goroutines.
type progress struct {
	w   io.Writer
	bar *progressbar.ProgressBar // nil where w is no terminal

	mu     sync.Mutex
	what   string
	total  int // 0: not known
	ended  int
	failed int
	began  time.Time
	stop   chan struct{}
	drawer sync.WaitGroup
}

// begin starts to show a run of that many requests, 0 if that is not known.
func (p *progress) begin(what string, total int, terminal bool) {
	p.what, p.total, p.ended, p.failed, p.began, p.stop = what, total, 0, 0, time.Now(), make(chan struct{})
	period := linePeriod
	p.bar = nil
	if terminal {
		period = barPeriod
		length := int64(total)
		if total == 0 {
			length = -1
		}
		p.bar = progressbar.NewOptions64(length,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionShowCount(),
			progressbar.OptionSetDescription(what),
		)
	}
	p.drawer.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.draw()
			case <-p.stop:
				return
			}
		}
	})
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil {
		fmt.Fprintln(p.w, p.line())
		return
	}
	if p.failed > 0 {
		p.bar.Describe(fmt.Sprintf("%s, %d failed", p.what, p.failed))
	}
	at := int64(p.ended)
	if p.total > 0 {
		at = min(at, int64(p.total)-1) // at its maximum a bar is finished for good; end does that
	}
	_ = p.bar.Set64(max(at, 0))
}

func (p *progress) line() string {
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %d", p.total)
	}
	s := fmt.Sprintf("%s: %d%s requests over", p.what, p.ended, of)
	if p.failed > 0 {
		s += fmt.Sprintf(", %d failed", p.failed)
	}
	return s + fmt.Sprintf(", %.0f s", time.Since(p.began).Seconds())
}

// over counts a request.
func (p *progress) over(r *client.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	if r.Status == client.StatusFailed {
		p.failed++
	}
}

// end wipes the bar.
func (p *progress) end() {
	close(p.stop)
	p.drawer.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// say prints a line, above the bar if there is one.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.w, text)
}
