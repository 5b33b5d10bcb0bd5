package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/clock"
)

// fakeServer answers /v1/completions as vLLM does and counts KV as kvferry's
// proxy does. Fields are set before the first request; behave may replace an
// answer.
type fakeServer struct {
	*httptest.Server
	kvBytes   int64 // per request; 0 is a non-disaggregated server
	metrics   bool
	info      string // the answer to GET /server_info; none if empty
	countMore int64  // what the proxy counts beyond the answers
	behave    func(w http.ResponseWriter, r *http.Request, req *completionRequest) (handled bool)
	unhealthy atomic.Int32 // GET /health fails this many times
	asked     func()       // called by each GET /health

	mu     sync.Mutex
	seen   []completionRequest
	served int64
}

type completionRequest struct {
	Model         string `json:"model"`
	Prompt        []int  `json:"prompt"`
	MaxTokens     int    `json:"max_tokens"`
	IgnoreEOS     bool   `json:"ignore_eos"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	ReturnBreakdown bool   `json:"return_breakdown"`
	ID              string `json:"-"`
}

func newFakeServer(t *testing.T, f *fakeServer) *fakeServer {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if f.asked != nil {
			f.asked()
		}
		if f.unhealthy.Add(-1) >= 0 {
			http.Error(w, `{"error":{"message":"no prefill node"}}`, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"fake-7b","object":"model","root":"fake-7b","max_model_len":10000}]}`)
	})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		if f.info == "" {
			http.NotFound(w, nil)
			return
		}
		fmt.Fprint(w, f.info)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		if !f.metrics {
			http.NotFound(w, nil)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(w, "# TYPE kvferry:kv_bytes_total counter\nkvferry:kv_bytes_total{model_name=\"fake-7b\"} %g\n", float64(f.served*(f.kvBytes+f.countMore)))
		fmt.Fprintf(w, "kvferry:kv_blocks_checked_total{model_name=\"fake-7b\"} %d\nkvferry:kv_blocks_bad_total 0\n", f.served*2)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		req := completionRequest{ID: r.Header.Get("X-Request-Id")}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		f.seen = append(f.seen, req)
		f.served++
		f.mu.Unlock()
		if f.behave == nil || !f.behave(w, r, &req) {
			f.stream(w, &req, req.MaxTokens)
			fmt.Fprint(w, "data: [DONE]\n\n")
		}
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

// stream sends tokens and the usage chunk, one flushed event each.
func (f *fakeServer) stream(w http.ResponseWriter, req *completionRequest, tokens int) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for i := range tokens {
		finish := "null"
		if i == tokens-1 {
			finish = `"length"`
		}
		fmt.Fprintf(w, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" tok\",\"logprobs\":null,\"finish_reason\":%s}],\"usage\":null}\n\n", finish)
		w.(http.Flusher).Flush()
	}
	fmt.Fprintf(w, "data: {\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d},"+
		"\"breakdown\":{\"proxy_us\":1000,\"queue_us\":2000,\"prefill_us\":50000,\"wire_us\":4000,\"kv_bytes\":%d,\"kv_blocks_checked\":2,\"prefill_node\":\"p0\"}}\n\n",
		len(req.Prompt), tokens, len(req.Prompt)+tokens, f.kvBytes)
}

func (f *fakeServer) requests() []completionRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// fakeCluster hands out a server that is already there.
type fakeCluster struct {
	url      string
	closeErr error
	closed   *atomic.Int32
	asked    bool // the server says what it is
}

func (c fakeCluster) URL() string { return c.url }

func (c fakeCluster) Link() *Link {
	if c.asked {
		return nil
	}
	return &Link{Clock: "real", Compute: "modelled", Transfer: "measured", Label: "compute modelled, transfer measured"}
}

func (c fakeCluster) Close() error {
	if c.closed != nil {
		c.closed.Add(1)
	}
	return c.closeErr
}

func TestReady(t *testing.T) {
	var asked atomic.Int32
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	// The time is over once the second answer has been asked for again: until then the
	// server's reason may not have come.
	f := &fakeServer{asked: func() {
		if asked.Add(1) == 5 {
			cancel(errors.New("not ready within 60ms"))
		}
	}}
	f.unhealthy.Store(2)
	newFakeServer(t, f)
	c := NewClient(f.URL, time.Minute, clock.Precise())
	defer c.Close()
	model, err := c.Ready(ctx)
	if err != nil || model != "fake-7b" || asked.Load() != 3 {
		t.Fatalf("Ready = %q, %v, after asking %d times", model, err, asked.Load())
	}

	f.unhealthy.Store(1 << 30)
	_, err = c.Ready(ctx)
	if err == nil || !strings.Contains(err.Error(), "not ready within 60ms") || !strings.Contains(err.Error(), "no prefill node") {
		t.Fatalf("Ready of an unhealthy server = %v, want the deadline and the server's reason", err)
	}
}

func TestParseCounters(t *testing.T) {
	got := parseCounters([]byte("# HELP kvferry:kv_bytes_total x\n" +
		"kvferry:kv_bytes_total{model_name=\"a b}\",role=\"decode\"} 1.5e+03\n" +
		"kvferry:kv_bytes_total{model_name=\"b\"} 20 1700000000000\n" +
		"kvferry:kv_bytes_total_created 7\n" +
		"kvferry:kv_blocks_bad_total 0\nkvferry:kv_blocks_checked_total x\nkvferry:kv_blocks_checked_total{\nvllm:x 1\n"))
	if len(got) != 2 || got[kvBytesTotal] != 1520 || got[kvBadTotal] != 0 {
		t.Fatalf("counters = %v", got)
	}
	if parseCounters([]byte("vllm:num_requests_running 1\n")) != nil {
		t.Fatal("a server without KV counters must yield nil")
	}
}
