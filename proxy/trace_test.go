package proxy

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/otlp/otlptest"
	"kvferry/proto"
)

// traced posts a completion with a client's trace context and returns the answer's status.
func (c *testCluster) traced(body, parent string) int {
	c.t.Helper()
	r := c.request(c.t.Context(), "/v1/completions", body)
	if parent != "" {
		r.Header.Set("traceparent", parent)
	}
	resp, err := c.client.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode
}

// TestTraces: a stream, a whole answer and several choices have their spans, below the
// client's where it named one; a client that does not sample has none.
func TestTraces(t *testing.T) {
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	collector := otlptest.New(t)
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name, OTLPTracesEndpoint: collector.URL})
	c.addPair()
	for body, parent := range map[string]string{
		`{"prompt":[1,2],"max_tokens":3,"stream":true}`: "00-" + traceID + "-" + spanID + "-01",
		`{"prompt":"hello world","max_tokens":4}`:       "",
		`{"prompt":"hello world","max_tokens":5}`:       "00-" + traceID + "-" + spanID + "-00",
		`{"prompt":"hello world","max_tokens":6,"n":2}`: "",
	} {
		if status := c.traced(body, parent); status != http.StatusOK {
			t.Fatalf("%s: %d", body, status)
		}
	}
	roots := map[int64]otlptest.Span{} // by max_tokens
	children := map[string][]string{}  // names by parent
	c.poll("the spans of three requests", func() bool {
		clear(roots)
		clear(children)
		for _, s := range collector.Spans() {
			if s.Kind.String() == "SPAN_KIND_SERVER" {
				max, _ := s.Value("gen_ai.request.max_tokens").(int64)
				roots[max] = s
			} else {
				children[s.Parent()] = append(children[s.Parent()], s.Name)
			}
		}
		return len(roots) == 3
	})
	s := roots[3]
	if s.TraceID() != traceID || s.Parent() != spanID || s.Name != "text_completion test-model" || s.Service != "kvferry" || len(s.Events) != 1 ||
		s.Value("gen_ai.response.id") != "req-1" || s.Value("gen_ai.usage.input_tokens") != int64(2) || s.Value("gen_ai.usage.output_tokens") != int64(3) ||
		s.Value("kvferry.prefill_node") != "prefill-1" || s.Value("kvferry.decode_node") != "decode-1" || s.Value("gen_ai.latency.time_in_model_prefill") != 0.0002 ||
		s.Value("gen_ai.request.stream") != true {
		t.Errorf("%v", s)
	}
	if ttft, e2e := s.Value("gen_ai.latency.time_to_first_token").(float64), s.Value("gen_ai.latency.e2e").(float64); ttft <= 0 || ttft > e2e ||
		int64(e2e*1e9+0.5) != int64(s.EndTimeUnixNano-s.StartTimeUnixNano) {
		t.Errorf("TTFT %v of %v, %v", ttft, e2e, s)
	}
	// The fake nodes' tokens may come at one moment, and decode is no span then.
	if names := strings.Join(children[s.ID()], ","); strings.TrimSuffix(names, ",decode") != "proxy,queue,prefill,transfer,first decode" {
		t.Errorf("parts of a stream: %s", names)
	}
	if s := roots[4]; s.Parent() != "" || s.TraceID() == traceID || s.Value("gen_ai.request.stream") != false {
		t.Errorf("%v", s)
	}
	if s := roots[6]; s.Value("gen_ai.usage.output_tokens") != int64(12) || strings.Join(children[s.ID()], ",") != "choice 0,choice 1" {
		t.Errorf("%v has %v", s, children[s.ID()])
	}
	c.poll("counts of spans in /metrics", func() bool {
		_, body := c.get("/metrics")
		return strings.Contains(body, "kvferry:spans_dropped_total 0\n") && strings.Contains(body, "\nkvferry:spans_exported_total ") &&
			!strings.Contains(body, "kvferry:spans_exported_total 0\n")
	})
}

// logBuffer is a log for several goroutines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestTracesRefused: a collector that takes nothing costs requests nothing, and the log and
// /metrics say so.
func TestTracesRefused(t *testing.T) {
	collector := otlptest.New(t)
	collector.Answer = func() int { return http.StatusForbidden }
	log := &logBuffer{}
	c := newTestCluster(t, Config{OTLPTracesEndpoint: collector.URL, Logger: slog.New(slog.NewTextHandler(log, nil))})
	c.addPair()
	if status := c.traced(`{"prompt":"hello world","max_tokens":3}`, ""); status != http.StatusOK {
		t.Fatal(status)
	}
	c.poll("a warning", func() bool { return strings.Contains(log.String(), "takes no spans") })
	if _, body := c.get("/metrics"); strings.Contains(body, "kvferry:spans_dropped_total 0\n") {
		t.Error("no dropped spans in /metrics")
	}
}

// TestTracesOff: without a collector nothing is kept of a request and /metrics has no
// counts of spans.
func TestTracesOff(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	if status := c.traced(`{"prompt":"hello world","max_tokens":3}`, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"); status != http.StatusOK {
		t.Fatal(status)
	}
	if _, body := c.get("/metrics"); strings.Contains(body, "kvferry:spans") {
		t.Error("counts of spans in /metrics")
	}
	if err := (Config{OTLPTracesEndpoint: "localhost:4317"}).Validate(); err == nil || !strings.Contains(err.Error(), "proxy.Config.OTLPTracesEndpoint: ") {
		t.Error(err)
	}
}

// BenchmarkStreamTraced is BenchmarkStream with spans for a collector in this process, whose
// cost it has too: what tracing costs a request of 128 tokens at most.
func BenchmarkStreamTraced(b *testing.B) {
	const concurrency, tokens = 32, 128
	collector := otlptest.New(b)
	stop := make(chan struct{})
	defer close(stop)
	c := newTestCluster(b, Config{OTLPTracesEndpoint: collector.URL})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, batchNode(0, stop))
	benchmarkStreams(b, c.proxy.HTTPAddr(), concurrency, tokens)
}
