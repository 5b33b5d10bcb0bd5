package cluster

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/node"
	"kvferry/placement"
	"kvferry/proxy"
)

var soakTime = flag.Duration("soak-time", 0, "how long TestSoakMixed goes on; 0 is the short version, of one hand-off")

// TestSoakMixed serves requests of several adapters and cache salts, many of which begin alike, under every
// hand-off side by side. Clients leave, requests migrate, and a node of each role is killed again and again,
// so that its requests are placed once more. Tokens are drawn from KV: each of them is the one that follows
// from its request alone, also of a request that is broken off. In the end every block is free, and the second
// half has left no memory, no goroutine and no file behind. make soak runs it for SOAK_TIME.
func TestSoakMixed(t *testing.T) {
	if *soakTime == 0 {
		t.Parallel()
		new(mixed).run(t, "layerwise", 0)
		return
	}
	for _, handoff := range handoffs {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			new(mixed).run(t, handoff, *soakTime)
		})
	}
}

// mixed is one cluster of it.
type mixed struct {
	soak
	next                            atomic.Int64
	well, left, broken, wrong, kept atomic.Int64 // requests, and the tokens that were compared
}

func (x *mixed) run(t *testing.T, handoff string, long time.Duration) {
	const blocks = 1024
	path := profile(t, cost{PrefillToken: 0.02, Decode: 2})
	p, err := engine.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	x.slot = int64(p.KVGeometry.SlotBytes())
	x.pool = blocks * x.slot
	x.testCluster = start(t, Spec{Prefill: 2, Decode: 2, Profile: path, Proxy: proxy.Config{Handoff: handoff, Placement: placement.PrefixAware, LoRAs: LoRAs(engine.Ranks{"sql": 16, "chat": 8}), Migration: placement.MigrationConfig{Policy: placement.Periodic, Interval: 200 * time.Millisecond, Threshold: 1}, RequestTimeout: 10 * time.Minute}, Node: node.Config{KVBlocks: blocks, PrefixCaching: true, TransferTimeout: time.Minute}})
	x.half(long / 2)
	before := x.holdings()
	x.half(long / 2)
	after := x.holdings()
	m := x.metrics()
	t.Logf("%s: %d requests ended well, %d were left, %d broke off, %d were wrong, %d tokens compared; %v retries, %v migrations, %v tokens from prefix caches", handoff,
		x.well.Load(), x.left.Load(), x.broken.Load(), x.wrong.Load(), x.kept.Load(), x.sum(m, "kvferry:request_retries_total"), value(m, "kvferry:migrations_total"), value(m, "vllm:prefix_cache_hits_total"))
	if bad := x.sum(m, "kvferry:kv_blocks_bad_total"); bad > 0 {
		t.Errorf("%v blocks were bad", bad)
	}
	if x.wrong.Load() > 0 || x.well.Load() == 0 || x.sum(m, "kvferry:request_retries_total") == 0 || value(m, "vllm:prefix_cache_hits_total") == 0 {
		t.Error("tokens were wrong, or nothing was served, placed again or cached")
	}
	// A request has three nodes to fail on, and one of two of each role is killed now and then.
	if broken, all := x.broken.Load(), x.next.Load(); broken*50 > all {
		t.Errorf("%d of %d requests broke off", broken, all)
	}
	for name, b := range before {
		a := after[name]
		t.Logf("%-9s %+v, then %+v", name, b, a)
		const files = 20 // connections of clients and nodes that were not there at that moment
		if a.heap > b.heap+2<<20 || a.files > b.files+files {
			t.Errorf("%s grows: %+v, then %+v", name, b, a)
		}
		x.poll(fmt.Sprintf("%s to have %d goroutines again", name, b.goroutines), func() bool {
			x.http.CloseIdleConnections()
			return x.holding(x.Process(name)).goroutines <= b.goroutines+files
		})
	}
}

// half has clients come for so long, and some more, and a node of each role die meanwhile.
func (x *mixed) half(long time.Duration) {
	x.t.Helper()
	const least = 120 // requests
	end, target := time.Now().Add(long), x.next.Load()+least
	over := func() bool { return time.Now().After(end) && x.next.Load() >= target }
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			for !over() {
				x.client(int(x.next.Add(1)))
			}
		})
	}
	all.Go(func() {
		for i := 0; !over(); i++ {
			x.kill([]string{"decode", "prefill"}[i%2], over)
		}
	})
	all.Wait()
	x.quiet()
}

// kill ends a node as kill -9 does once it has something to do, and starts it anew; nothing if the clients are over.
func (x *mixed) kill(role string, over func() bool) {
	name, served := role+"-1", x.next.Load()
	x.poll(name+" to have a request", func() bool { return x.next.Load() > served+20 && x.running(name) > 0 || over() })
	if over() {
		return
	}
	x.Process(name).Kill()
	if err := x.AddNode(x.t.Context(), role, name); err != nil {
		x.t.Error(err)
	}
	x.poll(name+" to join", func() bool { return int(x.metric(fmt.Sprintf(`kvferry:nodes{role=%q}`, role))) == 2 })
}

// client is the i-th, the same in every run.
func (x *mixed) client(i int) {
	rng := rand.New(rand.NewPCG(uint64(i), 30))
	q := call{Prompt: prompt(rng.IntN(6), 20+rng.IntN(400)), MaxTokens: 1 + rng.IntN(60), Stream: true, More: map[string]any{}}
	for j := range q.Prompt[len(q.Prompt)*3/4:] { // the beginning is shared
		q.Prompt[len(q.Prompt)-1-j] = (i*31 + j*7) % vocab
	}
	maps.Copy(q.More, []map[string]any{{}, {}, {"model": "sql"}, {"model": "chat"}}[rng.IntN(4)])
	maps.Copy(q.More, []map[string]any{{}, {}, {"cache_salt": "a"}, {"cache_salt": "b"}}[rng.IntN(4)])
	w := want(x.t, q)
	ctx, leave := context.WithTimeout(context.Background(), 10*time.Minute)
	defer leave()
	s, leaves := x.open(ctx, q), rng.IntN(4) == 0
	if leaves {
		s.next(rng.IntN(q.MaxTokens))
		leave()
	}
	r := s.rest()
	x.kept.Add(int64(r.Tokens))
	switch {
	case r.Done && r.Status == http.StatusOK && r.Err == (apiError{}) && r.Text != w, !strings.HasPrefix(w, r.Text):
		x.wrong.Add(1)
		x.t.Errorf("request %d, %v: %q, want %q", i, q.More, r.Text, w)
	case r.Done && r.Status == http.StatusOK && r.Err == (apiError{}):
		x.well.Add(1)
	case leaves:
		x.left.Add(1)
	default:
		x.broken.Add(1)
		x.t.Logf("request %d: %v", i, r)
	}
}

// A footprint records the memory, goroutines and files of an idle daemon.
type footprint struct {
	heap, goroutines int64
	files            int
}

// holdings returns the footprints of the daemons that the test does not kill.
func (x *mixed) holdings() map[string]footprint {
	x.t.Helper()
	x.http.CloseIdleConnections()
	all := make(map[string]footprint)
	for _, name := range []string{"proxy", "prefill-0", "decode-0"} {
		p := x.Process(name)
		h := x.holding(p)
		all[name] = footprint{h.heap, h.goroutines, descriptors(x.t, p)}
	}
	return all
}
