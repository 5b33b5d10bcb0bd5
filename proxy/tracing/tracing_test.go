package tracing_test

import (
	"net/http"
	"testing"
	"time"

	"kvferry/internal/otlp"
	"kvferry/internal/otlp/otlptest"
	"kvferry/proto"
	"kvferry/proxy/tracing"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

func open(t testing.TB) (*tracing.Traces, *otlptest.Collector) {
	t.Helper()
	c := otlptest.New(t)
	traces, err := tracing.New(c.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return traces, c
}

func header(parent string) http.Header { return http.Header{"Traceparent": {parent}} }

// served is a request with a second of everything, at a parent.
func served(p *tracing.Parent, choices int) tracing.Request {
	r := tracing.Request{
		Parent: p, ID: "r", Model: "m", Streams: true, MaxTokens: 9, Ended: time.Unix(1100, 0), E2E: 20 * time.Second,
		Input: 100, Cached: 10, Output: 9,
	}
	for range choices {
		r.Choices = append(r.Choices, tracing.Choice{
			Finish: "length", First: 8 * time.Second, Last: 15 * time.Second, Proxy: time.Second,
			Breakdown:  &proto.Breakdown{ProxyUs: 1e6, QueueUs: 1e6, PrefillUs: 2e6, PostUs: 1e6, WireUs: 1e6, LandUs: 1e6, FirstDecodeUs: 1e6, KvBytes: 77},
			DecodeNode: "d", PrefillNode: "p", Retries: 1,
		})
	}
	return r
}

// TestSpans: a request's spans, below the client's.
func TestSpans(t *testing.T) {
	traces, c := open(t)
	p := traces.Parent(header("00-" + traceID + "-" + spanID + "-01"))
	traces.Served(served(p, 1))
	if counts := traces.Close(t.Context()); counts != (otlp.Counts{Exported: 7}) {
		t.Fatalf("%+v", counts)
	}
	spans := c.Spans()
	root := spans[0]
	if root.TraceID() != traceID || root.Parent() != spanID || root.Name != "text_completion m" || root.Kind.String() != "SPAN_KIND_SERVER" || root.Service != "kvferry" ||
		root.StartTimeUnixNano != 1080e9 || root.EndTimeUnixNano != 1100e9 || len(root.Events) != 1 || root.Events[0].TimeUnixNano != 1088e9 {
		t.Errorf("%v", root)
	}
	for key, want := range map[string]any{
		"gen_ai.latency.e2e": 20.0, "gen_ai.latency.time_to_first_token": 8.0, "gen_ai.server.time_to_first_token": 8.0, "gen_ai.latency.time_in_queue": 1.0,
		"gen_ai.latency.time_in_model_prefill": 2.0, "gen_ai.latency.time_in_model_decode": 7.0, "gen_ai.usage.input_tokens": int64(100),
		"gen_ai.usage.cache_read.input_tokens": int64(10), "kvferry.prefill_node": "p", "kvferry.decode_node": "d", "kvferry.retries": int64(1),
	} {
		if got := root.Value(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for i, want := range []struct {
		name     string
		from, to uint64 // seconds since the beginning
	}{{"proxy", 0, 2}, {"queue", 2, 3}, {"prefill", 3, 5}, {"transfer", 5, 8}, {"first decode", 8, 9}, {"decode", 8, 15}} {
		s := spans[i+1]
		if s.Name != want.name || s.Parent() != root.ID() || s.TraceID() != traceID || s.StartTimeUnixNano != (1080+want.from)*1e9 || s.EndTimeUnixNano != (1080+want.to)*1e9 {
			t.Errorf("want %+v: %v", want, s)
		}
	}
	if s := spans[4]; s.Value("kvferry.wire") != 1.0 || s.Value("kvferry.kv_bytes") != int64(77) {
		t.Errorf("%v", s)
	}
}

// TestChoices: of several answers each has a span and its parts below it; parts that are
// longer than the request, as of several attempts, end with it; what was 0 is left out.
func TestChoices(t *testing.T) {
	traces, c := open(t)
	r := served(traces.Parent(http.Header{}), 2)
	r.Choices[1].Breakdown = &proto.Breakdown{PrefillUs: 60e6}
	r.Choices[1].First, r.Choices[1].Last = 0, 0
	r.Failure, r.ErrorType = "node lost", "node_lost"
	traces.Served(r)
	traces.Close(t.Context())
	spans := c.Spans()
	if len(spans) != 1+7+3 {
		t.Fatalf("%d spans", len(spans))
	}
	root, second := spans[0], spans[8]
	if root.Parent() != "" || root.TraceID() == "" || root.Status.Message != "node lost" || root.Value("error.type") != "node_lost" {
		t.Errorf("%v", root)
	}
	if second.Name != "choice 1" || second.Parent() != root.ID() || spans[9].Parent() != second.ID() {
		t.Errorf("%v", second)
	}
	if prefill := spans[10]; prefill.Name != "prefill" || prefill.EndTimeUnixNano != root.EndTimeUnixNano {
		t.Errorf("%v", prefill)
	}
}

// TestParents: who is traced.
func TestParents(t *testing.T) {
	traces, _ := open(t)
	defer traces.Close(t.Context())
	for parent, want := range map[string]bool{
		"00-" + traceID + "-" + spanID + "-01": true,
		"00-" + traceID + "-" + spanID + "-00": false, // it does not sample
		"":                                     true,
		"garbage":                              true, // as if it had none
		"00-00000000000000000000000000000000-" + spanID + "-01": true,
	} {
		if p := traces.Parent(header(parent)); (p != nil) != want {
			t.Errorf("%q: %v", parent, p)
		}
	}
	var off *tracing.Traces
	h := header("00-" + traceID + "-" + spanID + "-01")
	if n := testing.AllocsPerRun(100, func() {
		if off.Parent(h) != nil {
			t.Error("a span of a proxy that traces nothing")
		}
	}); n != 0 {
		t.Errorf("%v allocations of nothing", n)
	}
	off.Close(t.Context())
}

func FuzzParent(f *testing.F) {
	f.Add("00-"+traceID+"-"+spanID+"-01", "a=b")
	f.Add("ff-"+traceID+"-"+spanID+"-01-extra", "")
	traces, _ := open(f)
	f.Fuzz(func(t *testing.T, parent, state string) {
		p := traces.Parent(http.Header{"Traceparent": {parent}, "Tracestate": {state}})
		if p != nil {
			traces.Served(served(p, 1))
		}
	})
}

func BenchmarkServed(b *testing.B) {
	traces, _ := open(b)
	r := served(traces.Parent(header("00-"+traceID+"-"+spanID+"-01")), 1)
	b.ReportAllocs()
	for b.Loop() {
		traces.Served(r)
	}
}
