package bench_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/load"
	"kvferry/placement"
	"kvferry/sim"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// A contention has n requests at once hand their KV from a prefill node each to one decode node.
// The decode node's NIC is shared, or the uplinks of a switch in front of it. A row says what that
// adds to the first token decoded: in virtual time, in real time over modelled NICs, and by the
// rules of other simulators.
//
//	prefill 1 ── NIC ──┐
//	...                ├── switch ── NIC ── decode
//	prefill n ── NIC ──┘
//
// In real time the transfer halves of the nodes (package kvtransfer) move the bytes of these KV
// blocks, and every byte is compared.
type contention struct {
	handoffs  []string  // pull: the decode node reads; push: each prefill node writes
	switches  []float64 // oversubscription of the switches, in virtual time
	transfers []int     // at once
	tokens    int       // of each prompt
	rate      float64   // of every node's NIC, bytes a second
	virtual   bool
	rail      string // that the bytes go over in real time, through switches that hold nothing back; empty: virtual time alone
}

// A contentionRow is one meeting of transfers.
type contentionRow struct {
	handoff       string
	transfers     int
	switches      float64
	virtual, real []time.Duration // that moving the KV adds, from the least; nil if not measured
	disturbance   *observe.Disturbance
}

// simulators are others, and what is known of them: transfers of one that shares last as long as all
// of them together, and of the others as long as one alone. measured is of eight transfers of 470 MB into one
// decode node at 1 GB/s.
var simulators = []struct {
	name, short, rule string
	shares            bool
	measured          string
}{
	{"Dynamo mocker 1.6.1", "Dynamo", "bytes / bandwidth, whatever else moves", false, "; measured 470 ms with 1, 470 ms with 8"},
	{"BLIS, with its fair-share flag", "BLIS fair", "bytes x transfers / bandwidth", true, ""},
	{"BLIS", "BLIS", "bytes / bandwidth, whatever else moves", false, ""},
}

// simulatorNotes say what the rules of other simulators are, and what was measured of them.
func simulatorNotes() (lines []string) {
	for _, s := range simulators {
		lines = append(lines, fmt.Sprintf("%s: by its rule, %s%s", s.name, s.rule, s.measured))
	}
	return append(lines,
		"vllm-sr-sim multiplies TTFT by 1.80 where prefill and decode are apart, whatever the network is and whatever moves.",
		"measured of others: eight transfers of 470 MB into one decode node at 1 GB/s, 21 November 2026, two cores of a virtual machine; of BLIS the rules alone are known here")
}

func defaultProfile(t testing.TB) *engine.Profile {
	t.Helper()
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// bytes returns the size of the KV of a transfer.
func (c *contention) bytes(t testing.TB) float64 {
	return float64(c.tokens * defaultProfile(t).KVGeometry.TokenBytes())
}

// meet measures and computes every row.
func (c *contention) meet(t testing.TB) (rows []*contentionRow) {
	t.Helper()
	var on *nodes
	if c.rail != "" {
		on = c.open(t)
	}
	for _, h := range c.handoffs {
		for _, ratio := range c.switches {
			for _, n := range c.transfers {
				row := &contentionRow{handoff: h, transfers: n, switches: ratio}
				if c.virtual {
					// What requests take where the network takes no time is subtracted, request by request.
					row.virtual = c.decoded(t, h, n, ratio, c.rate)
					for i, without := range c.decoded(t, h, n, 1, math.MaxFloat64/2) {
						row.virtual[i] -= without
					}
					slices.Sort(row.virtual)
				}
				if on != nil && ratio == 1 {
					watch, err := observe.StartWatch(on.clk, []int{}) // all of it is this process
					if err != nil {
						t.Fatal(err)
					}
					row.real = on.move(t, h == handoff.Push.Name, n)
					if row.disturbance, err = watch.End(); err != nil {
						t.Fatal(err)
					}
					slices.Sort(row.real)
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// decoded returns in virtual time when the first token is decoded of each of n requests that come at once,
// over NICs of a rate. It is their first one under pull, and their second under push.
func (c *contention) decoded(t testing.TB, by string, n int, switches, rate float64) []time.Duration {
	t.Helper()
	prof := defaultProfile(t)
	spec := cluster.Spec{
		Costs: prof, Prefill: n, Decode: 1, Link: fmt.Sprintf("rate=%gB/s,latency=0s", rate), Oversubscription: switches,
		MaxModelLen: max(c.tokens+2, prof.MaxModelLen),
	}
	spec.Proxy.Handoff, spec.Proxy.Placement = by, placement.RoundRobin
	spec.Node.KVBlocks = n*(prof.KVGeometry.Blocks(c.tokens)+2) + 100
	s, err := spec.Model()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]time.Duration, n)
	s.OnOutcome = func(o *sim.Outcome) {
		out[o.Index] = o.TTFT()
		if by == handoff.Push.Name {
			out[o.Index] = o.E2EL() // of two tokens, the first comes from the prefill node
		}
		if o.Err != nil {
			t.Error(o.Err)
		}
	}
	l, err := load.Spec{Kind: load.Random, Requests: n, Rate: math.Inf(1), Burstiness: 1, InputLen: c.tokens, OutputLen: 2, Vocab: prof.Vocab}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := sim.Run(t.Context(), s, l); err != nil {
		t.Fatal(err)
	}
	return out
}

// table has a line a row.
func (c *contention) table(t testing.TB, rows []*contentionRow) document.Table {
	size := c.bytes(t)
	table := document.Table{
		Title: fmt.Sprintf("what moving the KV adds to the first decoded token (ms): %d tokens, %.1f MB each, into one decode node at %.4g GB/s", c.tokens, size/1e6, c.rate/1e9),
		Head:  []string{"hand-off", "transfers", "switches", "virtual mean", "last", "real mean", "last", "difference"},
	}
	for _, s := range simulators {
		table.Head = append(table.Head, s.short)
	}
	ms := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	for _, row := range rows {
		line := []string{row.handoff, fmt.Sprint(row.transfers), fmt.Sprintf("%g:1", row.switches)}
		for _, added := range [][]time.Duration{row.virtual, row.real} {
			if added == nil {
				line = append(line, "", "")
			} else {
				line = append(line, ms(mean(added)), ms(float64(added[len(added)-1])/1e6))
			}
		}
		difference := ""
		if row.virtual != nil && row.real != nil {
			difference = fmt.Sprintf("%+.1f %%", 100*(mean(row.real)/mean(row.virtual)-1)) + row.disturbance.Mark()
		}
		line = append(line, difference)
		for _, s := range simulators {
			alone, cell := size/c.rate*1e3, ""
			switch {
			case !s.shares:
				cell = ms(alone)
			case row.switches == 1: // its transfers share a NIC, and it has no switches
				cell = ms(alone * float64(row.transfers))
			}
			line = append(line, cell)
		}
		table.Add(line...)
	}
	return table
}

// mean returns the mean in milliseconds.
func mean(all []time.Duration) float64 {
	sum := time.Duration(0)
	for _, d := range all {
		sum += d
	}
	return stats.Round(float64(sum/time.Duration(len(all)))/1e6, 3)
}

// report returns the table and what is to be known of it.
func (c *contention) report(t testing.TB, rows []*contentionRow) string {
	d := document.Document{Sections: []document.Section{{Tables: []document.Table{c.table(t, rows)}}}}
	for _, row := range rows {
		if row.disturbance.Disturbed() {
			d.Notes.Addf(document.Doubt, "%s, %d transfers, in real time: the machine did other things too: %v", row.handoff, row.transfers, row.disturbance)
		}
	}
	d.Notes.Add(document.Info, simulatorNotes()...)
	var b strings.Builder
	if err := d.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// nodes are the transfer halves of some prefill nodes and of the decode node. The former have one
// slab together: the same prompt was computed by all.
type nodes struct {
	tokens           int
	prefill          []*kvtransfer.Agent
	decode           *kvtransfer.Agent
	computed, landed *kvcache.Slab
	clk              clock.Clock
	grants           uint64 // so far
}

// patience bounds how long a transfer may take, in times of what its link takes alone.
const patience = 10

// open makes the nodes. Their memory is touched: no transfer waits for the kernel.
func (c *contention) open(t testing.TB) *nodes {
	t.Helper()
	x := &nodes{tokens: c.tokens, clk: clock.Precise()}
	g := defaultProfile(t).KVGeometry
	g.HiddenSize = 0
	n, blocks := slices.Max(c.transfers), g.Blocks(c.tokens)
	if left, ok := kvcache.Available(); ok && int64(n+1)*int64(blocks*g.SlotBytes()) > left {
		t.Skipf("SKIPPED: %d transfers of %d tokens take %d MiB of memory, and %d are left", n, c.tokens, int64(n+1)*int64(blocks*g.SlotBytes())>>20, left>>20)
	}
	slab := func(blocks int) *kvcache.Slab {
		size, err := kvcache.SlabBytes(g, blocks)
		if err != nil {
			t.Fatal(err)
		}
		mem, free, err := transport.MapMemory(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = free() })
		s, err := kvcache.NewSlab(g, mem)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	x.computed, x.landed = slab(blocks), slab(n*blocks)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(x.computed.Bytes()) // any bytes, the same in each run; it returns no error
	link, ledger := pacing.Link{BytesPerSecond: c.rate}, filepath.Join(t.TempDir(), "ledger")
	alone := time.Duration(c.bytes(t) / c.rate * 1e9)
	agent := func(name string, slab *kvcache.Slab) *kvtransfer.Agent {
		r, err := rails.Open(c.rail, rails.Options{})
		if err != nil {
			t.Fatal(err)
		}
		a, err := kvtransfer.New(kvtransfer.Config{
			Name: name, Slab: slab, Timeout: 10*time.Second + time.Duration(n*patience)*alone,
			Transport: transport.Config{Rails: []transport.Rail{r}, Link: &link, Ledger: ledger, Clock: x.clk},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() }) // what was moved has ended
		return a
	}
	x.decode = agent("decode-0", x.landed)
	for i := range n {
		x.prefill = append(x.prefill, agent(fmt.Sprintf("prefill-%d", i), x.computed))
	}
	return x
}

// move has n transfers begin at once, compares what they brought and returns how long each took.
func (x *nodes) move(t testing.TB, push bool, n int) (took []time.Duration) {
	t.Helper()
	clear(x.landed.Bytes())
	blocks := x.computed.Blocks()
	all := make([]*kvtransfer.Transfer, n)
	for i := range all {
		granter, mover := x.prefill[i], x.decode
		terms := kvtransfer.Terms{Op: transport.Read, Blocks: refs(0, blocks), Tokens: x.tokens}
		if push {
			granter, mover = mover, granter
			terms.Op, terms.Blocks, terms.OnArrival = transport.Write, refs(i*blocks, blocks), func(kvtransfer.Arrival) {}
		}
		x.grants++
		grant, err := granter.Grant(x.grants, terms)
		if err != nil {
			t.Fatal(err)
		}
		defer grant.Close()
		if all[i], err = mover.Open(grant.Descriptor(), kvtransfer.Options{Tag: fmt.Sprintf("transfer %d", i)}); err != nil {
			t.Fatal(err)
		}
		defer all[i].Close(true)
	}
	over := make(chan kvtransfer.Moved, n)
	began := x.clk.Now()
	for i, transfer := range all {
		op, mine := transport.Read, refs(i*blocks, blocks)
		if push {
			op, mine = transport.Write, refs(0, blocks)
		}
		transfer.Move(kvtransfer.Move{
			Op: op, Part: kvtransfer.Whole, Pairs: kvcache.Pairs(mine, transfer.Descriptor().Blocks, 0), Since: began,
			Done: func(m kvtransfer.Moved) { over <- m },
		})
	}
	var err error
	for range all {
		m := <-over
		took, err = append(took, m.At-began), errors.Join(err, m.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	size := x.tokens * x.computed.Geometry().TokenBytes()
	if x.tokens%x.computed.Geometry().BlockTokens != 0 {
		size = (blocks - 1) * x.computed.Geometry().BlockBytes() // the last block is full in part
	}
	want := x.computed.Bytes()
	for i := range n {
		if brought := x.landed.Bytes()[i*len(want):]; size == 0 || !bytes.Equal(brought[:size], want[:size]) {
			t.Fatalf("what transfer %d brought is not what was computed", i)
		}
	}
	return took
}

// refs returns n blocks of a slab, from first on, that nobody else uses.
func refs(first, n int) []kvcache.Ref {
	out := make([]kvcache.Ref, n)
	for i := range out {
		out[i] = kvcache.Ref{ID: kvcache.BlockID(first + i), Gen: 1}
	}
	return out
}

var pullAndPush = []string{handoff.Pull.Name, handoff.Push.Name}

// BenchmarkContention prints the table of docs/virtual-time.md: eight transfers of 470 MB into one node at
// 1 GB/s, and fewer, in both clocks. It takes 4.2 GB of memory.
func BenchmarkContention(b *testing.B) {
	for range b.N {
		c := contention{handoffs: pullAndPush, switches: []float64{1, 2}, transfers: []int{1, 2, 4, 8}, tokens: 8192, rate: 1e9, virtual: true, rail: rails.CMA}
		fmt.Println(c.report(b, c.meet(b)))
	}
}

// TestContentionVirtual: n transfers into one node take n times as long as one, and through switches that
// are oversubscribed 2:1 twice that. Others' rules stand beside it.
func TestContentionVirtual(t *testing.T) {
	t.Parallel()
	c := contention{handoffs: pullAndPush, switches: []float64{1, 2}, transfers: []int{1, 8}, tokens: 8192, rate: 1e9, virtual: true}
	rows := c.meet(t)
	if len(rows) != 8 {
		t.Fatalf("%d rows", len(rows))
	}
	const alone = 469.76 // ms: 8192 tokens of 57,344 bytes at 1 GB/s
	for i, row := range rows {
		want := []float64{alone, 8 * alone, 2 * alone, 16 * alone}[i%4]
		if got := mean(row.virtual); math.Abs(got/want-1) > 0.05 {
			t.Errorf("%d transfers, %s, %g:1: %.1f ms, want %.1f", row.transfers, row.handoff, row.switches, got, want)
		}
	}
	cells := c.table(t, rows).Rows
	for i, want := range []string{"469.8 469.8 469.8", "469.8 3758.1 469.8", "469.8 - 469.8", "469.8 - 469.8"} {
		if got := strings.Join(cells[i][8:], " "); got != want {
			t.Errorf("others say %q, want %q", got, want)
		}
	}
	if text := c.report(t, rows); !strings.Contains(text, "469.8 MB each") || !strings.Contains(text, "Dynamo mocker 1.6.1") {
		t.Error(text)
	}
}

// TestContentionReal: real bytes come when the modelled NIC of the node that they go into has them, whoever
// moves them, not before, and are right; also in a last block that is not full.
func TestContentionReal(t *testing.T) {
	c := contention{handoffs: pullAndPush, switches: []float64{1}, transfers: []int{1, 4}, tokens: 100, rate: 50e6, rail: "127.0.0.1:0"}
	for _, row := range c.meet(t) {
		link := time.Duration(float64(row.transfers) * c.bytes(t) / c.rate * 1e9)
		if row.virtual != nil || len(row.real) != row.transfers || row.real[0] < link-10*time.Microsecond {
			t.Errorf("%d transfers, %s, take the link %v: %v", row.transfers, row.handoff, link, row.real)
		}
		if row.disturbance == nil {
			t.Errorf("%d transfers: nobody watched the machine", row.transfers)
		}
	}
}

// TestContentionDisturbed: a row beside which the machine did other things is marked, and a line says what.
func TestContentionDisturbed(t *testing.T) {
	t.Parallel()
	c := contention{tokens: 1, rate: 1e9}
	row := contentionRow{handoff: "pull", transfers: 4, switches: 1, virtual: []time.Duration{100e6}, real: []time.Duration{123e6}, disturbance: &observe.Disturbance{}}
	if text := c.report(t, []*contentionRow{&row}); strings.Contains(text, "~") {
		t.Errorf("a quiet machine: %s", text)
	}
	row.disturbance.Why = []string{"timers came 9.0 ms late on average (limit 1)"}
	if text := c.report(t, []*contentionRow{&row}); !strings.Contains(text, "+23.0 %~") || !strings.Contains(text, "~ pull, 4 transfers, in real time: the machine did other things too: timers came") {
		t.Errorf("a busy machine: %s", text)
	}
}
