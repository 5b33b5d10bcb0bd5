// Package tracing gives each request that a proxy has served its spans, and sends them to an
// OpenTelemetry collector.
//
//	text_completion MODEL   from the request's head to the end of its answer; event: first token
//	├─ proxy                HTTP, tokens, the hop to the node
//	├─ queue                waiting for a scheduler
//	├─ prefill              in prefill steps
//	├─ transfer             KV: post, wire, land, as attributes in seconds
//	├─ first decode         from usable KV to the next token
//	└─ decode               from the first token to the last
//
// Its parent is the span that the client named (W3C's traceparent); without one the trace is
// the request's own. A client that says it does not sample gets no span.
//
// The request and decode are at the times that the proxy saw. Of the other parts the
// nodes say how long they took, not when, summed over all attempts: their spans are laid end to
// end from the request's beginning, in the order of its life, none past its end. A hand-off that
// moves KV while the prompt is computed overlaps in truth, and not in the picture; the
// durations are right.
//
// Attributes are the semantic conventions' for generative AI, the latencies under the names
// that vLLM gives them (gen_ai.latency.*, seconds), and kvferry's own.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"kvferry/internal/otlp"
	"kvferry/internal/version"
	"kvferry/proto"
)

// Traces are those of one proxy. A nil one traces nothing. Its methods may be called from
// several goroutines.
type Traces struct{ exporter *otlp.Exporter }

// New sends spans to an endpoint; failed is told when it takes no more.
func New(endpoint string, failed func(error)) (*Traces, error) {
	e, err := otlp.New(context.Background(), otlp.Config{Endpoint: endpoint, Service: "kvferry", Version: version.String(), Failed: failed})
	if err != nil {
		return nil, err
	}
	return &Traces{e}, nil
}

// A Parent is what a client said of its trace.
type Parent struct{ span trace.SpanContext }

// Parent reads a request's header; it is nil if the request gets no span.
func (t *Traces) Parent(h http.Header) *Parent {
	if t == nil {
		return nil
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h))
	p := trace.SpanContextFromContext(ctx)
	if p.IsValid() && !p.IsSampled() {
		return nil
	}
	return &Parent{p}
}

// A Request is one that has ended.
type Request struct {
	Parent    *Parent // not nil
	ID        string
	Model     string
	Chat      bool
	Streams   bool
	MaxTokens int
	Ended     time.Time
	E2E       time.Duration // from its head to Ended
	Failure   string        // why it failed; empty if it did not
	ErrorType string        // its code
	Input     int           // tokens, of each prompt once
	Cached    int           // of these, found in a cache
	Output    int           // tokens, of all choices
	Choices   []Choice      // one at least
}

// A Choice is one of its answers. Times are since the request's head.
type Choice struct {
	Finish      string
	First, Last time.Duration // when the first and the last token came; 0 of none
	Proxy       time.Duration // the proxy's own part, beside the breakdown's
	Breakdown   *proto.Breakdown
	PrefillNode string
	DecodeNode  string
	Retries     int
}

// Served sends a request's spans, without waiting.
func (t *Traces) Served(r Request) {
	begun := r.Ended.Add(-r.E2E)
	g := otlp.Generation{
		Chat: r.Chat, Model: r.Model, Provider: "kvferry", RequestID: r.ID, MaxTokens: r.MaxTokens, Streams: r.Streams,
		InputTokens: r.Input, CachedTokens: r.Cached, OutputTokens: r.Output, ErrorType: r.ErrorType, Finish: r.Choices[0].Finish,
	}
	root := otlp.Span{Context: otlp.Child(r.Parent.span), Parent: r.Parent.span, Name: g.Name(), Kind: trace.SpanKindServer, Start: begun, End: r.Ended, Error: r.Failure}
	first := time.Duration(0)
	for i := range r.Choices {
		c := &r.Choices[i]
		if c.First > 0 && (first == 0 || c.First < first) {
			first = c.First
		}
	}
	root.Attributes = append(g.Attributes(), seconds("gen_ai.latency.e2e", r.E2E))
	if first > 0 {
		root.Attributes = append(root.Attributes, seconds("gen_ai.latency.time_to_first_token", first), seconds("gen_ai.server.time_to_first_token", first))
		root.Events = []otlp.Event{{Name: "first token", At: begun.Add(first)}}
	}
	spans := make([]otlp.Span, 1, 1+7*len(r.Choices))
	if len(r.Choices) == 1 {
		root.Attributes = append(root.Attributes, r.Choices[0].attributes()...)
		spans = r.Choices[0].parts(spans, root.Context, begun, r.E2E)
	} else {
		for i := range r.Choices {
			c := &r.Choices[i]
			s := internal(root.Context, fmt.Sprintf("choice %d", i), begun, 0, r.E2E)
			s.Attributes = c.attributes()
			spans = c.parts(append(spans, s), s.Context, begun, r.E2E)
		}
	}
	spans[0] = root
	t.exporter.Export(spans...)
}

// attributes are a choice's latencies and where it was.
func (c *Choice) attributes() []attribute.KeyValue {
	b := c.Breakdown
	all := []attribute.KeyValue{
		seconds("gen_ai.latency.time_in_queue", micros(b.QueueUs)), seconds("gen_ai.latency.time_in_model_prefill", micros(b.PrefillUs)),
		attribute.String("kvferry.decode_node", c.DecodeNode), attribute.Int("kvferry.retries", c.Retries),
	}
	if c.PrefillNode != "" {
		all = append(all, attribute.String("kvferry.prefill_node", c.PrefillNode))
	}
	if c.Last > c.First {
		all = append(all, seconds("gen_ai.latency.time_in_model_decode", c.Last-c.First))
	}
	return all
}

// parts adds the spans of a choice's parts below a parent that took so long.
func (c *Choice) parts(spans []otlp.Span, parent trace.SpanContext, begun time.Time, took time.Duration) []otlp.Span {
	b := c.Breakdown
	at := time.Duration(0)
	for _, part := range []struct {
		name string
		took time.Duration
	}{
		{"proxy", micros(b.ProxyUs) + c.Proxy},
		{"queue", micros(b.QueueUs)},
		{"prefill", micros(b.PrefillUs)},
		{"transfer", micros(b.PostUs) + micros(b.WireUs) + micros(b.LandUs)},
		{"first decode", micros(b.FirstDecodeUs)},
	} {
		if part.took == 0 {
			continue
		}
		s := internal(parent, part.name, begun, min(at, took), min(at+part.took, took))
		at += part.took
		if part.name == "transfer" {
			s.Attributes = []attribute.KeyValue{
				seconds("kvferry.post", micros(b.PostUs)), seconds("kvferry.wire", micros(b.WireUs)), seconds("kvferry.land", micros(b.LandUs)),
				attribute.Int64("kvferry.kv_bytes", int64(b.KvBytes)), attribute.Int64("kvferry.kv_blocks_checked", int64(b.KvBlocksChecked)),
				attribute.Int64("kvferry.kv_blocks_bad", int64(b.KvBlocksBad)),
			}
		}
		spans = append(spans, s)
	}
	if c.Last > c.First {
		spans = append(spans, internal(parent, "decode", begun, c.First, min(c.Last, took)))
	}
	return spans
}

// internal is a span below another, from and to a time since the request began.
func internal(parent trace.SpanContext, name string, begun time.Time, from, to time.Duration) otlp.Span {
	return otlp.Span{Context: otlp.Child(parent), Parent: parent, Name: name, Kind: trace.SpanKindInternal, Start: begun.Add(from), End: begun.Add(to)}
}

func micros(us uint32) time.Duration { return time.Duration(us) * time.Microsecond }

func seconds(key string, d time.Duration) attribute.KeyValue {
	return attribute.Float64(key, d.Seconds())
}

// Counts are what became of spans so far.
func (t *Traces) Counts() otlp.Counts { return t.exporter.Counts() }

// Close sends what is left, until ctx is done, and says what became of all. A nil one has
// nothing to do.
func (t *Traces) Close(ctx context.Context) otlp.Counts {
	if t == nil {
		return otlp.Counts{}
	}
	return t.exporter.Close(ctx)
}

// spansWait is how long the last spans may take to a collector that is slow, when the proxy
// ends.
const spansWait = 3 * time.Second

// End sends the spans of the last requests, and says if any were lost.
func (t *Traces) End(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), spansWait)
	defer cancel()
	if counts := t.Close(ctx); counts.Dropped > 0 {
		log.Warn("traces: " + counts.String())
	}
}
