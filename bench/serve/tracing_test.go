package serve

import (
	"context"
	"regexp"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/internal/otlp"
	"kvferry/internal/otlp/otlptest"
)

func openTraces(t testing.TB, c tracing) *requestTraces {
	t.Helper()
	traces, err := newTraces(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

var traceparent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-01$`)

// TestParents: each request has a context of its own, the same whenever it is asked for,
// and another run has others.
func TestParents(t *testing.T) {
	a, b := openTraces(t, tracing{}), openTraces(t, tracing{})
	traces, spans := map[string]bool{}, map[string]bool{}
	const n = 10000
	for i := range n {
		for _, run := range []*requestTraces{a, b} {
			m := traceparent.FindStringSubmatch(run.Parent(i))
			if m == nil || run.Parent(i) != m[0] || run.Context(i).TraceID().String() != m[1] || !run.Context(i).IsValid() {
				t.Fatalf("%d: %s", i, run.Parent(i))
			}
			traces[m[1]], spans[m[2]] = true, true
		}
	}
	if len(traces) != 2*n || len(spans) != 2*n {
		t.Errorf("%d traces and %d spans of %d", len(traces), len(spans), 2*n)
	}
}

// TestRecords: the spans of a run's records, with the ids that were sent.
func TestRecords(t *testing.T) {
	c := otlptest.New(t)
	begun := time.Now()
	run := openTraces(t, tracing{Endpoint: c.URL, URL: "http://server:8000/v1", Model: "m", Provider: "openai", Streams: true})
	late := &client.Record{
		Index: 0, RequestID: "r-0", Intended: 1, Sent: 1.5, FirstToken: 2, TokenTimes: []float64{2, 2.5}, Finish: 2.6, FinishReason: "stop",
		MaxTokens: 5, Status: client.StatusOK, Usage: &client.Usage{PromptTokens: 11, CompletionTokens: 2}, Adapter: "lora-1", Group: "g", Worker: "https://other",
	}
	failed := &client.Record{Index: 7, Intended: 4, Sent: 4, Finish: 5.6, Status: client.StatusFailed, Error: "status 503", MaxTokens: 5}
	run.Record(failed) // as it ends: the run began 5.6 s ago
	run.Record(late)   // 3 s after its end
	run.Record(&client.Record{Index: 8, Skipped: true})
	if counts := run.Close(t.Context()); counts != (otlp.Counts{Exported: 2}) {
		t.Fatalf("%+v", counts)
	}
	ended := time.Now()
	spans := c.Spans()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	f, s := spans[0], spans[1]
	if s.TraceID() != run.Context(0).TraceID().String() || s.ID() != run.Context(0).SpanID().String() || s.Parent() != "" || s.Service != "kvferry-bench" ||
		s.Name != "text_completion lora-1" || s.Kind.String() != "SPAN_KIND_CLIENT" || len(s.Events) != 1 || s.Status.Message != "" {
		t.Errorf("%v", s)
	}
	if took := s.EndTimeUnixNano - s.StartTimeUnixNano; took < 1.0999e9 || took > 1.1001e9 || s.Events[0].TimeUnixNano-s.StartTimeUnixNano != 5e8 {
		t.Errorf("took %d, first token after %d", took, s.Events[0].TimeUnixNano-s.StartTimeUnixNano)
	}
	if at := time.Unix(0, int64(f.EndTimeUnixNano)); at.Before(begun.Add(-time.Microsecond)) || at.After(ended) {
		t.Errorf("ended at %v, and the run from %v to %v", at, begun, ended)
	}
	for key, want := range map[string]any{
		"server.address": "other", "server.port": int64(443), "gen_ai.usage.input_tokens": int64(11), "gen_ai.usage.output_tokens": int64(2),
		"gen_ai.response.time_to_first_chunk": 0.5, "gen_ai.response.id": "r-0", "kvferry.index": int64(0), "kvferry.queue_time": 0.5, "kvferry.send_delay": 0.5,
		"kvferry.group": "g", "error.type": nil,
	} {
		if got := s.Value(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if f.Status.Message != "status 503" || f.Value("error.type") != client.StatusFailed || len(f.Events) != 0 || f.Value("server.address") != "server" || f.Value("gen_ai.usage.output_tokens") != nil {
		t.Errorf("%v", f)
	}
	if gap := int64(f.StartTimeUnixNano) - int64(s.StartTimeUnixNano); gap != int64(2500*time.Millisecond) {
		t.Errorf("%v between their starts", time.Duration(gap))
	}
}

// TestOff: without an endpoint nothing is made.
func TestOff(t *testing.T) {
	run := openTraces(t, tracing{})
	r := &client.Record{Sent: 1, Finish: 2}
	if n := testing.AllocsPerRun(100, func() { run.Record(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if counts := run.Close(t.Context()); counts != (otlp.Counts{}) {
		t.Errorf("%+v", counts)
	}
	if _, err := newTraces(t.Context(), tracing{Endpoint: "nowhere"}); err == nil {
		t.Error("an endpoint that is none")
	}
}

// BenchmarkRecord is what a request costs the run, with and without a collector.
func BenchmarkRecord(b *testing.B) {
	c := otlptest.New(b)
	r := &client.Record{Sent: 1, FirstToken: 1.2, TokenTimes: []float64{1.2, 1.3}, Finish: 2, Status: client.StatusOK, Usage: &client.Usage{}}
	for name, endpoint := range map[string]string{"off": "", "on": c.URL} {
		b.Run(name, func(b *testing.B) {
			run := openTraces(b, tracing{Endpoint: endpoint, URL: "http://127.0.0.1:8000", Model: "m"})
			b.ReportAllocs()
			for b.Loop() {
				run.Record(r)
			}
			b.StopTimer()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			run.Close(ctx)
		})
	}
}

func BenchmarkParent(b *testing.B) {
	run := openTraces(b, tracing{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		run.Parent(i)
	}
}
