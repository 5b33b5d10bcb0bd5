package placement

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
)

// TestPolicies is what every policy of the table must do. The cluster changes under it:
// nodes come, go, and are ruled out for a request.
func TestPolicies(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range kinds {
		if seen[k.name] || k.name == "" || strings.ContainsAny(k.name, " ,") {
			t.Errorf("%q is no name for a flag, or twice in the table", k.name)
		}
		seen[k.name] = true
		if help := fmt.Sprintf("%s (%s)", k.name, k.by); k.by == "" || !strings.Contains(Help(), help) {
			t.Errorf("the help does not tell of %s what it goes by: %s", k.name, Help())
		}
		for _, compute := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s,compute=%v", k.name, compute), func(t *testing.T) { conforms(t, k.name, compute) })
		}
	}
	for _, name := range []string{"", "fastest"} {
		if _, err := New(name, 16, true); err == nil || !strings.Contains(err.Error(), strings.Join(Names(), ", ")) {
			t.Errorf("New(%q): %v: want an error with the names there are", name, err)
		}
	}
}

func conforms(t *testing.T, name string, compute bool) {
	const blockTokens, nodes, requests = 16, 7, 2000
	first, err := New(name, blockTokens, compute)
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(name, blockTokens, compute)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 13))
	cluster := make([]Candidate, nodes)
	for i := range cluster {
		cluster[i] = Candidate{ID: fmt.Sprintf("node-%d", i), Blocks: 100 * rng.IntN(3)}
	}
	adapters := []string{"adapter-1", "adapter-2", "base"}
	memory := make([]Candidate, 0, nodes) // used again for each request, as a proxy may
	for n := range requests {
		var there []Candidate
		for len(there) == 0 {
			for i := range cluster {
				cluster[i].WaitingTokens, cluster[i].InFlight = rng.IntN(3)*rng.IntN(1000), rng.IntN(3)
				cluster[i].AdapterSlots, cluster[i].Adapters = rng.IntN(4), adapters[:rng.IntN(4)]
				cluster[i].LinkBytesPerSecond, cluster[i].LinkQueuedBytes = float64(rng.IntN(3))*1e9, int64(rng.IntN(1e9))
				cluster[i].TokenTime, cluster[i].SequenceTime = time.Duration(rng.IntN(2))*time.Microsecond, time.Duration(rng.IntN(2))*time.Microsecond
				if rng.IntN(4) > 0 {
					there = append(there, cluster[i])
				}
			}
		}
		prompt := make([]kvcache.Token, rng.IntN(100))
		if len(prompt) > 0 {
			prompt[0] = kvcache.Token(rng.IntN(20)) // twenty prefixes
		}
		r := Request{Tokens: len(prompt), MaxTokens: rng.IntN(100), KVBytes: int64(rng.IntN(2) * len(prompt) * 57344)}
		if n%3 > 0 {
			r.Adapter = fmt.Sprintf("adapter-%d", rng.IntN(9))
		}
		if first.WantsPrefix() && n%10 > 0 { // a policy must do without it, too
			r.Prefix = kvcache.PrefixHashes(kvcache.Hash{}, prompt, blockTokens)
		}
		asked, prefix := slices.Clone(there), slices.Clone(r.Prefix)
		got := first.Place(r, there)
		if got < 0 || got >= len(there) {
			t.Fatalf("request %d: %d of %d candidates", n, got, len(there))
		}
		if !reflect.DeepEqual(there, asked) || !slices.Equal(r.Prefix, prefix) {
			t.Fatalf("request %d: what it was asked was changed", n)
		}
		memory = append(memory[:0], asked...)
		again := second.Place(r, memory)
		clear(memory)
		if again != got {
			t.Fatalf("request %d: %s, and %s in a second run", n, asked[got].ID, asked[again].ID)
		}
		if first.WantsPrefix() != second.WantsPrefix() {
			t.Fatalf("request %d: it wants prefixes, or not", n)
		}
	}
}
