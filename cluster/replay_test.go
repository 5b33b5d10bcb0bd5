package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/node"
	"kvferry/proxy"
	"kvferry/sim"
)

// tap is a proxy before a server that keeps the completions it is asked, by their IDs.
type tap struct {
	*httptest.Server
	mu    sync.Mutex
	asked map[string]load.Request
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{asked: map[string]load.Request{}}
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.FlushInterval = -1
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/completions" {
			body, err := io.ReadAll(r.Body)
			var q struct {
				Prompt    []kvcache.Token `json:"prompt"`
				MaxTokens int             `json:"max_tokens"`
			}
			if err == nil {
				err = json.Unmarshal(body, &q)
			}
			if err != nil {
				t.Error(err)
			}
			p.mu.Lock()
			p.asked[r.Header.Get("X-Request-Id")] = load.Request{Prompt: q.Prompt, MaxTokens: q.MaxTokens}
			p.mu.Unlock()
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// remembered is a source that keeps what was taken from it.
type remembered struct {
	load.Source
	taken []load.Request
}

func (r *remembered) Next() (load.Request, bool, error) {
	next, ok, err := r.Source.Next()
	if ok {
		r.taken = append(r.taken, next)
	}
	return next, ok, err
}

// TestReplay: a trace, a random load and a closed loop ask real daemons what they ask
// simulated ones: the same prompts to the token, the same lengths, the same times.
func TestReplay(t *testing.T) {
	path := profile(t, cost{PrefillToken: 0.01, Decode: 0.5})
	prof, err := engine.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: path, Proxy: proxy.Config{Handoff: "layerwise"}, Node: node.Config{PrefixCaching: true}})
	tap := newTap(t, c.URL())

	file := filepath.Join(t.TempDir(), "trace.jsonl")
	var lines strings.Builder
	for i := range 12 {
		fmt.Fprintf(&lines, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, \"hash_ids\": [7, %d]}\n", 20*(i/3), 600+i, 1+i%4, i%5)
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]struct {
		spec     load.Spec
		inFlight int
	}{
		"trace":       {load.Spec{Kind: load.Traced, File: file, Speed: 2, Vocab: prof.Vocab}, 0},
		"random":      {load.Spec{Requests: 20, Rate: 300, Burstiness: 0.5, InputLen: 100, OutputLen: 4, RangeRatio: 0.5, Seed: 3, Vocab: prof.Vocab}, 4},
		"closed loop": {load.Spec{Requests: 20, Rate: math.Inf(1), Burstiness: 1, InputLen: 100, OutputLen: 4, Vocab: prof.Vocab}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			open := func() (load.Load, *remembered) {
				l, err := of.spec.Open()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				kept := &remembered{Source: l.Source}
				return load.Load{Source: kept, InFlight: of.inFlight, End: l.End}, kept
			}
			l, simulated := open()
			outcomes := map[int]*sim.Outcome{}
			if _, err := sim.Run(t.Context(), sim.Config{
				Profile: prof, Prefill: 1, Decode: 1, Handoff: handoff.Layerwise, PrefixCaching: true, RPC: sim.DefaultRPC,
				NICs: []sim.NIC{{BytesPerSecond: 1e9}}, OnOutcome: func(o *sim.Outcome) { outcomes[o.Index] = o },
			}, l); err != nil {
				t.Fatal(err)
			}

			l, _ = open()
			asker := client.New(client.Config{URL: tap.URL, Timeout: patience})
			defer asker.Close()
			records := map[int]*client.Record{}
			if _, err := asker.Run(t.Context(), model, l, func(r *client.Record) { records[r.Index] = r }); err != nil {
				t.Fatal(err)
			}

			if n := len(simulated.taken); n < 12 || len(records) != n || len(outcomes) != n {
				t.Fatalf("%d requests, of which %d were simulated and %d were sent: %v", n, len(outcomes), len(records), slices.Sorted(maps.Keys(records)))
			}
			for i, want := range simulated.taken {
				o, r := outcomes[i], records[i]
				sent := tap.asked[r.RequestID]
				if !slices.Equal(sent.Prompt, want.Prompt) || sent.MaxTokens != want.MaxTokens || o.PromptTokens != len(sent.Prompt) || o.MaxTokens != sent.MaxTokens {
					t.Errorf("request %d: %d + %d tokens were sent, %d + %d simulated", i, len(sent.Prompt), sent.MaxTokens, len(want.Prompt), want.MaxTokens)
				}
				if due := o.Due.Round(time.Microsecond).Seconds(); o.Due != want.At || math.Abs(r.Intended-due) > 1e-9 || r.Sent < r.Intended || o.Arrived < o.Due {
					t.Errorf("request %d: due at %v s and sent at %v, simulated due at %v and sent at %v", i, r.Intended, r.Sent, o.Due, o.Arrived)
				}
				if r.Failure() != "" || o.Err != nil || r.Usage.CompletionTokens != o.Tokens || r.Usage.PromptTokens != o.PromptTokens {
					t.Errorf("request %d: %+v, simulated %+v", i, r, o)
				}
			}
		})
	}
}
