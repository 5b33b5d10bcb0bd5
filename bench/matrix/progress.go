package matrix

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"kvferry/bench/bar"
)

// progress says how far a run is: a line for each pair that ends, with the time that is left by
// what pairs took so far; on a terminal also a line that is overwritten, with what is waited for.
type progress struct {
	*bar.Bar
	r     *runner
	ended int64 // pairs of this run

	mu    sync.Mutex // of what is below
	what  string
	began time.Time
}

// redraw is how often the line is overwritten: the client measures on this machine.
const redraw = time.Second

func newProgress(cfg Config, r *runner) *progress {
	p := &progress{Bar: bar.New(cfg.Progress, cfg.Terminal), r: r, began: time.Now()}
	if n := p.count(skipped); n > 0 {
		p.Say(fmt.Sprintf("%d of %d pairs are done already (--force runs them again)", n, len(r.pairs)))
	}
	p.Show(bar.Look{Max: int64(len(r.pairs)), Width: 16})
	if p.Shown() {
		p.Every(redraw, p.draw)
	}
	return p
}

func (p *progress) count(state pairState) (n int) {
	for _, s := range p.r.schedule.state {
		if s == state {
			n++
		}
	}
	return n
}

// begin says what is waited for.
func (p *progress) begin(what string) {
	s, c, _, _ := p.r.now()
	p.mu.Lock()
	p.what, p.began = fmt.Sprintf("%s/%s: %s", s.Name, c.Name, what), time.Now()
	p.mu.Unlock()
}

// draw overwrites the line of a terminal.
func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Describe(fmt.Sprintf("%s, %s", p.what, time.Since(p.began).Round(time.Second)))
}

// end tells of a pair that is over.
func (p *progress) end(i int, pair *Pair) {
	p.ended++
	p.Set(p.ended)
	line := fmt.Sprintf("pair %d/%d %s/%s: %s", i+1, len(p.r.pairs), pair.Server, pair.Client, pair.Status)
	if pair.ClientS > 0 {
		line += fmt.Sprintf(", client %s", seconds(pair.ClientS))
	}
	if pair.ReadyS > 0 {
		line += fmt.Sprintf(", server ready after %s", seconds(pair.ReadyS))
	}
	if pair.Error != "" {
		line += ": " + strings.Join(strings.Fields(pair.Error), " ")
	}
	if left := p.left(); left > 0 {
		line += fmt.Sprintf("; about %s left", left)
	}
	p.Say(line)
}

// left is the time that the pairs take which are still to be run, by the mean of those that were
// run, of the same client where there is one.
func (p *progress) left() time.Duration {
	sum, all, n := map[string]float64{}, 0.0, 0
	runs := map[string]int{}
	for _, pair := range p.r.pairs {
		if pair.ClientS > 0 {
			took := pair.ClientS + pair.ReadyS
			sum[pair.Client] += took
			runs[pair.Client]++
			all += took
			n++
		}
	}
	if n == 0 {
		return 0
	}
	var left float64
	for i, state := range p.r.schedule.state {
		if state != pending {
			continue
		}
		if c := p.r.pairs[i].Client; runs[c] > 0 {
			left += sum[c] / float64(runs[c])
		} else {
			left += all / float64(n)
		}
	}
	return time.Duration(left * float64(time.Second)).Round(time.Second)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}
