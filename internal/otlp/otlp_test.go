package otlp_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"kvferry/internal/config"
	"kvferry/internal/otlp"
	"kvferry/internal/otlp/otlptest"
)

func open(t testing.TB, c otlp.Config) *otlp.Exporter {
	t.Helper()
	e, err := otlp.New(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// span is one of a name.
func span(name string) otlp.Span {
	return otlp.Span{Context: otlp.Child(trace.SpanContext{}), Name: name, Start: time.Unix(1000, 0), End: time.Unix(1001, 0)}
}

// deadline is generous: a test that needs it has failed.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestSpans: a span arrives as it was said: ids, times, kind, attributes, events, error.
func TestSpans(t *testing.T) {
	c := otlptest.New(t)
	e := open(t, otlp.Config{Endpoint: strings.TrimSuffix(c.URL, "/v1/traces"), Service: "kvferry"})
	root := otlp.Child(trace.SpanContext{})
	g := otlp.Generation{Model: "m", Provider: "openai", Address: "h", Port: 80, MaxTokens: 9, Streams: true, InputTokens: 5, OutputTokens: 7, CachedTokens: 2, Finish: "length", FirstChunk: 0.5}
	parent := otlp.Span{
		Context: root, Name: g.Name(), Kind: trace.SpanKindClient, Start: time.Unix(1000, 5), End: time.Unix(1001, 6),
		Attributes: append(g.Attributes(), attribute.Int("kvferry.index", 3)), Events: []otlp.Event{{Name: "first token", At: time.Unix(1000, 9)}},
	}
	child := otlp.Span{Context: otlp.Child(root), Parent: root, Name: "queue", Kind: trace.SpanKindInternal, Start: time.Unix(1000, 5), End: time.Unix(1000, 6), Error: "lost"}
	e.Export(parent, child)
	if counts := e.Close(deadline(t)); counts != (otlp.Counts{Exported: 2}) || counts.String() != "2 spans exported" {
		t.Errorf("%+v", counts)
	}
	spans := c.Spans()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	p, q := spans[0], spans[1]
	if p.TraceID() != root.TraceID().String() || p.ID() != root.SpanID().String() || p.Parent() != "" || p.Service != "kvferry" ||
		p.StartTimeUnixNano != 1000e9+5 || p.EndTimeUnixNano != 1001e9+6 || p.Name != "text_completion m" || p.Kind.String() != "SPAN_KIND_CLIENT" ||
		len(p.Events) != 1 || p.Events[0].Name != "first token" || p.Events[0].TimeUnixNano != 1000e9+9 || p.Status.Message != "" {
		t.Errorf("%v", p)
	}
	for key, want := range map[string]any{
		"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m", "server.address": "h", "server.port": int64(80),
		"gen_ai.request.max_tokens": int64(9), "gen_ai.request.stream": true, "gen_ai.usage.input_tokens": int64(5), "gen_ai.usage.output_tokens": int64(7),
		"gen_ai.usage.cache_read.input_tokens": int64(2), "gen_ai.response.time_to_first_chunk": 0.5, "kvferry.index": int64(3), "error.type": nil,
	} {
		if got := p.Value(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if finish, _ := p.Value("gen_ai.response.finish_reasons").([]string); len(finish) != 1 || finish[0] != "length" {
		t.Errorf("finish reasons %v", finish)
	}
	if q.TraceID() != p.TraceID() || q.Parent() != p.ID() || q.ID() == p.ID() || q.Status.Message != "lost" || q.Status.Code.String() != "STATUS_CODE_ERROR" {
		t.Errorf("%v", q)
	}
}

// TestMany: spans from several goroutines, in several batches, all arrive.
func TestMany(t *testing.T) {
	c := otlptest.New(t)
	e := open(t, otlp.Config{Endpoint: c.URL})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 300 {
				e.Export(span("a"), span("b"))
			}
		})
	}
	all.Wait()
	counts := e.Close(deadline(t))
	if counts.Exported != 2400 || counts.Dropped != 0 || len(c.Spans()) != 2400 {
		t.Errorf("%+v, %d arrived", counts, len(c.Spans()))
	}
}

// TestCollectorHangs: with a collector that does not answer, Export goes on without
// waiting, what is too much is dropped, and Close ends with its context. Every span is
// counted.
func TestCollectorHangs(t *testing.T) {
	c := otlptest.New(t)
	asked, release := make(chan struct{}, 1), make(chan struct{})
	c.Answer = func() int {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-release
		return http.StatusOK
	}
	e := open(t, otlp.Config{Endpoint: c.URL})
	const n = 20000
	for range n {
		e.Export(span("a"))
	}
	if e.Counts().Dropped == 0 {
		t.Error("nothing dropped")
	}
	<-asked
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	counts := e.Close(ctx)
	close(release)
	if counts.Exported != 0 || counts.Dropped != n || !strings.Contains(counts.String(), "20000 dropped") {
		t.Errorf("%v", counts)
	}
}

// TestCollectorRefuses: spans that it does not take are dropped and it is said once; later
// ones that it takes are exported.
func TestCollectorRefuses(t *testing.T) {
	c := otlptest.New(t)
	var broken atomic.Bool
	broken.Store(true)
	c.Answer = func() int {
		if broken.Load() {
			return http.StatusForbidden // one that is not tried again
		}
		return http.StatusOK
	}
	said := make(chan error, 10)
	e := open(t, otlp.Config{Endpoint: c.URL, Failed: func(err error) { said <- err }})
	for range 2048 { // two batches at least
		e.Export(span("a"))
	}
	if err := <-said; !strings.Contains(err.Error(), "403") {
		t.Error(err)
	}
	for e.Counts().Dropped < 2048 {
		select {
		case <-deadline(t).Done():
			t.Fatal("not dropped")
		case <-time.After(time.Millisecond):
		}
	}
	broken.Store(false)
	e.Export(span("b"))
	counts := e.Close(deadline(t))
	if counts.Exported != 1 || counts.Dropped != 2048 || len(said) != 0 || !strings.Contains(counts.String(), "403") || len(c.Spans()) != 1 {
		t.Errorf("%v, said %d times more", counts, len(said))
	}
}

func TestEndpoint(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	if e := otlp.Endpoint(""); e != "" {
		t.Errorf("%q out of nothing", e)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/")
	if e := otlp.Endpoint(""); e != "http://all:4318/v1/traces" {
		t.Error(e)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/mine")
	if e := otlp.Endpoint(""); e != "http://traces:4318/mine" {
		t.Error(e)
	}
	if e := otlp.Endpoint("http://flag"); e != "http://flag" {
		t.Error(e)
	}
	for _, bad := range []string{"", "localhost:4318", "grpc://localhost:4317", "http://", "://", "http://me:secret@localhost:4318"} {
		_, err := otlp.New(t.Context(), otlp.Config{Endpoint: bad})
		var invalid *config.Invalid
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "otlp.Config.Endpoint: ") || !strings.Contains(err.Error(), "4318") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestTLS: a collector with a certificate of its own is believed if the variable names it,
// and a header of another variable is sent along.
func TestTLS(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("api-key") }))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", file)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
	e := open(t, otlp.Config{Endpoint: server.URL})
	e.Export(span("a"))
	if counts := e.Close(deadline(t)); counts != (otlp.Counts{Exported: 1}) || <-asked != "secret" {
		t.Errorf("%+v", counts)
	}
	for name, value := range map[string]string{"CERTIFICATE": os.Args[0], "TRACES_CERTIFICATE": "/nowhere.pem", "CLIENT_CERTIFICATE": "/nowhere.pem"} {
		t.Setenv("OTEL_EXPORTER_OTLP_"+name, value)
		if _, err := otlp.New(t.Context(), otlp.Config{Endpoint: server.URL}); err == nil || !strings.Contains(err.Error(), "CERTIFICATE") {
			t.Errorf("%s: %v", name, err)
		}
		os.Unsetenv("OTEL_EXPORTER_OTLP_" + name)
	}
}

func TestHost(t *testing.T) {
	type host struct {
		address string
		port    int
	}
	for url, want := range map[string]host{"http://a:8000/v1": {"a", 8000}, "https://b": {"b", 443}, "http://[::1]/": {"::1", 80}, "://": {}} {
		address, port := otlp.Host(url)
		if got := (host{address, port}); got != want {
			t.Errorf("%s: %+v", url, got)
		}
	}
}

// BenchmarkExport is what a request pays.
func BenchmarkExport(b *testing.B) {
	c := otlptest.New(b)
	e := open(b, otlp.Config{Endpoint: c.URL})
	s := span("a")
	b.ReportAllocs()
	for b.Loop() {
		e.Export(s)
	}
	b.StopTimer()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e.Close(ctx)
}
