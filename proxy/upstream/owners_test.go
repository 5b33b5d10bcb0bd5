package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proxy/openai"
	"kvferry/proxy/upstream"
	"kvferry/proxy/upstream/upstreamtest"
)

// A dialer connects to servers, or fails as the test says.
type dialer struct {
	fails func(address string) error
	n     net.Dialer
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := d.fails(address); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return d.n.DialContext(ctx, network, address)
}

// start runs engines until the test ends, and returns when all are up.
func start(t *testing.T, cfg upstream.Config) *upstream.Engines {
	t.Helper()
	cfg.Together, cfg.Alone, cfg.Placement, cfg.Clock, cfg.Logger = true, true, placement.RoundRobin, clock.Std(), slog.New(slog.DiscardHandler)
	cfg.Listens = func() string { return "127.0.0.1:1" }
	e, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	clocktest.Until(t, "the engines are up", func() bool {
		return !slices.ContainsFunc(e.States(), func(s upstream.State) bool { return !s.Up || s.Model == "" })
	})
	return e
}

// serve has engines answer a request, with so much memory.
func serve(t *testing.T, e *upstream.Engines, body string, memory int64) (answer string, err error) {
	t.Helper()
	r := upstream.NewRequest(openai.Completion, httptest.NewRequest("POST", "/v1/completions", nil))
	asked, err := r.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	b := &budget{}
	b.left.Store(memory)
	r.ID, r.More = "req", b.more
	w := client{httptest.NewRecorder()}
	r.Events().To(w)
	ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	if err := e.Serve(ctx, r, counts{}, func() {}); err != nil || !asked.Stream {
		return string(r.Answer(openai.Usage{})), err
	}
	return w.Body.String(), r.Events().End(openai.Usage{})
}

// resting lists what has been in quarantine: engines, and pairs of them with a blank between.
func resting(e *upstream.Engines) (all []string) {
	e.Rests(0, func(node, peer string, _ bool, total uint64) {
		if total > 0 {
			all = append(all, strings.TrimSpace(node+" "+peer))
		}
	})
	return all
}

// engine serves as one that has these adapters; generate answers the rest.
func engine(t *testing.T, adapters []string, generate func(w http.ResponseWriter, body string)) (url string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		switch q.URL.Path {
		case "/v1/models":
			text := `{"data":[{"id":"m","max_model_len":4096}`
			for _, name := range adapters {
				text += fmt.Sprintf(`,{"id":%q,"parent":"m"}`, name)
			}
			fmt.Fprint(w, text+"]}")
		case "/health", "/metrics":
		default:
			generate(w, string(body))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const answered = `{"choices":[{"index":0,"text":"x","finish_reason":"length"}]}`

// TestAdapterWaits: a request for a LoRA adapter waits for the one engine that has it and could not be reached once. Another
// engine's 404 is not its answer.
func TestAdapterWaits(t *testing.T) {
	has := engine(t, []string{"sql"}, func(w http.ResponseWriter, _ string) { fmt.Fprint(w, answered) })
	lacks := engine(t, nil, func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) })
	var refuse atomic.Bool
	d := &dialer{fails: func(address string) error {
		if strings.HasSuffix(has, address) && refuse.CompareAndSwap(true, false) {
			return syscall.ECONNREFUSED
		}
		return nil
	}}
	// One that is asked how it is comes back, unless that is in an hour.
	for every, want := range map[time.Duration]int{20 * time.Millisecond: 0, time.Hour: http.StatusServiceUnavailable} {
		refuse.Store(false)
		e := start(t, upstream.Config{URLs: upstream.URLs{Both: []string{has, lacks}}, Every: every, Wait: map[bool]time.Duration{true: clocktest.Patience}[want == 0], Dial: d.dial})
		for range 10 { // a question for its health may take the failure
			refuse.Store(true)
			_, err := serve(t, e, `{"model":"sql","prompt":"x"}`, 1<<20)
			var api *openai.Error
			if errors.As(err, &api); want == 0 && err != nil || want > 0 && (api == nil || api.Status != want || !strings.Contains(api.Message, "LoRA adapter sql")) {
				t.Errorf("asked every %v: %v", every, err)
			}
		}
	}
}

// TestBrokenPrefill: a prefill engine whose KV no decode engine can read is at fault, and not each decode engine in turn; nor is
// it taken for good because its own answers are.
func TestBrokenPrefill(t *testing.T) {
	prefill := func(w http.ResponseWriter, body string) {
		fmt.Fprintf(w, `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":%q}}`, w.Header().Get("X-Own"))
	}
	own := func(name string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, body string) { w.Header().Set("X-Own", name); prefill(w, body) }
	}
	decode := func(w http.ResponseWriter, body string) {
		if strings.Contains(body, `"remote_engine_id":"bad"`) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, answered)
	}
	bad := engine(t, nil, own("bad"))
	u := upstream.URLs{Prefill: []string{bad, engine(t, nil, own("good"))}}
	for range 3 {
		u.Decode = append(u.Decode, engine(t, nil, decode))
	}
	e := start(t, upstream.Config{URLs: u, Every: time.Hour, MaxRetries: 2})
	for range 40 {
		if _, err := serve(t, e, `{"prompt":"x"}`, 1<<20); err != nil {
			t.Error(err)
		}
	}
	of := resting(e)
	if !slices.Contains(of, strings.TrimPrefix(bad, "http://")) {
		t.Errorf("it is not in quarantine: %v", of)
	}
	for _, url := range append(u.Decode, u.Prefill[1]) {
		if slices.Contains(of, strings.TrimPrefix(url, "http://")) {
			t.Errorf("%s is, which is in order: %v", url, of)
		}
	}
}

// TestNoFiles: that the proxy has no file or port left for a connection is no engine's fault. Its clients are told what is.
func TestNoFiles(t *testing.T) {
	for _, fault := range []error{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		var full atomic.Bool
		var asked atomic.Int32
		d := &dialer{fails: func(string) error {
			if full.Load() {
				asked.Add(1)
				return fault
			}
			return nil
		}}
		ok := func(w http.ResponseWriter, _ string) { fmt.Fprint(w, answered) }
		e := start(t, upstream.Config{URLs: upstream.URLs{Both: []string{engine(t, nil, ok), engine(t, nil, ok)}}, Every: 10 * time.Millisecond, MaxRetries: 2, Dial: d.dial})
		full.Store(true)
		for range 10 {
			_, err := serve(t, e, `{"prompt":"x"}`, 1<<20)
			var api *openai.Error
			if !errors.As(err, &api) || api.Status != http.StatusServiceUnavailable || api.Code != "no_connection" || api.RetryAfter != 1 || !strings.Contains(api.Message, "ulimit -n") || !errors.Is(err, fault) {
				t.Fatalf("%v: %+v", fault, err)
			}
		}
		before := asked.Load()
		clocktest.Until(t, "each has been asked how it is, in vain", func() bool { return asked.Load() > before+8 })
		for _, s := range e.States() {
			if !s.Up {
				t.Errorf("%v: %s counts as down", fault, s.ID)
			}
		}
		if of := resting(e); of != nil {
			t.Errorf("%v: %v are in quarantine", fault, of)
		}
		full.Store(false)
		if _, err := serve(t, e, `{"prompt":"x"}`, 1<<20); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// TestAnswersInBudget: an event that does not end, and what decoding an answer takes, are in the memory for answers.
func TestAnswersInBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		stream bool
		text   string
		status int
	}{
		"an event without end": {true, "data: " + strings.Repeat("x", 3<<20), http.StatusServiceUnavailable},
		"many choices":         {false, `{"choices":[` + strings.Repeat("{},", 100<<10) + `{}]}`, http.StatusServiceUnavailable},
		"a long text":          {false, `{"choices":[{"finish_reason":"stop","text":"` + strings.Repeat("x", 300<<10) + `"}]}`, 0},
	} {
		e := start(t, upstream.Config{Every: time.Hour, URLs: upstream.URLs{Both: []string{engine(t, nil, func(w http.ResponseWriter, _ string) {
			if tc.stream {
				w.Header().Set("Content-Type", "text/event-stream")
			}
			_, _ = io.WriteString(w, tc.text)
		})}}})
		_, err := serve(t, e, fmt.Sprintf(`{"prompt":"x","stream":%v}`, tc.stream), 2<<20)
		var api *openai.Error
		if errors.As(err, &api); tc.status == 0 && err != nil || tc.status > 0 && (api == nil || api.Status != tc.status || api.Code != "no_memory") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStalledWithinTimeout: where requests have less than 30 s, an engine that hangs, or that sends bytes and no event, is left in
// time for another one, and put into quarantine. So it is with answers that do not stream, if its metrics count tokens.
func TestStalledWithinTimeout(t *testing.T) {
	for _, s := range []upstreamtest.Setting{
		{Seed: 1, Mode: "alone", Op: "hang", At: "d0", Stream: true, Times: 1000},
		{Seed: 2, Mode: "alone", Op: "bytes", At: "d0", Stream: true, Times: 1000},
		{Seed: 3, Mode: "alone", Op: "comments", At: "d0", Stream: true, Times: 1000},
		{Seed: 4, Mode: "pull", Op: "hang", At: "p0", Stream: true, Times: 1000},
		{Seed: 5, Mode: "layerwise", Op: "hang", At: "d0", Stream: true, Times: 1000},
		{Seed: 6, Mode: "alone", Op: "hang", At: "d0", Times: 1000},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &upstreamtest.Net{Engines: s.Engines(rand.New(rand.NewPCG(1, 1)))}
			n.Engines[s.At].First = true
			e, err := upstream.New(upstream.Config{
				URLs: urlsOf(s, func(name string) string { return "http://" + name + ":1" }), Together: true, Alone: true, Placement: placement.RoundRobin, MaxRetries: 2,
				Every: time.Second, Timeout: 10 * time.Second, Clock: clock.Std(), Logger: slog.New(slog.DiscardHandler), Listens: func() string { return "127.0.0.1:1" }, Dial: n.Dial,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running, clients sync.WaitGroup
			running.Go(func() { e.Run(ctx) })
			upstreamtest.Pass(100 * time.Millisecond)
			for i := range 37 {
				clients.Go(func() {
					o, answer, want := ask(t, e, s, i)
					if text, _, _ := upstreamtest.TextOf(answer, s.Stream); o.err != nil || text != want || o.took > 8*time.Second {
						t.Errorf("%v, request %d: %v after %v", s, i, o.err, o.took)
					}
				})
				upstreamtest.Pass(500 * time.Millisecond)
			}
			clients.Wait()
			if of := resting(e); !slices.Equal(of, []string{s.At + ":1"}) {
				t.Errorf("%v: in quarantine are %v", s, of)
			}
			cancel()
			running.Wait()
			n.Served.Wait()
		})
	}
}
