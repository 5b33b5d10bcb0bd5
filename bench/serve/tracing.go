package serve

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"kvferry/bench/client"
	"kvferry/internal/otlp"
	"kvferry/internal/version"
)

// A tracing configures the traces of a run.
type tracing struct {
	// Endpoint is the collector's, as otlp.Endpoint finds it. If it is empty contexts are
	// made, and no spans.
	Endpoint string
	URL      string // of the server that is asked
	Model    string // that it is asked for
	Provider string // whose API is spoken: "openai", "sglang"
	Chat     bool
	Streams  bool
}

// requestTraces give every request of a run a trace: a context that is sent with it
// (W3C's traceparent), so that the server's spans are of the same trace, and the client's
// own span, sent to an OpenTelemetry collector when the request is over.
//
//	kvferry-bench: text_completion MODEL   from sending to the end of the stream; event: first token
//	└─ the server's spans, of vLLM, SGLang, a gateway or kvferry's proxy
//
// A span is made of a request's record, so the run pays for a record's copy into a queue
// and no more, and nothing if nobody asked. Its attributes are the semantic conventions'
// for generative AI, and kvferry's own: kvferry.index, the record's place in the run, and
// in seconds kvferry.queue_time, which it waited at the client after it was due, and
// kvferry.send_delay, the part of it that is the client's own fault.
//
// Ids are drawn from one number a run, by a request's index: whoever has the record's
// trace id finds its trace.
//
// Its methods may be called from several goroutines.
type requestTraces struct {
	cfg      tracing
	exporter *otlp.Exporter // nil: contexts only
	seed     [2]uint64

	mu   sync.Mutex
	base time.Time // the run's start, by the wall clock: the least of what records say
}

// newTraces makes the traces of a run. The error is of an endpoint that cannot be one.
func newTraces(ctx context.Context, c tracing) (*requestTraces, error) {
	t := &requestTraces{cfg: c, seed: [2]uint64{rand.Uint64(), rand.Uint64()}}
	if c.Endpoint == "" {
		return t, nil
	}
	var err error
	t.exporter, err = otlp.New(ctx, otlp.Config{Endpoint: c.Endpoint, Service: "kvferry-bench", Version: version.String()})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Context is the span context of a request.
func (t *requestTraces) Context(index int) trace.SpanContext {
	// A generator of its own for each index, whose first three numbers are the ids.
	rng := rand.NewPCG(t.seed[0]^uint64(index), t.seed[1])
	var c trace.SpanContextConfig
	binary.BigEndian.PutUint64(c.TraceID[:8], rng.Uint64())
	binary.BigEndian.PutUint64(c.TraceID[8:], rng.Uint64()|1) // neither id may be 0
	binary.BigEndian.PutUint64(c.SpanID[:], rng.Uint64()|1)
	c.TraceFlags = trace.FlagsSampled
	return trace.NewSpanContext(c)
}

// Parent is the value of the header traceparent for a request.
func (t *requestTraces) Parent(index int) string {
	c := t.Context(index)
	traceID, spanID := c.TraceID(), c.SpanID()
	b := make([]byte, 0, 55)
	b = hex.AppendEncode(append(b, "00-"...), traceID[:])
	b = hex.AppendEncode(append(b, '-'), spanID[:])
	return string(append(b, "-01"...))
}

// Record sends the span of a request that is over, without waiting. It is to be called as
// soon as the request is: the run's start is told from that moment and the record's Finish,
// exact to what the fastest call takes.
func (t *requestTraces) Record(r *client.Record) {
	if t.exporter == nil || r.Skipped || r.Sent == 0 && r.Finish == 0 {
		return
	}
	base := time.Now().Add(-seconds(r.Finish))
	t.mu.Lock()
	if t.base.IsZero() || base.Before(t.base) {
		t.base = base
	}
	base = t.base
	t.mu.Unlock()
	t.exporter.Export(t.span(r, base))
}

// span is a record's. base is the run's start.
func (t *requestTraces) span(r *client.Record, base time.Time) otlp.Span {
	g := otlp.Generation{
		Chat: t.cfg.Chat, Model: t.cfg.Model, Provider: t.cfg.Provider, RequestID: r.RequestID, MaxTokens: r.MaxTokens, Streams: t.cfg.Streams,
		InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, Finish: r.FinishReason,
	}
	if r.Adapter != "" {
		g.Model = r.Adapter
	}
	if r.Usage != nil {
		g.InputTokens, g.OutputTokens = r.Usage.PromptTokens, r.Usage.CompletionTokens
	}
	server := t.cfg.URL
	if r.Worker != "" {
		server = r.Worker
	}
	g.Address, g.Port = otlp.Host(server)
	s := otlp.Span{
		Context: t.Context(r.Index), Name: g.Name(), Kind: trace.SpanKindClient,
		Start: base.Add(seconds(r.Sent)), End: base.Add(seconds(r.Finish)),
	}
	if r.FirstToken > 0 {
		g.FirstChunk = r.TTFT()
		s.Events = []otlp.Event{{Name: "first token", At: base.Add(seconds(r.FirstToken))}}
	}
	if r.Status != client.StatusOK {
		g.ErrorType, s.Error = r.Status, r.Error
	}
	s.Attributes = append(g.Attributes(), attribute.Int("kvferry.index", r.Index),
		attribute.Float64("kvferry.queue_time", r.Sent-r.Intended), attribute.Float64("kvferry.send_delay", r.Late()))
	if r.Group != "" {
		s.Attributes = append(s.Attributes, attribute.String("kvferry.group", r.Group))
	}
	return s
}

// Close sends what is left, until ctx is done, and says what became of all spans.
func (t *requestTraces) Close(ctx context.Context) otlp.Counts {
	if t.exporter == nil {
		return otlp.Counts{}
	}
	return t.exporter.Close(ctx)
}

// seconds is a time of a record.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
