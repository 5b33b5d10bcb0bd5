package nics

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/lab/wire"
)

// A wanCase is links that are long or lose packets, and what the rails must do on them: a
// share of the ideal, or to recover in time from what happens.
type wanCase struct {
	name       string // as WANConfig.Cases has it
	what       string
	links      []int64     // bits a second
	conditions []wire.Link // of each link
	least      float64     // percent of ideal; 0: it is measured, and has no limit

	// holed: one link after the other is a black hole, for half of holePeriod each.
	holed bool
	// schedule is what happens during one run of kvferry rail failover, which takes the place of
	// a rate, and end is how long it loads.
	schedule []happening
	end      time.Duration
	limits   []wanLimit
}

// A wanLimit is what a step of a schedule must come to.
type wanLimit struct {
	step int
	what string
	most float64 // ms
	of   func(*Step) float64
}

// half is a link of these cases.
const half = int64(500e6)

var (
	halves = []int64{half, half, half, half}
	mixes  = []int64{2 * half, half, half, half / 2}
)

// holePeriod is how often a link turns into a black hole, for half of it.
const holePeriod = 2 * time.Second

// long are n links of a one-way delay.
func long(n int, delay time.Duration) []wire.Link {
	c := wire.Conditions{Delay: delay}
	return slices.Repeat([]wire.Link{{c, c}}, n)
}

// lossy are four links of 1 ms of which the first so many lose packets, in both directions.
func lossy(n int, share float64) []wire.Link {
	all := long(len(halves), time.Millisecond)
	for i := range n {
		all[i][0].Loss, all[i][1].Loss = share, share
	}
	return all
}

// uneven are four links of 1 ms of which the first has other conditions.
func uneven(first wire.Conditions) []wire.Link {
	all := long(len(halves), time.Millisecond)
	all[0] = wire.Link{first, first}
	return all
}

const ms = time.Millisecond

// wanCases are all of them. Their limits are those that the transport is held to.
var wanCases = []wanCase{
	{name: "near", what: "RTT 2 ms", links: halves, conditions: long(4, ms)},
	{name: "rtt10", what: "RTT 10 ms", links: halves, conditions: long(4, 5*ms), least: 97},
	{name: "rtt20", what: "RTT 20 ms", links: halves, conditions: long(4, 10*ms), least: 97},
	{name: "rtt40", what: "RTT 40 ms", links: halves, conditions: long(4, 20*ms), least: 95},
	{name: "rtt100", what: "RTT 100 ms", links: halves, conditions: long(4, 50*ms), least: 90},
	{name: "loss-one", what: "RTT 2 ms, one loses 0.1 %", links: halves, conditions: lossy(1, 0.001), least: 95},
	{name: "loss-all", what: "RTT 2 ms, all lose 0.1 %", links: halves, conditions: lossy(4, 0.001), least: 90},
	{name: "loss-much", what: "RTT 2 ms, one loses 1 %", links: halves, conditions: lossy(1, 0.01), least: 93},
	{name: "mixed", what: "RTT 2 ms, 1000/500/500/250, the fast one loses 0.1 %", links: mixes, conditions: lossy(1, 0.001), least: 96},
	{name: "jitter", what: "RTT 2 ms, one jitters by 1 ms and reorders 1 %", links: halves, conditions: uneven(wire.Conditions{Delay: ms, Jitter: ms, Reorder: 0.01}), least: 96},
	{name: "far", what: "RTT 2 ms, one of 40 ms", links: halves, conditions: uneven(wire.Conditions{Delay: 20 * ms}), least: 95},
	{name: "holes", what: "RTT 2 ms, black holes in turn, 1 s of every 2 s", links: halves, conditions: long(4, ms), least: 95, holed: true},
	silentCase, flapsCase,
}

// names of cases, for who asks for some.
func wanNames() (names []string) {
	for i := range wanCases {
		names = append(names, wanCases[i].name)
	}
	return names
}

// ParseWANCases reads names of cases with commas between; none are all.
func ParseWANCases(text string) (names []string, err error) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(wanNames(), name) {
			return nil, fmt.Errorf("%q: use some of %s", name, strings.Join(wanNames(), ", "))
		}
		names = append(names, name)
	}
	return names, nil
}

// ideal is what the links carry of payload, in bytes a second. Where one is always a black
// hole for half of the time, that is missing.
func (c *wanCase) ideal() float64 {
	all := Ideal(c.links)
	if c.holed {
		all *= 1 - 0.5/float64(len(c.links))
	}
	return all
}
