package placement

import (
	"testing"
	"time"

	"kvferry/kvcache"
)

// TestNetworkAware: of nodes that decode, that which a request pays least for in time: KV behind
// what is queued on the link, and its part of every step beside the others there.
func TestNetworkAware(t *testing.T) {
	const gb = int64(1e9)
	node := func(id string, rate float64, queued int64, legs int) Candidate {
		return Candidate{ID: id, LinkBytesPerSecond: rate, LinkQueuedBytes: queued, InFlight: legs, SequenceTime: time.Millisecond, TokenTime: time.Millisecond}
	}
	for _, tc := range []struct {
		name       string
		compute    bool
		request    Request
		candidates []Candidate
		want       string
	}{
		{"the faster link", false, Request{Tokens: 100, KVBytes: gb}, []Candidate{node("slow", 1e9, 0, 0), node("fast", 2e9, 0, 0)}, "fast"},
		{"until its queue makes up for that", false, Request{Tokens: 100, KVBytes: gb}, []Candidate{node("slow", 1e9, 0, 0), node("fast", 2e9, gb+1e6, 0)}, "slow"},
		{"or its legs: 1 ms a step", false, Request{Tokens: 100, KVBytes: gb, MaxTokens: 100}, []Candidate{node("slow", 1e9, 0, 0), node("fast", 2e9, 0, 6)}, "slow"},
		{"which few steps do not", false, Request{Tokens: 100, KVBytes: gb, MaxTokens: 10}, []Candidate{node("slow", 1e9, 0, 0), node("fast", 2e9, 0, 6)}, "fast"},
		{"links alike: the fewest legs", false, Request{Tokens: 100, KVBytes: gb}, []Candidate{node("a", 1e9, 0, 2), node("b", 1e9, 0, 1)}, "b"},
		{"a link that nobody knows costs nothing", false, Request{Tokens: 100, KVBytes: gb}, []Candidate{node("a", 1e9, 0, 0), node("new", 0, 0, 1)}, "new"},
		{"prompts: the fewest tokens", true, Request{Tokens: 100}, []Candidate{{ID: "a", WaitingTokens: 10}, {ID: "b", WaitingTokens: 9}}, "b"},
		{"a link that is behind by more", true, Request{Tokens: 100, KVBytes: gb}, []Candidate{node("a", 1e9, gb, 0), {ID: "b", WaitingTokens: 900, LinkBytesPerSecond: 1e9, TokenTime: time.Millisecond}}, "b"},
	} {
		p, err := New(NetworkAware, 16, tc.compute)
		if err != nil {
			t.Fatal(err)
		}
		if got := tc.candidates[p.Place(tc.request, tc.candidates)].ID; got != tc.want {
			t.Errorf("%s: placed on %s, want %s", tc.name, got, tc.want)
		}
	}
}

// TestNetworkAwareCaches: what a node is taken to have cached is neither computed nor moved.
func TestNetworkAwareCaches(t *testing.T) {
	r := Request{Tokens: 101, KVBytes: 101e6, Prefix: kvcache.PrefixHashes(kvcache.Hash{}, make([]kvcache.Token, 101), 16)}
	for _, compute := range []bool{true, false} {
		p, _ := New(NetworkAware, 16, compute)
		c := []Candidate{
			{ID: "a", LinkBytesPerSecond: 1e9, TokenTime: time.Millisecond},
			{ID: "b", LinkBytesPerSecond: 1e9, TokenTime: time.Millisecond},
		}
		first := p.Place(r, c)
		c[first].WaitingTokens, c[first].LinkQueuedBytes = 90, 90e6
		if compute {
			c[first].LinkQueuedBytes = 0
		}
		if p.Place(r, c) != first {
			t.Errorf("compute %v: 96 tokens are cached and 90 wait: the request went elsewhere", compute)
		}
		c[1-first].WaitingTokens, c[1-first].LinkQueuedBytes = 0, 0
		c[first].WaitingTokens, c[first].LinkQueuedBytes = 100, 100e6
		if fresh := (Request{Tokens: 101, KVBytes: 101e6}); p.Place(fresh, c) == first {
			t.Errorf("compute %v: nothing is cached and 100 tokens wait: the request stayed", compute)
		}
	}
}
