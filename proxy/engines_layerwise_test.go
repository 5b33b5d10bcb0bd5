package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/proxy/upstream"
)

const (
	ofKvferry  = `{"remote_ranks": [{"advertisement": "x", "planes": []}], "remote_model": "m", "remote_checksums": false}`
	ofMooncake = `{"0": {"engine_id": "abc", "worker_addr": {"0": {"0": "tcp://10.0.0.2:4000"}}}}`
)

// newLayerwise is a proxy of engines that are asked at the same time; the prefill engines' connectors are
// found at their own addresses.
func newLayerwise(t *testing.T, cfg Config, query string, p, d []*fakeEngine) *testCluster {
	t.Helper()
	for _, f := range p {
		f.query.Store(query)
	}
	return newTestEngines(t, cfg, upstream.URLs{Prefill: urls(p...), Decode: urls(d...), Bootstrap: urls(p...)})
}

// TestLayerwisePass: both engines are asked before either has answered, and told of the same transfer; the
// decode engine is told whom to ask for it, in the words of its connector.
func TestLayerwisePass(t *testing.T) {
	for name, tc := range map[string]struct{ query, more string }{
		"kvferry":  {ofKvferry, ""},
		"mooncake": {ofMooncake, `,"remote_engine_id":"abc"`},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", stream), func(t *testing.T) {
				p, d := newFakeEngine(t, "hold"), newFakeEngine(t, "hold")
				d.report = `{"queue_us": 1, "post_us": 2, "wire_us": 3, "land_us": 4, "kv_bytes": 5, "kv_blocks_checked": 6, "kv_blocks_bad": 0}`
				c := newLayerwise(t, Config{}, tc.query, []*fakeEngine{p}, []*fakeEngine{d})
				type answer struct {
					status int
					text   string
				}
				done := make(chan answer, 1)
				go func() {
					status, text, _ := c.post("/v1/completions", fmt.Sprintf(`{"prompt":"hi there","max_tokens":3,"stream":%v,"return_breakdown":true}`, stream))
					done <- answer{status, text}
				}()
				clocktest.Until(t, "both have it", func() bool { return len(p.requests()) == 1 && len(d.requests()) == 1 })
				if waiting, _ := c.proxy.Requests(); stream && waiting != 1 {
					t.Error("it is taken to run")
				}
				close(p.hold)
				close(d.hold)
				a := clocktest.Receive(t, done, "the answer")
				if a.status != 200 || !strings.Contains(a.text, `"prefill_us":`) || strings.Contains(a.text, `"prefill_us":null`) {
					t.Errorf("%d %s", a.status, a.text)
				}
				if reported := strings.Contains(a.text, `"post_us":2,"wire_us":0,"land_us":4,`); reported != (tc.query == ofKvferry) {
					t.Errorf("%s", a.text)
				}
				first, second := p.requests()[0], d.requests()[0]
				id := first.header.Get("X-Request-Id")
				if second.header.Get("X-Request-Id") != id || !strings.HasPrefix(id, "req-1-") {
					t.Errorf("called %q and %q", id, second.header.Get("X-Request-Id"))
				}
				take := second.fields["kv_transfer_params"].(map[string]any)
				delete(take, "report_url")
				for _, want := range []struct {
					fields map[string]any
					text   string
				}{
					{first.fields, `{"prompt":"hi there","max_tokens":1,"min_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"` + id + `"}}`},
					{second.fields, fmt.Sprintf(`{"prompt":"hi there","max_tokens":3,"stream":%v,"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"`+id+`","remote_bootstrap_addr":"`+p.URL+`"`+tc.more+`}}`, stream)},
				} {
					if got := toJSON(t, want.fields); !sameJSON(t, got, want.text) {
						t.Errorf("got  %s\nwant %s", got, want.text)
					}
				}
			})
		}
	}
}

// TestLayerwiseFail: two prefill and two decode engines, of which the first fail as said. When one of the
// two that have a request fails, the other gives it up: what it waits for does not come, or nobody takes it.
// asked is how often each was, p1 p2 d1 d2.
func TestLayerwiseFail(t *testing.T) {
	const down = "down"
	for _, tc := range []struct {
		name   string
		p, d   string // what goes wrong with the first requests to p1 and d1
		asked  [4]int
		status int // 200: all is well
		want   string
	}{
		{"prefill dies while decode waits", "cut", "stall first", [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"prefill fails while decode waits", "500", "stall", [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"prefill is down", down, "stall", [4]int{0, 1, 1, 1}, 200, `"retries":0`},
		{"prefill refuses", "400", "stall first", [4]int{1, 0, 1, 0}, 400, "scripted 400"},
		{"decode dies while prefill computes", "stall", "cut", [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode fails while prefill computes", "stall", "503", [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode has an error first", "stall", "error first", [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode is down", "stall", down, [4]int{1, 1, 0, 1}, 200, `"retries":0`},
		{"decode dies in the stream", "", "die", [4]int{1, 0, 1, 0}, 0, `"code":"engine_failed"}}`},
		{"prefill hangs, decode does it alone", "stall", "", [4]int{1, 0, 1, 0}, 200, `"retries":0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := []*fakeEngine{newFakeEngine(t, tc.p), newFakeEngine(t)}
			d := []*fakeEngine{newFakeEngine(t, tc.d), newFakeEngine(t, "hold")}
			go func() { // as with KV, the second decode engine has no answer before its prefill engine was asked
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for len(p[1].requests()) == 0 {
					select {
					case <-tick.C:
					case <-t.Context().Done():
						return
					}
				}
				close(d[1].hold)
			}()
			c := newLayerwise(t, Config{Placement: "round-robin", LeaseTTL: time.Minute}, ofKvferry, p, d)
			for _, f := range []*fakeEngine{p[0], d[0]} {
				if slices.Contains(f.script, down) {
					f.Close()
				}
			}
			status, text, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"stream":true,"return_breakdown":true}`)
			broken := tc.status == 0
			if broken {
				tc.status = 200
			}
			if status != tc.status || (err != nil) != broken || !strings.Contains(text, tc.want) {
				t.Errorf("%d %v %s", status, err, text)
			}
			var asked [4]int
			for i, f := range slices.Concat(p, d) {
				asked[i] = len(f.requests())
			}
			if stalls := map[bool]*fakeEngine{true: p[0], false: d[0]}[strings.HasPrefix(tc.p, "stall")]; strings.Contains(tc.p+tc.d, "stall") && len(stalls.requests()) > 0 {
				clocktest.Receive(t, stalls.gone, "the end of what it waits for")
			}
			// One that is ended at once may not have come to its engine.
			for i, n := range tc.asked {
				if asked[i] != n && (n != 1 || asked[i] != 0 || i != 0 && i != 2) {
					t.Errorf("asked %v, want %v", asked, tc.asked)
				}
			}
			if second := d[1].requests(); len(second) == 1 {
				id := second[0].header.Get("X-Request-Id")
				for _, before := range slices.Concat(p[0].requests(), d[0].requests()) {
					if before.header.Get("X-Request-Id") == id {
						t.Error("the second attempt is called as the first")
					}
				}
				if p[1].requests()[0].header.Get("X-Request-Id") != id {
					t.Error("its engines know it by different names")
				}
			}
			for _, s := range c.proxy.engines.States() {
				if s.InFlight != 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// TestLayerwiseEnds: a client that goes, and a deadline, end a request at both engines.
func TestLayerwiseEnds(t *testing.T) {
	for _, deadline := range []bool{true, false} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(deadline, " ", stream), func(t *testing.T) {
				p, d := newFakeEngine(t, "stall"), newFakeEngine(t, "stall")
				c := newLayerwise(t, Config{}, ofMooncake, []*fakeEngine{p}, []*fakeEngine{d})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				body := fmt.Sprintf(`{"prompt":"x","stream":%v}`, stream)
				if deadline {
					body = strings.Replace(body, "{", `{"timeout":0.3,`, 1)
				}
				over := make(chan int, 1)
				go func() {
					status := 0
					if resp, err := c.client.Do(c.request(ctx, "/v1/completions", body)); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
						status = resp.StatusCode
					}
					over <- status
				}()
				clocktest.Until(t, "both have it", func() bool { return len(p.requests()) == 1 && len(d.requests()) == 1 })
				want := http.StatusGatewayTimeout
				if !deadline {
					want = 0
					cancel()
				}
				if status := clocktest.Receive(t, over, "the client's end"); status != want {
					t.Errorf("status %d", status)
				}
				clocktest.Receive(t, p.gone, "the end of it at the prefill engine")
				clocktest.Receive(t, d.gone, "the end of it at the decode engine")
				c.waitInFlight(0)
			})
		}
	}
}

// TestLayerwiseBootstrap: a prefill engine whose connector is not found is down, and says why.
func TestLayerwiseBootstrap(t *testing.T) {
	p, d := newFakeEngine(t), newFakeEngine(t)
	c := newTestCluster(t, Config{NodeWait: -1, LeaseTTL: 60 * time.Millisecond, Upstreams: upstream.URLs{Prefill: urls(p), Decode: urls(d), Bootstrap: urls(p)}})
	for _, reason := range []string{"bootstrap " + p.URL + ": /query: 404", "bootstrap " + p.URL + ": its answer is no JSON object"} {
		clocktest.Until(t, reason, func() bool {
			status, text := c.get("/health")
			return status == 503 && strings.Contains(text, reason)
		})
		p.query.Store("no JSON")
	}
	p.query.Store(ofKvferry)
	clocktest.Until(t, "it is up", func() bool { status, _ := c.get("/health"); return status == 200 })
	if k := c.serverInfo(); k.Handoff != "connector-layerwise" {
		t.Errorf("hand-off %s", k.Handoff)
	}
}

// TestEnginesReport: a stream's breakdown has what kvferry's connector reports of the transfer. Others are not
// asked, and an answer does not wait for a report that does not come.
func TestEnginesReport(t *testing.T) {
	for name, tc := range map[string]struct {
		offers, report, want string
		asked                bool
	}{
		"kvferry":    {`{"remote_hold": 7, "remote_num_tokens": 5}`, `{"request_id": "cmpl-1", "queue_us": 1, "post_us": 2, "wire_us": 3, "land_us": 4, "kv_bytes": 5, "kv_blocks_checked": 6, "kv_blocks_bad": 0}`, `"post_us":2,"wire_us":3,"land_us":4,`, true},
		"it is mute": {`{"remote_hold": 7}`, "", `"post_us":null,"wire_us":null,`, true},
		"another":    {fakeOffer, `{"wire_us": 3}`, `"post_us":null,"wire_us":null,`, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newFakeEngine(t), newFakeEngine(t)
			p.offers, d.report = tc.offers, tc.report
			c := newTestPair(t, Config{}, p, d)
			status, text, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"stream":true,"return_breakdown":true}`)
			if status != 200 || err != nil || !strings.Contains(text, tc.want) {
				t.Errorf("%d %v %s", status, err, text)
			}
			url, asked := d.requests()[0].fields["kv_transfer_params"].(map[string]any)["report_url"].(string)
			if asked != tc.asked || asked && !strings.HasPrefix(url, c.url(upstream.ReportPath)) {
				t.Errorf("it is told to report to %q", url)
			}
			if !asked {
				return
			}
			resp, err := http.Post(url, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("a report after the end: %d", resp.StatusCode)
			}
		})
	}
}
