// Package clienttest is a server to test clients on: it answers as vLLM does, without a
// model.
package clienttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
)

// A Server answers /v1/completions as vLLM does and counts KV as kvferry's
// proxy does. Fields are set before the first request; Behave may replace an
// answer.
type Server struct {
	*httptest.Server
	KVBytes   int64 // per request; 0 is a non-disaggregated server
	Metrics   bool
	Info      string // the answer to GET /server_info; none if empty
	CountMore int64  // what the proxy counts beyond the answers
	Behave    func(w http.ResponseWriter, r *http.Request, req *Completion) (handled bool)
	Unhealthy atomic.Int32 // GET /health fails this many times
	Asked     func()       // called by each GET /health

	mu     sync.Mutex
	seen   []Completion
	served int64
}

// A Completion is a request as it came.
type Completion struct {
	Model         string   `json:"model"`
	Prompt        []uint32 `json:"prompt"`
	MaxTokens     int      `json:"max_tokens"`
	IgnoreEOS     bool     `json:"ignore_eos"`
	Stream        bool     `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	ReturnBreakdown bool   `json:"return_breakdown"`
	ID              string `json:"-"`
}

// NewServer starts f; it ends with the test.
func NewServer(t *testing.T, f *Server) *Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if f.Asked != nil {
			f.Asked()
		}
		if f.Unhealthy.Add(-1) >= 0 {
			http.Error(w, `{"error":{"message":"no prefill node"}}`, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"fake-7b","object":"model","root":"fake-7b","max_model_len":10000}]}`)
	})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		if f.Info == "" {
			http.NotFound(w, nil)
			return
		}
		fmt.Fprint(w, f.Info)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		if !f.Metrics {
			http.NotFound(w, nil)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(w, "# TYPE kvferry:kv_bytes_total counter\nkvferry:kv_bytes_total{model_name=\"fake-7b\"} %g\n", float64(f.served*(f.KVBytes+f.CountMore)))
		fmt.Fprintf(w, "kvferry:kv_blocks_checked_total{model_name=\"fake-7b\"} %d\nkvferry:kv_blocks_bad_total 0\n", f.served*2)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		req := Completion{ID: r.Header.Get("X-Request-Id")}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		f.seen = append(f.seen, req)
		f.served++
		f.mu.Unlock()
		if f.Behave == nil || !f.Behave(w, r, &req) {
			f.Stream(w, &req, req.MaxTokens)
			fmt.Fprint(w, "data: [DONE]\n\n")
		}
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

// Stream sends tokens and the usage chunk, one flushed event each.
func (f *Server) Stream(w http.ResponseWriter, req *Completion, tokens int) {
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
		len(req.Prompt), tokens, len(req.Prompt)+tokens, f.KVBytes)
}

// Requests are those that came so far.
func (f *Server) Requests() []Completion {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}
