// Package otlptest is an OpenTelemetry collector in memory, for tests of what exports
// spans.
package otlptest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otel "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Collector keeps all spans that are posted to it. Answer, if it is set, may answer in
// its place: it returns a status, and 200 is the collector's own.
type Collector struct {
	URL    string // for traces
	Answer func() int

	mu    sync.Mutex
	spans []Span
}

// A Span is one that came in.
type Span struct {
	*otel.Span
	Service string
}

// New starts a collector, which ends with the test.
func New(t testing.TB) *Collector {
	c := &Collector{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.Answer != nil {
			if status := c.Answer(); status != http.StatusOK {
				w.WriteHeader(status)
				return
			}
		}
		if r.URL.Path != "/v1/traces" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s of %s", r.Method, r.URL, r.Header.Get("Content-Type"))
		}
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		text, err := io.ReadAll(body)
		if err != nil {
			t.Error(err)
			return
		}
		var all collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(text, &all); err != nil {
			t.Errorf("no OTLP: %v", err)
			return
		}
		c.add(&all)
	}))
	t.Cleanup(server.Close)
	c.URL = server.URL + "/v1/traces"
	return c
}

func (c *Collector) add(all *collector.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range all.ResourceSpans {
		service, _ := value(r.Resource.Attributes, "service.name").(string)
		for _, scope := range r.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{s, service})
			}
		}
	}
}

// Spans are those that came so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// TraceID is the span's trace, in hex.
func (s Span) TraceID() string { return hex.EncodeToString(s.TraceId) }

// ID is the span's own id, in hex, and Parent its parent's.
func (s Span) ID() string { return hex.EncodeToString(s.SpanId) }

// Parent is the id of its parent, in hex; empty of a root.
func (s Span) Parent() string { return hex.EncodeToString(s.ParentSpanId) }

// Value is an attribute's: a string, an int64, a float64, a bool, a list of strings, or nil.
func (s Span) Value(key string) any { return value(s.Attributes, key) }

func value(attributes []*common.KeyValue, key string) any {
	for _, a := range attributes {
		if a.Key != key {
			continue
		}
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			return v.StringValue
		case *common.AnyValue_IntValue:
			return v.IntValue
		case *common.AnyValue_DoubleValue:
			return v.DoubleValue
		case *common.AnyValue_BoolValue:
			return v.BoolValue
		case *common.AnyValue_ArrayValue:
			var all []string
			for _, one := range v.ArrayValue.Values {
				all = append(all, one.GetStringValue())
			}
			return all
		}
	}
	return nil
}
