package nics

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"kvferry/lab/wire"
)

// eachWay runs a test with a relay, and with netem where the kernel has it.
func eachWay(t *testing.T, do func(t *testing.T, by By)) {
	for _, by := range []By{ByRelay, ByNetem} {
		t.Run(string(by), func(t *testing.T) {
			if by == ByNetem {
				needNetem(t)
			}
			do(t, by)
		})
	}
}

// needNetem skips a test that needs netem, unless KVFERRY_NETEM says that it is there.
func needNetem(t *testing.T) {
	t.Helper()
	needLab(t)
	n, err := newNetwork(Config{Rates: []int64{1e9}, By: ByNetem}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	if _, err := n.hasNetem(); err != nil {
		if os.Getenv("KVFERRY_NETEM") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// TestDisciplines: what a port of the wires is given for the conditions of a link, as tc would say it:
//
//	tbf rate 25gbps buffer 1600 (or 102400) limit 1; netem delay 5ms 1ms loss 0.1% reorder 1% gap 1 ...
func TestDisciplines(t *testing.T) {
	c := Config{Rates: []int64{1e9}}.withDefaults()
	bucket := func(q netlink.Qdisc) float64 { // in bytes, as the kernel computes it
		tbf := q.(*netlink.Tbf)
		return float64(tbf.Rate) * float64(tbf.Buffer) * bucketTick
	}
	ticks := func(d time.Duration) uint32 { return uint32(float64(d.Microseconds()) * netlink.TickInUsec()) }
	share := func(v float64) uint32 { return uint32(math.Round(v * math.MaxUint32)) }
	for _, w := range []struct {
		conditions wire.Conditions
		bucket     float64
		want       netlink.Netem
	}{
		{wire.Conditions{}, 102400, netlink.Netem{}},
		{wire.Conditions{Delay: 5 * time.Millisecond}, 102400, netlink.Netem{Latency: ticks(5 * time.Millisecond)}},
		{wire.Conditions{Loss: 0.001}, 1600, netlink.Netem{Loss: share(0.001)}},
		{wire.Conditions{Delay: 5 * time.Millisecond, Jitter: time.Millisecond}, 1600, netlink.Netem{Latency: ticks(5 * time.Millisecond), Jitter: ticks(time.Millisecond)}},
		{wire.Conditions{Delay: time.Millisecond, Reorder: 0.5, Duplicate: 0.25, Corrupt: 0.125}, 1600, netlink.Netem{Latency: ticks(time.Millisecond), Gap: 1, ReorderProb: share(0.5), Duplicate: share(0.25), CorruptProb: share(0.125)}},
	} {
		q := c.disciplines(7, w.conditions)
		if got := bucket(q[0]); math.Abs(got-w.bucket) > 1 {
			t.Errorf("%v: a bucket of %g bytes, want %g", w.conditions, got, w.bucket)
		}
		got := *q[1].(*netlink.Netem)
		if got.LinkIndex != 7 || got.Parent != netlink.MakeHandle(1, 1) || got.Handle != netlink.MakeHandle(10, 0) || got.Limit != netemLimit {
			t.Errorf("%+v", got)
		}
		near := func(a, b uint32) bool { return math.Abs(float64(a)-float64(b)) <= 200 } // the shares are float32
		if !near(got.Latency, w.want.Latency) || !near(got.Jitter, w.want.Jitter) || !near(got.Loss, w.want.Loss) || got.Gap != w.want.Gap || !near(got.ReorderProb, w.want.ReorderProb) ||
			!near(got.Duplicate, w.want.Duplicate) || !near(got.CorruptProb, w.want.CorruptProb) || got.CorruptProb == 0 {
			t.Errorf("%v: %+v", w.conditions, got)
		}
	}
	c.MTU = maxMTU
	if got := bucket(c.disciplines(7, wire.Conditions{Loss: 1})[0]); got < maxMTU+14 {
		t.Errorf("a packet of %d bytes does not fit in %g", maxMTU, got)
	}
}

// TestNetemRefused: a lab that must have netem, where the kernel has none, says so; any other has a relay.
func TestNetemRefused(t *testing.T) {
	conditions := []wire.Link{{{Delay: time.Millisecond}, {}}}
	cfg := Config{Rates: []int64{1e9}, Conditions: conditions}
	l := start(t, cfg)
	_, _, _, by, err := l.net.lines(0)
	cfg.By = ByNetem
	n, refused := newNetwork(cfg.withDefaults())
	n.close()
	switch {
	case err != nil:
		t.Error(err)
	case by == ByRelay && (refused == nil || !strings.Contains(refused.Error(), "By: \"netem\": this kernel has none (CONFIG_NET_SCH_NETEM)")):
		t.Errorf("a kernel without netem: %v", refused)
	case by == ByNetem && refused != nil:
		t.Error(refused)
	}
	if err := (Config{Rates: []int64{1e9}, By: "magic"}).Validate(); err == nil || !strings.Contains(err.Error(), "By: \"magic\": use auto, netem or relay") {
		t.Error(err)
	}
}
