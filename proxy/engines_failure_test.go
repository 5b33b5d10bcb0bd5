package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/internal/config"
	"kvferry/placement"
	"kvferry/proxy/upstream"
)

// TestEnginesFail: two prefill and two decode engines, of which the first fail as said. asked is how
// often each was, p1 p2 d1 d2. A decode engine that may have begun to take a prompt's KV has the
// prompt computed again: its blocks may have other KV by then. One that was never reached has not.
func TestEnginesFail(t *testing.T) {
	const down = "down"
	for _, tc := range []struct {
		name   string
		p, d   []string // what goes wrong with the first requests to p1 and d1
		stream bool
		asked  [4]int
		status int    // 200: all is well
		want   string // in the answer
	}{
		{"prefill is down", []string{down}, nil, true, [4]int{0, 1, 1, 0}, 200, `"retries":0`},
		{"prefill 500", []string{"500"}, nil, true, [4]int{1, 1, 1, 0}, 200, `"retries":1`},
		{"prefill full", []string{"429"}, nil, false, [4]int{1, 1, 1, 0}, 200, `"retries":1`},
		{"prefill cut", []string{"cut"}, nil, true, [4]int{1, 1, 1, 0}, 200, `"retries":1`},
		{"prefill no JSON", []string{"other"}, nil, true, [4]int{1, 1, 1, 0}, 200, `"retries":1`},
		{"prefill redirects", []string{"307"}, nil, true, [4]int{1, 1, 1, 0}, 200, `"retries":1`},
		{"prefill has nothing", []string{"204"}, nil, false, [4]int{1, 1, 1, 0}, 200, `"retries":1`},
		{"prefill refuses", []string{"400"}, nil, true, [4]int{1, 0, 0, 0}, 400, `{"error": {"message": "scripted 400"`},
		{"prefill knows no such model", []string{"404"}, nil, false, [4]int{1, 0, 0, 0}, 404, "scripted 404"},

		{"decode is down", nil, []string{down}, true, [4]int{1, 0, 0, 1}, 200, `"retries":0`},
		{"decode is down, whole", nil, []string{down}, false, [4]int{1, 0, 0, 1}, 200, `"retries":0`},
		{"decode 503", nil, []string{"503"}, true, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode cut", nil, []string{"cut"}, false, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode dies before its first byte", nil, []string{"die first"}, true, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode has an error first", nil, []string{"error first"}, true, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode does not stream", nil, []string{"other"}, true, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode is no JSON", nil, []string{"other"}, false, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode redirects", nil, []string{"302"}, false, [4]int{1, 1, 1, 1}, 200, `"retries":1`},
		{"decode dies after its last event", nil, []string{"die last"}, true, [4]int{1, 0, 1, 0}, 200, "[DONE]"},
		{"decode refuses, maybe for the KV", nil, []string{"422"}, true, [4]int{1, 1, 1, 1}, 200, `"retries":1`},

		{"decode dies in the stream", nil, []string{"die"}, true, [4]int{1, 0, 1, 0}, 0, `"code":"engine_failed"}}`},
		{"decode has an error in the stream", nil, []string{"error"}, true, [4]int{1, 0, 1, 0}, 0, `data: {"error": {"message": "engine died", "code": 500}}`},
		{"decode ends without its mark", nil, []string{"no done"}, true, [4]int{1, 0, 1, 0}, 0, "without [DONE]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			engines := []*fakeEngine{newFakeEngine(t), newFakeEngine(t), newFakeEngine(t), newFakeEngine(t)}
			for i, faults := range [][]string{tc.p, tc.d} {
				engines[2*i].script = faults
			}
			// Round robin begins with the first, and the proxy has not asked again when one is gone.
			c := newTestEngines(t, Config{Placement: "round-robin", LeaseTTL: time.Minute}, upstream.URLs{Prefill: urls(engines[:2]...), Decode: urls(engines[2:]...)})
			for _, f := range []*fakeEngine{engines[0], engines[2]} {
				if slices.Contains(f.script, down) {
					f.Close()
				}
			}
			status, text, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":"hi there","max_tokens":3,"stream":%v,"return_breakdown":true}`, tc.stream))
			broken := tc.status == 0
			if broken {
				tc.status = 200
			}
			if status != tc.status || (err != nil) != broken || !strings.Contains(text, tc.want) {
				t.Errorf("%d %v %s", status, err, text)
			}
			if broken && !strings.Contains(text, " t0") {
				t.Errorf("the client lost what there was: %s", text)
			}
			var asked [4]int
			for i, f := range engines {
				asked[i] = len(f.requests())
			}
			if asked != tc.asked {
				t.Errorf("asked %v, want %v", asked, tc.asked)
			}
			for _, s := range c.proxy.engines.States() {
				gone := (s.URL == engines[0].URL && len(tc.p) > 0 && tc.p[0] == down) || (s.URL == engines[2].URL && len(tc.d) > 0 && tc.d[0] == down)
				if s.Up == gone || s.InFlight != 0 {
					t.Errorf("%+v", s)
				}
			}
			if last := engines[3].requests(); len(last) == 1 && tc.asked[1] == 1 {
				id := last[0].header.Get("X-Request-Id")
				first := append(engines[0].requests(), engines[2].requests()...)[0].header.Get("X-Request-Id")
				if id == first || engines[1].requests()[0].header.Get("X-Request-Id") != id {
					t.Errorf("the second attempt is called %s, the first %s", id, first)
				}
			}
		})
	}
}

// TestEnginesAvoid: what failed a request does not get it again while there are others, whatever
// placement would have; and what fails many requests gets none for a while.
func TestEnginesAvoid(t *testing.T) {
	engines := []*fakeEngine{newFakeEngine(t), newFakeEngine(t)}
	c := newTestEngines(t, Config{Placement: placement.PrefixAware, LeaseTTL: time.Minute}, upstream.URLs{Both: urls(engines...)})
	ask := func() {
		t.Helper()
		prompt := strings.Repeat("to be or not to be ", 40)
		if status, text, _ := c.post("/v1/completions", `{"prompt":"`+prompt+`","max_tokens":1}`); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	ask()
	first, other := engines[0], engines[1]
	if len(first.requests()) == 0 {
		first, other = other, first
	}
	first.mu.Lock()
	first.script = slices.Repeat([]string{"500"}, 20)
	first.mu.Unlock()
	ask()
	if a, b := len(first.requests()), len(other.requests()); a != 2 || b != 1 {
		t.Errorf("after one failure: %d and %d requests", a, b)
	}
	prompt := func(i int) string {
		return fmt.Sprintf(`{"prompt":"%d %s","max_tokens":1}`, i, strings.Repeat("x", 400))
	}
	for i := range 20 {
		if status, text, _ := c.post("/v1/completions", prompt(i)); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	if n := len(first.requests()); n > 8 { // its first rest is a second, twice that after a trial
		t.Errorf("one that fails all got %d of 22 requests", n)
	}
	if _, text := c.get("/metrics"); !strings.Contains(text, `kvferry:quarantines_total{engine="`+strings.TrimPrefix(first.URL, "http://")+`",peer=""}`) {
		t.Error("nothing is said of a quarantine")
	}
}

// TestEnginesAllFail: what no engine can do is said in the words of the last, after as many tries as
// there may be.
func TestEnginesAllFail(t *testing.T) {
	many := slices.Repeat([]string{"text 500"}, 10)
	p, d := newFakeEngine(t), newFakeEngine(t, many...)
	c := newTestPair(t, Config{MaxRetries: 1}, p, d)
	status, text, _ := c.post("/v1/completions", `{"prompt":"x","stream":true}`)
	if status != 500 || !strings.Contains(text, "request req-1: decode leg on engine "+strings.TrimPrefix(d.URL, "http://")) || len(d.requests()) != 2 {
		t.Errorf("%d %s after %d tries", status, text, len(d.requests()))
	}
}

// TestEnginesStatus: a client gets an error's status and when to come back, and no status that is none
// of an error's.
func TestEnginesStatus(t *testing.T) {
	for _, tc := range []struct {
		fault  string
		status int
		after  string
	}{{"503", 503, "7"}, {"429", 429, "7"}, {"400", 400, ""}, {"307", 502, ""}, {"204", 502, ""}} {
		one := newFakeEngine(t, tc.fault)
		c := newTestEngines(t, Config{MaxRetries: -1}, upstream.URLs{Both: urls(one)})
		resp, text := c.ask(http.MethodPost, "/v1/completions", `{"prompt":"x"}`)
		if resp.StatusCode != tc.status || resp.Header.Get("Retry-After") != tc.after || !strings.Contains(text, `"message":`) && !strings.Contains(text, `"message": `) {
			t.Errorf("%s: %d, Retry-After %q, %s", tc.fault, resp.StatusCode, resp.Header.Get("Retry-After"), text)
		}
	}
}

// TestEnginesDeadline: a request ends by its deadline, wherever it is, and its engine is told.
func TestEnginesDeadline(t *testing.T) {
	for fault, begun := range map[string]bool{"stall": false, "stall first": false, "stall after": true} {
		for _, of := range []string{"prefill", "decode"} {
			if of == "prefill" && fault != "stall" {
				continue
			}
			t.Run(of+" "+fault, func(t *testing.T) {
				p, d := newFakeEngine(t), newFakeEngine(t)
				stalls := map[string]*fakeEngine{"prefill": p, "decode": d}[of]
				stalls.script = []string{fault}
				c := newTestPair(t, Config{}, p, d)
				status, text, err := c.post("/v1/completions", `{"prompt":"x","stream":true,"timeout":0.3}`)
				want := http.StatusGatewayTimeout
				if begun {
					want = http.StatusOK
				}
				if status != want || (err != nil) != begun || !strings.Contains(text, "deadline exceeded: the request was given 300ms") {
					t.Errorf("%d %v %s", status, err, text)
				}
				clocktest.Receive(t, stalls.gone, "the end of it at the engine")
			})
		}
	}
}

// TestEnginesClientGone: what a client asked for that has gone, no engine goes on with.
func TestEnginesClientGone(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, of := range []string{"prefill", "decode"} {
			t.Run(fmt.Sprint(of, " ", stream), func(t *testing.T) {
				p, d := newFakeEngine(t), newFakeEngine(t)
				stalls := map[string]*fakeEngine{"prefill": p, "decode": d}[of]
				stalls.script = []string{"stall"}
				c := newTestPair(t, Config{}, p, d)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan error, 1)
				go func() {
					resp, err := c.client.Do(c.request(ctx, "/v1/completions", fmt.Sprintf(`{"prompt":"x","stream":%v}`, stream)))
					if err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					over <- err
				}()
				clocktest.Until(t, "the engine has it", func() bool { return len(stalls.requests()) == 1 })
				cancel()
				if err := clocktest.Receive(t, over, "the client's end"); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				clocktest.Receive(t, stalls.gone, "the end of it at the engine")
				c.waitInFlight(0)
				if _, text := c.get("/metrics"); !strings.Contains(text, `vllm:request_success_total{engine="0",finished_reason="abort",model_name="org/real"} 1`) {
					t.Error("it is not counted as given up by its client")
				}
			})
		}
	}
}

// TestEnginesHealth: one that says that it is ill gets nothing until it is well, and the proxy is as
// well as its engines.
func TestEnginesHealth(t *testing.T) {
	p, d1, d2 := newFakeEngine(t), newFakeEngine(t), newFakeEngine(t)
	c := newTestEngines(t, Config{NodeWait: -1}, upstream.URLs{Prefill: urls(p), Decode: urls(d1, d2)})
	health := func() int { status, _ := c.get("/health"); return status }
	if health() != 200 {
		t.Fatal("not ready")
	}
	d1.ill.Store(true)
	up := func(n int) func() bool {
		return func() bool {
			all := c.proxy.engines.States()
			return n == len(slices.DeleteFunc(all, func(s upstream.State) bool { return !s.Up }))
		}
	}
	clocktest.Until(t, "one is left", up(2))
	for range 4 {
		if status, text, _ := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 {
			t.Fatal(text)
		}
	}
	if len(d1.requests()) > 0 || len(d2.requests()) != 4 {
		t.Errorf("the ill one had %d, the other %d of 4", len(d1.requests()), len(d2.requests()))
	}
	d2.ill.Store(true)
	clocktest.Until(t, "no decode engine is left", up(1))
	status, text, _ := c.post("/v1/completions", `{"prompt":"x"}`)
	if status != 503 || !strings.Contains(text, "decode engine "+strings.TrimPrefix(d2.URL, "http://")+": /health: 503 Service Unavailable") || health() != 503 {
		t.Errorf("%d %s", status, text)
	}
	d1.ill.Store(false)
	clocktest.Until(t, "one is back", up(2))
	if status, text, _ := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 || health() != 200 {
		t.Errorf("%d %s", status, text)
	}
}

// TestEnginesComeLate: requests wait for engines that are not there yet.
func TestEnginesComeLate(t *testing.T) {
	one := newFakeEngine(t)
	one.ill.Store(true)
	c := newTestCluster(t, Config{Upstreams: upstream.URLs{Both: urls(one)}, LeaseTTL: 60 * time.Millisecond, NodeWait: clocktest.Patience})
	done := make(chan int, 1)
	go func() {
		status, _, _ := c.post("/v1/completions", `{"prompt":"x"}`)
		done <- status
	}()
	clocktest.Until(t, "the request waits", func() bool {
		c.proxy.nodes.mu.Lock()
		defer c.proxy.nodes.mu.Unlock()
		return c.proxy.nodes.waiting == 1
	})
	one.ill.Store(false)
	if status := clocktest.Receive(t, done, "the answer"); status != 200 {
		t.Error(status)
	}
}

// TestEnginesConfig: what makes no sense is refused by its field, with what would do.
func TestEnginesConfig(t *testing.T) {
	one, two := []string{"http://a:1"}, []string{"b:2"}
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no URL":         {Config{Upstreams: upstream.URLs{Both: []string{"ftp://a"}}}, `Upstreams.Both: "ftp://a": it is no server's address`},
		"twice":          {Config{Upstreams: upstream.URLs{Prefill: one, Decode: []string{"a:1"}}}, `Upstreams.Decode: "a:1": an engine is named once, with one role`},
		"no decode":      {Config{Upstreams: upstream.URLs{Prefill: one}}, "Upstreams.Decode: none given: prefill engines need decode engines"},
		"no prefill":     {Config{Upstreams: upstream.URLs{Decode: one}}, "Upstreams.Prefill: none given: decode engines need prefill engines"},
		"no bootstrap":   {Config{Upstreams: upstream.URLs{Prefill: one, Decode: two, Bootstrap: []string{"c:1", "d:1"}}}, "Upstreams.Bootstrap: 2: name one for each of the 1 prefill engines"},
		"its URL":        {Config{Upstreams: upstream.URLs{Prefill: one, Decode: two, Bootstrap: []string{"ftp://c"}}}, `Upstreams.Bootstrap: "ftp://c": it is no server's address`},
		"report's URL":   {Config{Upstreams: upstream.URLs{Both: one, Report: "ftp://c"}}, `Upstreams.Report: "ftp://c": it is no server's address`},
		"two schemes":    {Config{Upstreams: upstream.URLs{Both: []string{"http://a:1", "https://a:1"}}}, `Upstreams.Both: "https://a:1": an engine is named once`},
		"a password":     {Config{Upstreams: upstream.URLs{Both: []string{"http://me:secret@a:1/x"}}}, `Upstreams.Both: "http://a:1/x": metrics, logs and files show it`},
		"its password":   {Config{Upstreams: upstream.URLs{Prefill: one, Decode: two, Bootstrap: []string{"me:secret@c:1"}}}, `Upstreams.Bootstrap: "http://c:1": metrics, logs and files show it`},
		"mode disagg":    {Config{Upstreams: upstream.URLs{Both: one}, Mode: ModeDisagg}, "Upstreams: mode disagg needs prefill and decode engines"},
		"mode nondisagg": {Config{Upstreams: upstream.URLs{Prefill: one, Decode: two}, Mode: ModeNondisagg}, "Upstreams: mode nondisagg needs an engine that does both"},
		"names":          {Config{Upstreams: upstream.URLs{Both: one}, ServedNames: []string{"x"}}, "ServedNames: the engines have names"},
		"adapters":       {Config{Upstreams: upstream.URLs{Both: one}, LoRAs: []LoRA{{Name: "x", Path: "y"}}}, "LoRAs: the engines have adapters"},
		"traces":         {Config{Upstreams: upstream.URLs{Both: one}, OTLPTracesEndpoint: "http://c:1/v1/traces"}, "OTLPTracesEndpoint: the engines make the spans"},
	} {
		invalid := (*config.Invalid)(nil)
		if err := tc.cfg.Validate(); !errors.As(err, &invalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if err := (Config{Upstreams: upstream.URLs{Prefill: one, Decode: two, Both: []string{"https://gw.example/v/"}}}).Validate(); err != nil {
		t.Error(err)
	}
}
