package observe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/bench/stats"
	"kvferry/engine"
	"kvferry/internal/clock"
)

// A Disturbance is what else the machine did while a cell was measured. Only the
// machine that kvferry runs on is seen. Shares are in percent.
type Disturbance struct {
	// A probe sleeps until a moment every 10 ms, and notes how late it wakes up. After a
	// pause of the machine all that were due in it are late.
	LateMeanMS float64 `json:"late_mean_ms"`
	LateP90MS  float64 `json:"late_p90_ms"`
	LateP99MS  float64 `json:"late_p99_ms"`
	LateMaxMS  float64 `json:"late_max_ms"`
	// LateTimersPct is how many were over 5 ms late, engine.MaxLag: up to that a node
	// dates its steps back, so that its schedule holds.
	LateTimersPct float64 `json:"late_timers_pct"`
	// CPU is nil where the system does not tell.
	CPU *CPUUse `json:"cpu"`
	// BehindLinkPct is how many transfers took over 1.1 times what their modelled link
	// takes; nil where none is modelled, or where most of a transfer goes on while the
	// prompt is computed.
	BehindLinkPct *float64 `json:"behind_link_pct"`
	// Why says what was over its threshold. A row where it is not empty is marked.
	Why []string `json:"why"`
}

// A CPUUse is who had the CPUs that kvferry may use.
type CPUUse struct {
	CPUs      int     `json:"cpus"`
	OwnPct    float64 `json:"own_pct"`    // of the CPUs' time: kvferry and the daemons that it started
	OthersPct float64 `json:"others_pct"` // everything else, the kernel's own work too
	StealPct  float64 `json:"steal_pct"`  // the hypervisor gave to other machines
	// RunDelayPct is how long our threads were ready to run and had no CPU, together, as
	// a share of the cell's time; other threads of ours are among those that had it. Nil
	// where the kernel does not keep it.
	RunDelayPct *float64 `json:"run_delay_pct"`
	// Daemons says that the cluster's daemons are known, and so are none of the others.
	Daemons bool `json:"daemons_known"`
}

// Thresholds. A timer of a quiet machine is 0.1 ms late (package clock). They were
// found with 256/q8 on two CPUs that compilers and tests also used: as real-time
// threads, which those do not delay, and as plain ones.
//
//	late, mean      stolen         used by others   mean TTFT off by   rows
//	0.1 - 0.4 ms    0.0 - 0.3 %    34 - 96 %        0 -   3 %          16 real-time, 1 plain
//	0.5 - 1.2 ms    0.1 - 5.0 %    65 - 97 %        1 -   4 %          7 real-time, 4 plain
//	1.4 -  60 ms    0.1 - 5.9 %    86 - 97 %        5 - 277 %          17 plain
//
// So it is lateness that tells what a row is worth. What others use says less: a
// real-time row is right beside it. But it was over half in every plain row, the best
// of which was 2.5 % off, and a timer does not see all: the kernel lets run who has
// slept before it goes on with who computes, or copies KV.
//
// And where KV is really moved, how it kept up with the link that it stands for. 15 rows
// of rdma, rdma2 and tcp while the hypervisor took 0.2 to 8 %; off is from virtual time:
//
//	transfers behind their link    mean TTFT off by
//	5 - 20 %                       2 - 5 %             8 rows
//	22 - 29 %                      5 - 9 %             7 rows, one with 1.0 % stolen
const (
	maxLateMean = 0.5  // ms
	MaxSteal    = 2.0  // percent
	maxOthers   = 50.0 // percent
	maxBehind   = 20.0 // percent
)

// Behind is how many times what its modelled link takes makes a transfer one that is
// behind. A paced link never delivers early, but bytes that are late are late.
const Behind = 1.1

// probePeriod: 100 wake-ups a second take 0.2 % of a core.
const probePeriod = 10 * time.Millisecond

// A Watch looks at the machine while something is measured.
type Watch struct {
	clk    clock.Clock
	pids   []int // of the cluster's daemons; nil if they are not known
	began  time.Duration
	before Usage
	err    error // of reading the usage

	stop context.CancelFunc
	done chan struct{}
	late []float64 // ms, of each wake-up
}

// StartWatch begins to look. End must be called.
func StartWatch(clk clock.Clock, pids []int) (*Watch, error) {
	timer, err := clk.NewTimer()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &Watch{clk: clk, pids: pids, stop: stop, done: make(chan struct{})}
	w.before, w.err = ReadUsage(pids)
	w.began = clk.Now()
	go func() {
		defer close(w.done)
		defer timer.Close()
		w.probe(ctx, timer)
	}()
	return w, nil
}

// probe wakes up on an absolute schedule: a pause of 100 ms is ten late wake-ups.
func (w *Watch) probe(ctx context.Context, timer clock.Timer) {
	for at := w.began + probePeriod; ; at += probePeriod {
		for w.clk.Now() < at {
			timer.Set(at)
			select {
			case <-timer.C():
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		w.late = append(w.late, float64(w.clk.Now()-at)/1e6)
	}
}

// End stops looking and says what there was, judged but for the rail. The error says
// why the CPUs' use is not known.
func (w *Watch) End() (*Disturbance, error) {
	w.stop()
	<-w.done
	took := w.clk.Now() - w.began
	d := &Disturbance{Why: []string{}}
	d.lateness(w.late)
	after, err := Usage{}, w.err
	if err == nil {
		after, err = ReadUsage(w.pids)
	}
	if err == nil {
		d.CPU = Used(w.before, after, took, w.pids != nil)
	}
	d.Judge()
	return d, err
}

// lateness sums up wake-ups; late is sorted in place.
func (d *Disturbance) lateness(late []float64) {
	if len(late) == 0 {
		return
	}
	slices.Sort(late)
	sum, over := 0.0, 0
	for _, ms := range late {
		sum += ms
		if ms > float64(engine.MaxLag)/1e6 {
			over++
		}
	}
	n := float64(len(late))
	d.LateTimersPct, d.LateMeanMS = stats.Round(100*float64(over)/n, 2), stats.Round(sum/n, 3)
	d.LateP90MS, d.LateP99MS, d.LateMaxMS = stats.Round(stats.Percentile(late, 90), 3), stats.Round(stats.Percentile(late, 99), 3), stats.Round(late[len(late)-1], 3)
}

// Used is the difference of two readings that are took apart.
func Used(before, after Usage, took time.Duration, daemons bool) *CPUUse {
	whole := took * time.Duration(after.cpus)
	percent := func(d, of time.Duration) float64 {
		if of <= 0 {
			return 0
		}
		return stats.Round(min(max(100*float64(d)/float64(of), 0), 100), 2)
	}
	own, steal := after.own-before.own, after.steal-before.steal
	c := &CPUUse{
		CPUs: after.cpus, OwnPct: percent(own, whole), StealPct: percent(steal, whole), Daemons: daemons,
		OthersPct: percent(whole-(after.idle-before.idle)-steal-own, whole),
	}
	if after.waitedKnown && took > 0 {
		delay := stats.Round(100*float64(after.waited-before.waited)/float64(took), 2)
		c.RunDelayPct = &delay
	}
	return c
}

// Judge says in Why what is over its threshold.
func (d *Disturbance) Judge() {
	if d.LateMeanMS > maxLateMean {
		d.Why = append(d.Why, fmt.Sprintf("timers came %.1f ms late on average (limit %g)", d.LateMeanMS, maxLateMean))
	}
	if d.CPU != nil && d.CPU.StealPct > MaxSteal {
		d.Why = append(d.Why, fmt.Sprintf("the hypervisor took %.1f %% of the CPUs (limit %g)", d.CPU.StealPct, MaxSteal))
	}
	if others := d.others(); others > maxOthers {
		d.Why = append(d.Why, fmt.Sprintf("other programs used %.0f %% of the CPUs (limit %g)", others, maxOthers))
	}
}

// BehindLink takes in the share of the transfers that did not keep up with their link.
func (d *Disturbance) BehindLink(share float64) {
	percent := stats.Round(100*share, 2)
	d.BehindLinkPct = &percent
	if percent > maxBehind {
		d.Why = append(d.Why, fmt.Sprintf("%.0f %% of the transfers took over %.1f times what their link takes (limit %g %%)", percent, Behind, maxBehind))
	}
}

// Score is 1 at the first threshold; the least is the least disturbed.
func (d *Disturbance) Score() float64 {
	score := max(d.LateMeanMS/maxLateMean, d.others()/maxOthers)
	if d.CPU != nil {
		score = max(score, d.CPU.StealPct/MaxSteal)
	}
	if d.BehindLinkPct != nil {
		score = max(score, *d.BehindLinkPct/maxBehind)
	}
	return score
}

// others is what other programs used of the CPUs, in percent; 0 where they cannot be
// told from the cluster's daemons.
func (d *Disturbance) others() float64 {
	if d.CPU == nil || !d.CPU.Daemons {
		return 0
	}
	return d.CPU.OthersPct
}

// Disturbed reports whether what was measured is to be marked; not if nobody watched, which is nil.
func (d *Disturbance) Disturbed() bool { return d != nil && len(d.Why) > 0 }

// Mark is "~" if it is, and else "".
func (d *Disturbance) Mark() string {
	if d.Disturbed() {
		return "~"
	}
	return ""
}

// String says why the row is marked.
func (d *Disturbance) String() string { return strings.Join(d.Why, ", ") }
