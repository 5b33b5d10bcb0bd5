package serve

import (
	"fmt"
	"io"
	"sync"
	"time"

	"kvferry/bench/bar"
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
	*bar.Bar
	period time.Duration

	mu     sync.Mutex
	what   string
	total  int // 0: not known
	ended  int
	failed int
	began  time.Time
}

func newProgress(w io.Writer, terminal bool) *progress {
	p := &progress{Bar: bar.New(w, terminal), period: linePeriod}
	if terminal {
		p.period = barPeriod
	}
	return p
}

// begin starts to show a run of that many requests, 0 if that is not known.
func (p *progress) begin(what string, total int) {
	p.mu.Lock()
	p.what, p.total, p.ended, p.failed, p.began = what, total, 0, 0, time.Now()
	p.mu.Unlock()
	length := int64(total)
	if total == 0 {
		length = -1
	}
	p.Show(bar.Look{Max: length, What: what, Count: true})
	p.Every(p.period, p.draw)
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Shown() {
		p.Say(p.line())
		return
	}
	if p.failed > 0 {
		p.Describe(fmt.Sprintf("%s, %d failed", p.what, p.failed))
	}
	p.Set(int64(p.ended))
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
