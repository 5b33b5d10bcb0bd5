package cluster

import (
	"flag"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvferry/node"
	"kvferry/proxy"
)

var crowd = flag.Int("crowd", 200, "requests of each of TestNobodyIsMoved's cells; 10000 is a crowd")

// TestNobodyIsMoved: however long the queue, a node that gets on keeps its requests. All
// at once, and at twice what the nodes can do, nobody is refused, moved or failed. For
// 10,000 requests a cell, with daemons that are not slowed by the race detector:
//
//	go test ./cluster -run TestNobodyIsMoved -crowd 10000 -v
func TestNobodyIsMoved(t *testing.T) {
	for i, load := range []struct {
		name     string
		capacity float64 // prompts/s that the modelled GPU computes; 0: any
		rate     float64 // requests/s that come; 0: all at once
	}{
		{"at rate inf", 0, 0},
		{"twice the capacity", 250, 500},
	} {
		for j, handoff := range append([]string{"nondisagg"}, handoffs...) {
			if testing.Short() && (i+j)%2 > 0 {
				continue
			}
			t.Run(load.name+"/"+handoff, func(t *testing.T) {
				const length, tokens = 64, 8
				p := cost{Decode: 1}
				if load.capacity > 0 {
					p.PrefillToken = 1000 / load.capacity / length
				}
				cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, p), Proxy: proxy.Config{Handoff: handoff}, Node: node.Config{KVBlocks: 2048}}
				if *crowd >= 10_000 {
					cfg.Proxy.LeaseTTL = 3 * time.Second // the daemons' default; tests' outlast a busy machine
				}
				if handoff == "nondisagg" {
					cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff = 0, 0, 1, ""
				}
				c := start(t, cfg)
				c.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *crowd}}
				began := time.Now()
				results := make(chan result, *crowd)
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for sent := 0; sent < *crowd; {
					due := *crowd
					if load.rate > 0 {
						<-tick.C
						due = min(due, int(time.Since(began).Seconds()*load.rate))
					}
					for ; sent < due; sent++ {
						q := call{Prompt: prompt(sent, length), MaxTokens: tokens, Stream: true}
						go func() { results <- c.do(q) }()
					}
				}
				statuses := make(map[int]int)
				whole := 0
				for range *crowd {
					r := <-results // c.do has a deadline
					statuses[r.Status]++
					if r.Done && r.Tokens == tokens && r.Err == (apiError{}) {
						whole++
					} else if statuses[r.Status] < 3 {
						t.Log(r)
					}
				}
				took := time.Since(began)
				m := c.metrics()
				moved := value(m, "kvferry:request_retries_total") + float64(strings.Count(c.logs.String(), "node left: it holds its lease")+strings.Count(c.logs.String(), "node lost"))
				t.Logf("%d of %d whole after %v; statuses %v, %v moved", whole, *crowd, took.Round(time.Millisecond), statuses, moved)
				if whole != *crowd || moved != 0 || value(m, "kvferry:kv_blocks_bad_total") != 0 {
					t.Errorf("%d of %d requests are whole, statuses %v, %v were moved", whole, *crowd, statuses, moved)
				}
				c.http.CloseIdleConnections()
				c.quiet()
			})
		}
	}
}
