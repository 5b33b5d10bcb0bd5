package nics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document/documenttest"
	"kvferry/bench/observe"
	"kvferry/bench/rail"
	lab "kvferry/lab/nics"
)

// measuredWAN is a result of three rounds of all cases, in which the rails do 99 % of the ideal
// and recover in 20 ms.
func measuredWAN() *WANResult {
	r := &WANResult{outcome: measuredOn(600), Cases: wanNames()}
	for round := 1; round <= 3; round++ {
		n := Notice{IdlePct: 50 + float64(round), Disturbance: observe.Disturbance{CPU: &observe.CPUUse{}}}
		for i := range wanCases {
			c := &wanCases[i]
			if c.schedule == nil {
				for by, share := range map[string]float64{kvferry: 0.99, "MPTCP": 0.97} {
					rate := Rate{Ideal: c.ideal(), GBps: c.ideal() / 1e9 * (share + 0.001*float64(round-2)), CPUPerGB: 1}
					r.Points = append(r.Points, WANPoint{Case: c.name, By: by, Round: round, Rate: rate, Percent: rate.percent(), Notice: n})
				}
				continue
			}
			f := &rail.FailoverResult{}
			for _, h := range c.schedule {
				d := time.Duration(10*round) * time.Millisecond
				f.Recoveries = append(f.Recoveries, rail.Recovery{Annotation: rail.Annotation{At: h.at, Action: h.action, Rail: h.nic}, Detect: &d, Recover: &d})
			}
			r.Failovers = append(r.Failovers, WANFailover{Case: c.name, Round: round, Notice: n, FailoverResult: f})
		}
	}
	r.settle()
	return r
}

func (r *WANResult) verdicts(of string) (what []string) {
	for i := range r.Rows {
		if r.Rows[i].Verdict == of {
			what = append(what, r.Rows[i].Case)
		}
	}
	return slices.Compact(what)
}

// TestWANLimits: a good result is within all limits; a rate that is too low, or more than two points
// below a peer, and a recovery that is too slow or never came, are found.
func TestWANLimits(t *testing.T) {
	good := measuredWAN()
	if err := judged(good.Rows); err != nil || len(good.Rows) != 12+7 || len(good.verdicts(isOK)) != 14 {
		t.Fatalf("%v, %+v", err, good.Rows)
	}
	row := good.Rows[1]
	if row.Case != "rtt10" || math.Abs(row.Value-99) > 1e-6 || row.Kept != 3 || row.Taken != 3 || math.Abs(row.Peers["MPTCP"]-97) > 1e-6 || row.Idle != 52 {
		t.Errorf("%+v", row)
	}
	for name, change := range map[string]func(r *WANResult){
		"rtt10": func(r *WANResult) { r.rate("rtt10", kvferry, 96.9) },
		"near":  func(r *WANResult) { r.rate("near", "MPTCP", 101.1) }, // which has no limit but its peers
		"rtt40": func(r *WANResult) { r.rate("rtt40", kvferry, 96); r.rate("rtt40", "UCX", 98.1) },
		"flaps": func(r *WANResult) {
			for i := range r.Failovers {
				if f := &r.Failovers[i]; f.Case == "flaps" {
					f.Recoveries[len(f.Recoveries)-1].Recover = nil
				}
			}
		},
		"silent": func(r *WANResult) {
			late := 51 * time.Millisecond
			for i := range r.Failovers {
				if f := &r.Failovers[i]; f.Case == "silent" {
					f.Recoveries[2].Detect = &late
				}
			}
		},
	} {
		r := measuredWAN()
		change(r)
		r.settle()
		if got := r.verdicts(isMissed); len(got) != 1 || got[0] != name || !errors.Is(judged(r.Rows), ErrMissed) {
			t.Errorf("missed %q, want %q; %v", got, name, judged(r.Rows))
		}
	}
	empty := &WANResult{Cases: []string{"rtt10"}}
	if empty.settle(); len(empty.verdicts(isUnmeasured)) != 1 || !errors.Is(judged(empty.Rows), ErrMissed) {
		t.Errorf("%+v", empty.Rows)
	}
}

// rate is what a case came to in all rounds; one that was not there is added.
func (r *WANResult) rate(name, by string, percent float64) {
	found := false
	for i := range r.Points {
		if p := &r.Points[i]; p.Case == name && p.By == by {
			p.Percent, found = percent, true
		}
	}
	if !found {
		r.Points = append(r.Points, WANPoint{Case: name, By: by, Round: 1, Percent: percent})
	}
}

// TestWANDisturbed: rounds in which the machine could not carry the links are left out; where few
// remain the figure is of the machine, and no limit is missed.
func TestWANDisturbed(t *testing.T) {
	why := func(n Notice) string { return n.why(false) }
	if why(Notice{IdlePct: 50}) != "" || !strings.Contains(why(Notice{IdlePct: 1}), "1.0 % of the CPUs were idle") ||
		why(Notice{IdlePct: 50, Overrun: 3, Packets: 400_000}) != "" || !strings.Contains(why(Notice{IdlePct: 50, Overrun: 3, Packets: 200_000}), "lost 3 packets of 200000") ||
		!strings.Contains(why(Notice{IdlePct: 50, Disturbance: observe.Disturbance{CPU: &observe.CPUUse{StealPct: 5}}}), "hypervisor took 5.0 %") {
		t.Error("what is disturbed")
	}
	if (&Notice{}).why(true) != "" {
		t.Error("a program that spins disturbs nothing")
	}
	r := measuredWAN()
	r.rate("rtt10", kvferry, 50)
	disturb := func(rounds ...int) {
		for i := range r.Points {
			if p := &r.Points[i]; p.Case == "rtt10" && p.By == kvferry && slices.Contains(rounds, p.Round) {
				p.Notice.Why = "the links lost 3 packets more than they should"
			}
		}
		r.settle()
	}
	disturb(1)
	if row := r.Rows[1]; row.Verdict != isMissed || row.Kept != 2 || row.Taken != 3 {
		t.Errorf("%+v", row)
	}
	disturb(1, 2)
	if row := r.Rows[1]; row.Verdict != isDisturbed || row.Kept != 1 {
		t.Errorf("%+v", row)
	}
	if err := judged(r.Rows); errors.Is(err, ErrMissed) || !errors.Is(err, ErrDisturbed) {
		t.Error(err)
	}
	// The round was measured once more, and that was good.
	again := r.Points[slices.IndexFunc(r.Points, func(p WANPoint) bool { return p.Case == "rtt10" && p.By == kvferry && p.Round == 2 })]
	again.Notice.Why, again.Percent = "", 99
	r.Points = append(r.Points, again)
	if r.settle(); r.Rows[1].Kept != 2 || r.Rows[1].Taken != 3 {
		t.Errorf("%+v", r.Rows[1])
	}
}

// TestWANCases: each has conditions for all its links, that are possible; each step of a
// schedule has the time that its limit gives it, and the half second over which a rate must hold.
func TestWANCases(t *testing.T) {
	for i := range wanCases {
		c := &wanCases[i]
		if len(c.conditions) != len(c.links) || len(c.specs("")) != len(c.links) || (c.schedule == nil) != (len(c.limits) == 0) {
			t.Errorf("%+v", c)
		}
		for _, l := range c.conditions {
			if err := l.Validate(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		for k, h := range c.schedule {
			next := c.end
			if k+1 < len(c.schedule) {
				next = c.schedule[k+1].at
			}
			if next-h.at < 600*ms {
				t.Errorf("%s, %s has %v", c.name, h.what, next-h.at)
			}
		}
		for _, limit := range c.limits {
			next := c.end
			if limit.step+1 < len(c.schedule) {
				next = c.schedule[limit.step+1].at
			}
			if next-c.schedule[limit.step].at < time.Duration(limit.most)*ms+500*ms {
				t.Errorf("%s, %s has %v", c.name, limit.what, next-c.schedule[limit.step].at)
			}
		}
	}
	if c := wanCases[11]; c.duration(time.Second) != 6*time.Second || c.duration(7*time.Second) != 8*time.Second || math.Abs(c.ideal()/Ideal(halves)-0.875) > 1e-9 {
		t.Error("black holes")
	}
	if got := wanCases[0].specs("congestion=bbr"); got[3] != "tcp/eth3?congestion=bbr" {
		t.Error(got)
	}
	for text, want := range map[string]int{"": 0, "rtt10, far": 2} {
		if names, err := ParseWANCases(text); err != nil || len(names) != want {
			t.Errorf("%q: %v, %v", text, names, err)
		}
	}
	for want, cfg := range map[string]WANConfig{
		`Cases: "rtt7": use some of near`:        {Cases: []string{"rtt7"}},
		"Rounds: -1: use":                        {Config: Config{Rounds: -1}},
		"Duration: 1ms: use 100ms":               {Config: Config{Duration: time.Millisecond}},
		`Beside: "nccl": use some of mptcp, ucx`: {Beside: []string{"nccl"}},
		"Warmup: -1s: use 0s":                    {Warmup: -time.Second},
	} {
		if _, err := WAN(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestInflict: what a schedule did is in the form that kvferry rail failover reads.
func TestInflict(t *testing.T) {
	var b bytes.Buffer
	began := time.Now()
	for i, h := range schedule {
		did := false
		h.do = func(*lab.Lab) error { did = true; return nil }
		if err := h.inflict(nil, &b); err != nil || !did {
			t.Fatalf("step %d: %v, %v", i, did, err)
		}
	}
	all, err := rail.ReadFaults(&b, began)
	if err != nil || len(all) != len(schedule) {
		t.Fatalf("%v, %+v", err, all)
	}
	for i, want := range []rail.Annotation{
		{Action: rail.LinkDown, Rail: cut},
		{Action: rail.LinkUp, Rail: cut},
		{Action: "rate", Rail: slowed, Rate: float64(slowRate) / 8},
		{Action: rail.ClearLink, Rail: slowed},
		{Action: rail.BlackHole, Rail: silent},
		{Action: rail.ClearLink, Rail: silent},
	} {
		if want.At = all[i].At; all[i] != want || all[i].At < 0 {
			t.Errorf("%+v, want %+v", all[i], want)
		}
	}
}

// TestPuts: what ucx_perftest prints, and that a silence at the end counts.
func TestPuts(t *testing.T) {
	for line, want := range map[string]int64{
		"[thread 0]               107  17532.689 19374.251 18825.600      206.46     212.48          52          53":   107,
		"Final:                   400  17177.867 29458.867 19189.945      135.78     208.44          34          52":   0,
		"|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |": 0,
		"[thread 0] x 1 2 3 4 5 6 7": 0,
		"":                           0,
	} {
		if n, found := puts(line); n != want || found != (want > 0) {
			t.Errorf("%q: %d, %v", line, n, found)
		}
	}
	for _, c := range []struct {
		from, to progress
		want     float64 // puts a second
	}{
		{progress{2 * time.Second, 100}, progress{8 * time.Second, 400}, 50},
		{progress{2 * time.Second, 100}, progress{5 * time.Second, 400}, 300 / 6.5},
		{progress{}, progress{}, 0},
		{progress{8 * time.Second, 100}, progress{8 * time.Second, 100}, 0},
	} {
		if got := putsBetween(c.from, c.to, 8500*ms) / ucxBatch; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %g", c, got)
		}
	}
}

// TestMPTCPRate: a connection carries something from host to host over the links of a lab.
func TestMPTCPRate(t *testing.T) {
	if err := lab.Check(); err != nil {
		t.Skipf("SKIPPED: no lab here: %v", err)
	}
	if err := noMPTCP(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	l, err := lab.Start(t.Context(), lab.Config{Rates: []int64{half, half}, MPTCP: true, Congestion: "cubic", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if rate, err := mptcpRate(t.Context(), l, 100*ms, 300*ms); err != nil || rate <= 0 {
		t.Errorf("%g, %v", rate, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mptcpRate(ctx, l, time.Hour, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestWANReportGolden(t *testing.T) {
	r := measuredWAN()
	r.rate("rtt100", kvferry, 42)
	for i := range r.Points {
		if p := &r.Points[i]; p.Case == "jitter" && p.Round > 1 {
			p.Notice.Why = "too busy"
		}
	}
	for i := range r.Failovers {
		if f := &r.Failovers[i]; f.Case == "silent" {
			f.Recoveries[0].Detect = nil
		}
	}
	r.Notes = []string{"round 2, flaps: 1 batches failed"}
	r.settle()
	var b bytes.Buffer
	if err := r.document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "wan.golden", b.Bytes())
	dir := t.TempDir()
	if err := r.document().Write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "wan.json"))
	var got WANResult
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	if err != nil || len(got.Rows) != len(r.Rows) || len(got.Points) != len(r.Points) {
		t.Errorf("%v: %d rows, %d points", err, len(got.Rows), len(got.Points))
	}
}
