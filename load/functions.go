package load

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/load/tooldraws"
	"kvferry/load/trace"
)

// Functions are arrivals made of the Azure Functions trace of 2021: which function is called how often says which
// adapter is asked for how often, as AlpaServe, S-LoRA and dLoRA made them.
// File is AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt, a CSV
//
//	app,func,end_timestamp,duration
//	0ae1f7...,3fae5c...,0.0710,0.063
//
// with a call a line and end_timestamp in seconds from the trace's start.
//
// The functions of the whole file are numbered in the order of (app, func), and dealt to the
// adapters in turn, Stride at a time. In each interval between Start and End an adapter's
// rate is Rate times its share of that interval's calls, and its gaps are gamma
// distributed with that rate and CV. The requests are spread evenly over the intervals; an
// interval begins with the last request of the one before it.
//
// Draws are those of dLoRA's trace.py to the bit: each adapter's generator is seeded with 0
// when an interval begins, whatever the run's seed is, so that the adapters' gaps go in
// step; and a batch of them is drawn at once, of 1.2 times the rate times the interval's
// minutes. What comes after a first batch is from the generator as the last one left it.
type Functions struct {
	File string
	// Shares are how often each adapter's functions are called, where there is no File: in one
	// interval. Nil where there is one.
	Shares     []int
	Start, End string        // days.hours.minutes from the trace's start: "0.0.60"
	Interval   time.Duration // whole minutes
	Rate       float64       // requests a second, of all adapters
	CV         float64       // coefficient of variation of an adapter's gaps; 1 is Poisson
	Stride     int           // functions in a row that go to the same adapter
	Sort       bool          // functions are dealt by how often they are called between Start and End, the busiest first
}

// check notes what is wrong with the fields.
func (t Functions) check(bad *config.Faults) {
	start, err := parseDHM(t.Start)
	bad.Check("Functions.Start", err)
	end, late := parseDHM(t.End)
	bad.Check("Functions.End", late)
	if err == nil && late == nil && end <= start {
		bad.Add("Functions.End", t.End, "use a time after the start")
	}
	if t.Interval < time.Minute || t.Interval%time.Minute != 0 || t.Interval > 14*24*time.Hour {
		bad.Add("Functions.Interval", t.Interval, "use whole minutes, up to the trace's 14 days")
	}
	if !(t.Rate > 0) || t.Rate*t.Interval.Minutes() > maxBatch {
		bad.Add("Functions.Rate", t.Rate, "use more than 0 requests a second, and %d at most times the minutes of an interval", maxBatch)
	}
	if !(t.CV >= 1e-3 && t.CV <= 30) {
		bad.Add("Functions.CV", t.CV, "use 0.001 to 30; 1 is Poisson")
	}
	config.Between(bad, "Functions.Stride", t.Stride, 1, 1<<20)
}

// maxBatch bounds the gaps that are drawn at once, 8 bytes each.
const maxBatch = 10_000_000

// parseDHM reads days.hours.minutes.
func parseDHM(text string) (time.Duration, error) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return 0, fmt.Errorf("%q: write days.hours.minutes, like 0.0.60", text)
	}
	var at time.Duration
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute} {
		n, err := strconv.ParseUint(parts[i], 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q: write days.hours.minutes, like 0.0.60", text)
		}
		at += time.Duration(n) * unit
	}
	return at, nil
}

// calls is how often each adapter's functions are called in each interval.
func (t Functions) calls(adapters int) (counts [][]int, err error) {
	if t.File == "" {
		for _, n := range t.Shares {
			counts = append(counts, []int{n})
		}
		return counts, nil
	}
	start, _ := parseDHM(t.Start)
	end, _ := parseDHM(t.End)
	intervals := int((end - start + t.Interval - 1) / t.Interval)
	file, err := trace.Open(t.File)
	if err != nil {
		return nil, err
	}
	rows := trace.NewCSV(t.File, file, "app", "func", "end_timestamp")
	defer rows.Close()
	type function struct{ app, name string }
	called := map[function][]int{} // by interval; 424 functions in the published trace
	for {
		ok, err := rows.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		at, err := rows.Float(2)
		if err != nil {
			return nil, rows.Fault(err)
		}
		if !(at >= 0) || math.IsInf(at, 1) {
			return nil, rows.Fault(fmt.Errorf("end_timestamp: %v: use 0 or more seconds since the trace's start", at))
		}
		// rows.Text is gone with the next row, so the name is copied once a function.
		counts, known := called[function{rows.Text(0), rows.Text(1)}]
		if !known {
			counts = make([]int, intervals)
			called[function{strings.Clone(rows.Text(0)), strings.Clone(rows.Text(1))}] = counts
		}
		if at >= start.Seconds() && at < end.Seconds() {
			counts[min(int((at-start.Seconds())/t.Interval.Seconds()), intervals-1)]++
		}
	}
	names := make([]function, 0, len(called))
	for name := range called {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b function) int {
		return cmp.Or(strings.Compare(a.app, b.app), strings.Compare(a.name, b.name))
	})
	if t.Sort {
		total := func(name function) (sum int) {
			for _, n := range called[name] {
				sum += n
			}
			return sum
		}
		names = slices.DeleteFunc(names, func(name function) bool { return total(name) == 0 })
		slices.SortStableFunc(names, func(a, b function) int { return total(b) - total(a) })
	}
	if len(names) < adapters {
		return nil, fmt.Errorf("%s: it has %d functions for %d adapters: name fewer (--lora-name), or a longer part of the trace (--trace-start-time, --trace-end-time)", t.File, len(names), adapters)
	}
	counts = make([][]int, adapters)
	for i := range counts {
		counts[i] = make([]int, intervals)
	}
	for i, name := range names {
		to := counts[i/t.Stride%adapters]
		for j, n := range called[name] {
			to[j] += n
		}
	}
	return counts, nil
}

// Calls are the times of requests, and whose they are. They are for one goroutine.
type Calls struct {
	trace    Functions
	counts   [][]int // of adapters, by interval
	n        int     // requests in all
	interval int     // the next
	left     int     // requests of this interval
	at       float64 // s
	from     *tooldraws.RandomState
	coming   callHeap
}

// Calls are those of n requests for so many adapters. It reads the file, if there is one.
func (t Functions) Calls(adapters, n int) (*Calls, error) {
	counts, err := t.calls(adapters)
	if err != nil {
		return nil, err
	}
	return &Calls{trace: t, counts: counts, n: n}, nil
}

// A process is the calls of one adapter in one interval.
type process struct {
	adapter      int
	shape, scale float64
	batch        int
	gaps         []float64 // drawn, and not yet taken
	next         float64   // s
}

// Next is when the next request comes, in seconds, and for which adapter, from 0.
func (c *Calls) Next() (at float64, adapter int, err error) {
	for c.left == 0 {
		if err := c.begin(); err != nil {
			return 0, 0, err
		}
	}
	first := c.coming[0]
	c.at, adapter = first.next, first.adapter
	first.advance(c.from)
	heap.Fix(&c.coming, 0)
	c.left--
	return c.at, adapter, nil
}

// begin begins an interval.
func (c *Calls) begin() error {
	intervals := len(c.counts[0])
	if c.interval == intervals {
		return errors.New("more requests than arrivals were asked for")
	}
	i := c.interval
	c.interval++
	c.left = c.n / intervals
	if i < c.n%intervals {
		c.left++
	}
	total := 0
	for _, of := range c.counts {
		total += of[i]
	}
	if total == 0 && c.left > 0 {
		return fmt.Errorf("%s: nothing is called in interval %d of %d: choose another part of the trace (--trace-start-time), or longer intervals (--trace-interval-minutes)", c.trace.File, i+1, intervals)
	}
	c.coming = c.coming[:0]
	for adapter, of := range c.counts {
		if of[i] == 0 {
			continue
		}
		rate := float64(of[i]) / float64(total) * c.trace.Rate
		p := &process{adapter: adapter, shape: 1 / (c.trace.CV * c.trace.CV), scale: c.trace.CV * c.trace.CV / rate, next: c.at}
		p.batch = max(int(rate*c.trace.Interval.Minutes()*1.2), 1)
		c.from = tooldraws.NewRandomState(0)
		p.advance(c.from)
		c.coming = append(c.coming, p)
	}
	heap.Init(&c.coming)
	return nil
}

// advance goes on to the next call.
func (p *process) advance(from *tooldraws.RandomState) {
	if len(p.gaps) == 0 {
		p.gaps = p.gaps[:0]
		for range p.batch {
			p.gaps = append(p.gaps, from.Gamma(p.shape, p.scale))
		}
	}
	p.next += p.gaps[0]
	p.gaps = p.gaps[1:]
}

// callHeap has the earliest call first, of equal ones that of the first adapter.
type callHeap []*process

func (h callHeap) Len() int { return len(h) }
func (h callHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].next, h[j].next), cmp.Compare(h[i].adapter, h[j].adapter)) < 0
}
func (h callHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *callHeap) Push(x any)   { *h = append(*h, x.(*process)) }
func (h *callHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// checkFunctions checks arrivals that are calls of functions.
func (s Spec) checkFunctions(bad *config.Faults) {
	bad.Refuse(s.Requests < 1, "Requests", s.Requests, "use 1 or more: they are spread over the intervals")
	bad.Refuse(len(s.Adapters.Names) == 0, "Adapters.Names", nil, "name the adapters that the functions stand for")
	bad.Refuse(s.Adapters.Choice != "", "Adapters.Choice", s.Adapters.Choice, "leave it out: the trace says which adapter a request is for")
	s.Functions.check(bad)
}

// replay puts the times and the adapters of the functions' calls on requests.
func (s Spec) replay(k Kind, l Load) (Load, error) {
	n, err := s.count(k, l)
	if err != nil {
		return Load{}, err
	}
	calls, err := s.Functions.Calls(len(s.Adapters.Names), n)
	if err != nil {
		return Load{}, err
	}
	came := 0
	l.Source = edit(l.Source, func(r *Request) (bool, error) {
		if len(r.After) > 0 {
			return true, nil
		}
		at, adapter, err := calls.Next()
		if err != nil {
			return false, err
		}
		came++
		r.Adapter = s.Adapters.Names[adapter]
		r.At, err = due(came, at)
		return true, err
	})
	return l, nil
}
