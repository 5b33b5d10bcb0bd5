package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/node"
	"kvferry/proxy"
)

var soakRequests = flag.Int("soak", 0, "requests of each of TestSoak's cells; a tenth of that where the GPU is modelled. 0 is the short version")

const failedTransfers = "vllm:nixl_num_failed_transfers_total"

// TestSoak sends requests of which clients leave a third, before the first token, in
// mid-stream and when the last token is out or about to be. All others are served
// whole. No transfer fails and nobody warns of anything: a client that leaves is no
// fault. In the end every block is free, and the second half has left no goroutine and
// no memory behind; of the KV pool the slots are in memory that were in use at the
// busiest moment. make soak runs it for long.
func TestSoak(t *testing.T) {
	if *soakRequests == 0 {
		small, requests := profile(t, cost{}), 240
		if testing.Short() {
			requests = 120
		}
		for _, handoff := range handoffs {
			t.Run(handoff, func(t *testing.T) {
				t.Parallel()
				x := soak{requests: requests, early: 50 * time.Millisecond, small: true}
				x.run(t, small, handoff)
			})
		}
		return
	}
	for _, profile := range []string{"zero", "itl10", engine.DefaultProfile} {
		for _, handoff := range handoffs {
			t.Run(profile+"/"+handoff, func(t *testing.T) {
				x := soak{requests: *soakRequests, early: 50 * time.Millisecond}
				if profile != "zero" {
					x.requests, x.early = max(x.requests/10, 2), 500*time.Millisecond
				}
				x.run(t, profile, handoff)
			})
		}
	}
}

// A soak is one cell.
type soak struct {
	*testCluster
	requests int
	early    time.Duration // within that clients leave who do not wait for a token
	slot     int64         // bytes of a KV block
	pool     int64         // bytes of the KV pool
	small    bool          // the geometry that tokens are drawn from

	next, whole, left atomic.Int64
	peak              map[string]int // blocks in use at once, as sampled, by node
}

func (x *soak) run(t *testing.T, profile, handoff string) {
	p, err := engine.LoadProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	const blocks = 2048
	x.slot = int64(p.KVGeometry.SlotBytes())
	x.pool = blocks * x.slot
	// Leases, transfers and requests that run out tell of a machine that has other
	// things to do.
	x.testCluster = start(t, Spec{Prefill: 1, Decode: 1, Profile: profile, Proxy: proxy.Config{Handoff: handoff, LeaseTTL: time.Minute, RequestTimeout: 10 * time.Minute}, Node: node.Config{KVBlocks: blocks, TransferTimeout: time.Minute}})
	x.peak = make(map[string]int)
	x.burst(x.requests / 2)
	before := x.held("half of it")
	x.burst(x.requests)
	after := x.held("all of it")

	m := x.metrics()
	for _, series := range []string{failedTransfers, "kvferry:kv_blocks_bad_total", "kvferry:request_retries_total"} {
		if n := x.sum(m, series); n != 0 {
			t.Errorf("%s is %v", series, n)
		}
	}
	for line := range strings.Lines(x.logs.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Errorf("a daemon says: %s", line)
		}
	}
	if aborted := x.sum(m, `vllm:request_success_total{engine="0",finished_reason="abort",model_name="`+model+`"}`); aborted == 0 {
		t.Errorf("the proxy noticed none of %d clients leave", x.left.Load())
	}
	for name, b := range before {
		// What gRPC and net/http keep for later is some 100 KB; 100 bytes a request would be
		// 1 MB after 10,000.
		if a := after[name]; a.heap > b.heap+1<<20 {
			t.Errorf("%s: the live heap grew from %d to %d bytes", name, b.heap, a.heap)
		}
		const connections = 10 // goroutines of those that were not there at that moment
		x.poll(fmt.Sprintf("%s to have %d goroutines again", name, b.goroutines), func() bool {
			x.http.CloseIdleConnections()
			return x.holding(x.Process(name)).goroutines <= b.goroutines+connections
		})
	}
}

// burst has clients come until n have.
func (x *soak) burst(n int) {
	x.t.Helper()
	sampled := make(chan struct{})
	ctx, end := context.WithCancel(x.t.Context())
	go func() {
		defer close(sampled)
		x.sample(ctx)
	}()
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() {
			for i := x.next.Add(1); i <= int64(n); i = x.next.Add(1) {
				x.client(int(i))
			}
		})
	}
	all.Wait()
	x.next.Store(int64(n))
	x.quiet()
	end()
	<-sampled
}

// client is the i-th, the same in every run.
func (x *soak) client(i int) {
	rng := rand.New(rand.NewPCG(uint64(i), 12))
	length := 1 + rng.IntN(60)
	if rng.IntN(4) == 0 {
		length = 1 + rng.IntN(600)
	}
	q := call{Prompt: prompt(i, length), MaxTokens: 1 + rng.IntN(40), Stream: true}
	ctx, leave := context.WithTimeout(context.Background(), 10*time.Minute)
	defer leave()
	if rng.IntN(3) > 0 {
		r := x.open(ctx, q).rest()
		if r.Status != http.StatusOK || !r.Done || r.Tokens != q.MaxTokens || r.Err != (apiError{}) {
			x.t.Errorf("request %d, for %d tokens: %v", i, q.MaxTokens, r)
			return
		}
		if w := want(x.t, q); x.small && r.Text != w {
			x.t.Errorf("request %d: %q, want %q", i, r.Text, w)
		}
		x.whole.Add(1)
		return
	}
	x.left.Add(1)
	tokens := 1 + rng.IntN(q.MaxTokens)
	switch rng.IntN(4) {
	case 0, 1: // before the first token, or soon after
		defer time.AfterFunc(time.Duration(rng.Int64N(int64(x.early))), leave).Stop()
		x.open(ctx, q).rest()
		return
	case 2: // at the end
		tokens = max(1, q.MaxTokens-rng.IntN(2))
	}
	s := x.open(ctx, q)
	s.next(tokens)
	leave()
	s.rest()
}

// sample notes how many blocks are in use.
func (x *soak) sample(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		m := x.metrics()
		for _, name := range []string{"prefill-0", "decode-0"} {
			used := value(m, ofNode("vllm:kv_cache_usage_perc", name)) * float64(x.pool/x.slot)
			x.peak[name] = max(x.peak[name], int(used+0.5))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sum adds up all series of a name, of which there must be one.
func (x *soak) sum(metrics, name string) (sum float64) {
	x.t.Helper()
	found := false
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				x.t.Fatal(err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		x.t.Fatalf("no series %s", name)
	}
	return sum
}

// A holding is what a daemon holds when it has nothing to do.
type holding struct {
	goroutines, heap int64 // after garbage collection
	resident, slab   int64 // bytes in memory: of the process, of its KV pool
}

// held logs what the daemons hold.
func (x *soak) held(when string) map[string]holding {
	x.t.Helper()
	m := x.metrics()
	x.t.Logf("%s: %d requests were served whole, of %d the client left; %v transfers failed, %v connections of rails were lost", when,
		x.whole.Load(), x.left.Load(), x.sum(m, failedTransfers), strings.Count(x.logs.String(), "path is down"))
	x.http.CloseIdleConnections()
	all := make(map[string]holding)
	for _, name := range []string{"proxy", "prefill-0", "decode-0"} {
		h := x.holding(x.Process(name))
		all[name] = h
		x.t.Logf("%-9s %3d goroutines, live heap %.1f MB, in memory %.1f MB: KV pool %.1f, %d slots (%d blocks were in use at once), the rest %.1f", name,
			h.goroutines, mb(h.heap), mb(h.resident), mb(h.slab), (h.slab+x.slot-1)/x.slot, x.peak[name], mb(h.resident-h.slab))
	}
	return all
}

func mb(n int64) float64 { return float64(n) / 1e6 }

// probe has a daemon of these tests say what it holds when it gets SIGUSR1.
func probe() {
	if os.Getenv(childEnv) == "" {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			runtime.GC()
			runtime.GC() // sync.Pools are emptied by the second
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Fprintf(os.Stderr, "holding pid=%d goroutines=%d heap=%d.\n", os.Getpid(), runtime.NumGoroutine(), m.HeapAlloc)
		}
	}()
}

func (x *soak) holding(p *Process) (h holding) {
	x.t.Helper()
	mark := fmt.Sprintf("holding pid=%d ", p.Pid())
	seen := strings.Count(x.logs.String(), mark)
	if err := syscall.Kill(p.Pid(), syscall.SIGUSR1); err != nil {
		x.t.Fatal(err)
	}
	var line string
	x.poll(p.Name+" to say what it holds", func() bool {
		text := x.logs.String()
		line, _, _ = strings.Cut(text[strings.LastIndex(text, mark)+1:], ".\n")
		return strings.Count(text, mark) > seen
	})
	if _, err := fmt.Sscanf(line, mark[1:]+"goroutines=%d heap=%d", &h.goroutines, &h.heap); err != nil {
		x.t.Fatalf("%q: %v", line, err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.Pid()))
	if err != nil {
		x.t.Skipf("SKIPPED: memory is measured on Linux only: %v", err)
	}
	page := int64(os.Getpagesize())
	slab := (x.pool + page - 1) / page * page
	var size int64
	for line := range strings.Lines(string(maps)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "Size: %d kB", &kb); n == 1 {
			size = kb << 10
		}
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kb); n == 1 {
			h.resident += kb << 10
			if size == slab {
				h.slab += kb << 10
			}
		}
	}
	return h
}
