package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/proxy/upstream"
)

// fakeEngine is a server that speaks as vLLM does, and fails as its script says.
type fakeEngine struct {
	*httptest.Server
	ill    atomic.Bool
	broken atomic.Value  // what goes wrong with every POST /tokenize: "stall", or a status
	offers string        // kv_transfer_params of a prompt that it computes
	says   string        // a field more in the last event, or in an answer that does not stream
	report string        // what it posts to a report_url before its first token; empty: nothing
	query  atomic.Value  // what its connector says of itself, as a text
	hold   chan struct{} // it goes on with a request of the fault "hold" when that is closed
	cached int           // prompt tokens that it had, by its account
	gone   chan struct{} // gets one for each request whose client left it while it stalled

	mu     sync.Mutex
	script []string // what goes wrong with the next requests, "" for nothing; then nothing does
	seen   []seenRequest
	sent   string // the last answer, byte by byte
}

type seenRequest struct {
	header http.Header
	text   string
	fields map[string]any
}

const fakeOffer = `{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[3, 4]], "remote_engine_id": "p", "remote_host": "10.0.0.2", "remote_port": 5600, "tp_size": 1}`

// newFakeEngine serves until the test ends. A nil list of faults is an engine that is not there.
func newFakeEngine(t testing.TB, script ...string) *fakeEngine {
	f := &fakeEngine{script: script, offers: fakeOffer, gone: make(chan struct{}, 100), hold: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if f.ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object": "list", "data": [{"id": "org/real", "object": "model", "owned_by": "vllm", "max_model_len": 4096}, {"id": "sql", "object": "model", "owned_by": "vllm", "root": "/adapters/sql", "parent": "org/real", "max_model_len": null}]}`)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"sql\",waiting_lora_adapters=\"\"} 1.79e+09\n")
	})
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, _ *http.Request) {
		text, ok := f.query.Load().(string)
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, text)
	})
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch fault, _ := f.broken.Load().(string); fault {
		case "":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"count": %d}`, len(body))
		case "stall":
			<-r.Context().Done()
		default:
			status, _ := strconv.Atoi(fault)
			w.WriteHeader(status)
			fmt.Fprint(w, "scripted ", fault)
		}
	})
	mux.HandleFunc("POST /v1/", f.generate)
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

// next is what goes wrong with the request that came.
func (f *fakeEngine) next(r *http.Request) (fault string, s seenRequest) {
	body, _ := io.ReadAll(r.Body)
	s = seenRequest{header: r.Header, text: string(body)}
	_ = json.Unmarshal(body, &s.fields)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, s)
	if len(f.script) > 0 {
		fault, f.script = f.script[0], f.script[1:]
	}
	return fault, s
}

// requests are those that came.
func (f *fakeEngine) requests() []seenRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// answered is the last answer.
func (f *fakeEngine) answered() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

func (f *fakeEngine) generate(w http.ResponseWriter, r *http.Request) {
	fault, s := f.next(r)
	status := 0
	switch _, _ = fmt.Sscanf(fault, "%d", &status); {
	case status > 0:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error": {"message": "scripted %d", "type": "X", "param": null, "code": %d}}`, status, status)
		return
	case fault == "text 500":
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
		return
	case fault == "cut":
		panic(http.ErrAbortHandler)
	case fault == "stall":
		<-r.Context().Done()
		f.gone <- struct{}{}
		return
	case fault == "hold":
		select {
		case <-f.hold:
		case <-r.Context().Done():
			f.gone <- struct{}{}
			return
		}
	}
	if fault == "other" {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html>")
		return
	}
	tokens := 3
	if n, ok := s.fields["max_tokens"].(float64); ok {
		tokens = int(n)
	}
	choices := 1
	if prompts, ok := s.fields["prompt"].([]any); ok {
		if _, ids := prompts[0].(float64); !ids {
			choices = len(prompts)
		}
	}
	if n, ok := s.fields["n"].(float64); ok {
		choices *= int(n)
	}
	answer := ""
	write := func(text string) {
		answer += text
		f.mu.Lock()
		f.sent = answer
		f.mu.Unlock()
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
	}
	params := ""
	offer, _ := s.fields["kv_transfer_params"].(map[string]any)
	if url, ok := offer["report_url"].(string); ok && f.report != "" {
		if resp, err := http.Post(url, "application/json", strings.NewReader(f.report)); err == nil {
			resp.Body.Close()
		}
	}
	if offer["do_remote_decode"] == true && fault != "no offer" {
		params = `, "kv_transfer_params": ` + f.offers
	}
	id := "cmpl-" + r.Header.Get("X-Request-Id") // as vLLM calls its answers
	usage := fmt.Sprintf(`{"prompt_tokens": 5, "total_tokens": %d, "completion_tokens": %d, "prompt_tokens_details": {"cached_tokens": %d}}`, 5+tokens, tokens, f.cached)
	if s.fields["stream"] != true {
		w.Header().Set("Content-Type", "application/json")
		var all []string
		for i := range choices {
			all = append(all, fmt.Sprintf(`{"index": %d, "text": " whole", "finish_reason": "length"}`, i))
		}
		write(fmt.Sprintf(`{"id": %q, "object": "text_completion", "model": "org/real", "choices": [%s], "usage": %s%s%s}`,
			id, strings.Join(all, ", "), usage, params, f.says))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // as vLLM: the head is there before the first token
	switch fault {
	case "die first":
		panic(http.ErrAbortHandler)
	case "error first":
		write("data: {\"error\": {\"message\": \"KV load failed\", \"code\": 500}}\n\n")
		write("data: [DONE]\n\n")
		return
	case "stall first":
		<-r.Context().Done()
		f.gone <- struct{}{}
		return
	}
	if strings.HasPrefix(r.URL.Path, "/v1/chat") {
		write("data: {\"id\":\"" + id + "\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":null}]}\n\n")
	}
	for i := range tokens {
		finish := "null"
		if i == tokens-1 {
			finish = `"length"`
		}
		for index := range choices {
			write(fmt.Sprintf("data: {\"id\":%q,\"choices\":[{\"index\":%d,\"text\":\" t%d\",\"logprobs\":null,\"finish_reason\":%s}],\"usage\":null}\n\n", id, index, i, finish))
		}
		switch {
		case i > 0:
		case fault == "die":
			panic(http.ErrAbortHandler)
		case fault == "error":
			write("data: {\"error\": {\"message\": \"engine died\", \"code\": 500}}\n\n")
			return
		case fault == "stall after":
			<-r.Context().Done()
			f.gone <- struct{}{}
			return
		}
	}
	if options, _ := s.fields["stream_options"].(map[string]any); options["include_usage"] == true || f.says != "" {
		write("data: {\"id\":\"" + id + "\",\"choices\":[],\"usage\":" + usage + f.says + "}\n\n")
	}
	if fault != "no done" {
		write("data: [DONE]\n\n")
	}
	if fault == "die last" {
		panic(http.ErrAbortHandler)
	}
}

// urls are the engines' addresses.
func urls(engines ...*fakeEngine) (all []string) {
	for _, f := range engines {
		all = append(all, f.URL)
	}
	return all
}

// newTestEngines starts a proxy of engines, and waits until those of them are up that are well.
func newTestEngines(t testing.TB, cfg Config, engines upstream.URLs, tune ...func(*Proxy)) *testCluster {
	t.Helper()
	cfg.Upstreams = engines
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = 60 * time.Millisecond
	}
	c := newTestCluster(t, cfg, tune...)
	clocktest.Until(t, "every engine has been asked", func() bool {
		for _, s := range c.proxy.engines.States() {
			if s.Model == "" || !s.Up {
				return false
			}
		}
		return true
	})
	return c
}

// newTestPair is a proxy of one prefill and one decode engine.
func newTestPair(t testing.TB, cfg Config, p, d *fakeEngine) *testCluster {
	t.Helper()
	return newTestEngines(t, cfg, upstream.URLs{Prefill: urls(p), Decode: urls(d)})
}
