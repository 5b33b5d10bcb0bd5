package client

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"kvferry/bench/client/clienttest"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/load"
)

// TestByzantineServer: whatever a server does, each request ends with an error or with the right answer
// soon after its timeout, memory stays bounded, and the same client asks the same server well afterwards.
func TestByzantineServer(t *testing.T) {
	seeds := clocktest.Seeds(t, 40)
	before := memory()
	room := make(chan bool, 8)
	var all sync.WaitGroup
	for seed := range seeds {
		room <- true
		all.Go(func() {
			defer func() { <-room }()
			byzantine(t, uint64(seed))
		})
	}
	all.Wait()
	if grown := memory() - before; grown > 1<<30 {
		t.Errorf("memory has grown by %d MB", grown>>20)
	}
}

// memory returns how many bytes of heap the system has given this process.
func memory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapSys)
}

func byzantine(t *testing.T, seed uint64) {
	const limit, tokens = 250 * time.Millisecond, 6
	backend := []string{"openai", "openai-chat", "sglang"}[seed%3]
	s := clienttest.NewByzantine(t, seed)
	c := New(Config{URL: s.URL, Backend: backend, Timeout: limit, KeepText: true, NoStream: seed%7 == 6})
	defer c.Close()
	request := func(id string) load.Request {
		return load.Request{ID: id, Prompt: []kvcache.Token{1, 2, 3, 4, 5, 6, 7, 8}, MaxTokens: tokens}
	}
	for _, ids := range [][]string{{"a", "b", "c", "d"}, {"honest"}} {
		if len(ids) == 1 {
			c.cfg.Timeout = 30 * time.Second // a busy machine is no fault of the server's
		}
		var list load.List
		for _, id := range ids {
			list = append(list, request(id))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := c.Run(ctx, "byzantine", load.Load{Source: &list}, func(r *Record) {
			what := fmt.Sprintf("seed %d, request %s, %s, %s", seed, r.RequestID, backend, s.Kind(r.RequestID))
			if took := r.Finish - r.Sent; took > 10 { // of 0.25 s, on a busy machine
				t.Errorf("%s: took %.1f s", what, took)
			}
			switch {
			case r.Failure() != "" && r.RequestID == "honest":
				t.Errorf("%s: %s", what, r.Failure())
			case r.Failure() == "" && (r.Text != clienttest.ByzantineText(tokens) || r.Output() != tokens):
				t.Errorf("%s: %d tokens, %q", what, r.Output(), r.Text)
			}
		})
		cancel()
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}
