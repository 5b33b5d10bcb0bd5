// Package otlp sends spans that are over to an OpenTelemetry collector, by OTLP over
// HTTP. What a span says is known when its request has ended, from a record or a
// breakdown, so spans are made then, with times and ids of the past; nothing is begun, held
// or passed around while a request is served.
//
//	a request ended ──▶ its spans, one group ──▶ queue, bounded ──▶ batches ──▶ POST /v1/traces
//	                                              └▶ full: dropped, counted
//
// The library's tracer makes the spans, from ids that are given to it, so that their form on the
// wire is the library's; its own processor is not used, as it would sample, queue and count apart
// from what is promised here.
//
// An Exporter owns one goroutine and the connections to the collector, until Close. Spans that
// were handed to Export are its own.
//
// [Exporter.Export] never waits. What finds the queue full, and what the collector did not
// take, counts as dropped; [Exporter.Close] and [Exporter.Counts] say how many.
//
// Headers, certificates and compression are those of the variables that every OTLP exporter
// reads (OTEL_EXPORTER_OTLP_HEADERS and so on), and OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES say more of who sends.
package otlp

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"kvferry/internal/config"
)

const (
	queue = 4096             // groups of spans: 1,000 requests/s for 4 s, some 10 MB
	batch = 512              // spans a POST; the default of OTel's batch processor
	pause = 2 * time.Second  // the longest that a span waits for others
	retry = 10 * time.Second // a batch is tried for so long, if the collector is busy
)

// Config says where spans go.
type Config struct {
	// Endpoint is the collector's URL for traces. Its path is /v1/traces if it has none.
	Endpoint string
	Service  string // service.name, unless OTEL_SERVICE_NAME says another
	Version  string // service.version
	// Failed is told when the collector takes no more, and again after it did; it is called
	// from a goroutine of the exporter's. It may be nil.
	Failed func(error)
}

// Validate lists what is wrong with it as config.Faults do.
func (c Config) Validate() error {
	var f config.Faults
	f.Check("Endpoint", CheckEndpoint(c.Endpoint))
	return f.Err("otlp.Config")
}

// CheckEndpoint says what is wrong with a collector's URL; nil if nothing is.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q: write the collector's URL for OTLP over HTTP, without a user, like http://127.0.0.1:4318/v1/traces; OTEL_EXPORTER_OTLP_HEADERS has keys", config.Public(endpoint))
	}
	return nil
}

// Endpoint is the URL for traces that a flag or, without one, the environment names: that of
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT as it is, or that of OTEL_EXPORTER_OTLP_ENDPOINT with
// /v1/traces behind it, as OpenTelemetry's specification has it. It is empty if nobody
// names one: nothing is exported then.
func Endpoint(flag string) string {
	if flag != "" {
		return flag
	}
	if e := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); e != "" {
		return e
	}
	if e := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"); e != "" {
		return strings.TrimSuffix(e, "/") + "/v1/traces"
	}
	return ""
}

// A Span is one that is over. Its ids are chosen by its maker ([Child]): a client's request
// carries them in its header (W3C traceparent) before the span exists.
type Span struct {
	Context    trace.SpanContext // its own ids
	Parent     trace.SpanContext // of the same trace; none of a root
	Name       string
	Kind       trace.SpanKind
	Start, End time.Time // by the wall clock: collectors set spans of several machines side by side
	Attributes []attribute.KeyValue
	Events     []Event
	Error      string // what went wrong; empty if nothing did
}

// An Event is a moment of a span, such as its first token.
type Event struct {
	Name string
	At   time.Time
}

// Counts are what became of spans. What is neither exported nor dropped is still in the queue.
type Counts struct {
	Exported int64 // the collector took them
	Dropped  int64 // the queue was full, or the collector did not take them
	LastErr  error // the last reason why it did not
}

// An Exporter sends spans. Its methods may be called from several goroutines; Close is the
// last.
type Exporter struct {
	client    sdk.SpanExporter
	transport *http.Transport
	tracer    trace.Tracer
	failed    func(error)

	spans chan []Span
	stop  chan struct{}
	done  chan struct{}
	ctx   context.Context // of exports; ended when Close has no more time
	end   context.CancelFunc

	exported, dropped atomic.Int64
	mu                sync.Mutex
	lastErr           error
	failing           bool // the last batch did not get through

	made []sdk.ReadOnlySpan // by the tracer, of the batch; the goroutine's alone
}

// New starts an exporter. The error is that of Validate, or of the environment's
// certificates.
func New(ctx context.Context, c Config) (*Exporter, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	u, _ := url.Parse(c.Endpoint) // Validate has done it without an error
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	transport, err := newTransport()
	if err != nil {
		return nil, err
	}
	client, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithHTTPClient(&http.Client{Transport: transport, Timeout: timeout}),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: 200 * time.Millisecond, MaxInterval: 2 * time.Second, MaxElapsedTime: retry}))
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	who := resource.NewSchemaless(attribute.String("service.name", c.Service), attribute.String("service.version", c.Version))
	if who, err = resource.Merge(who, resource.Environment()); err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	e := &Exporter{client: client, transport: transport, failed: c.Failed, spans: make(chan []Span, queue), stop: make(chan struct{}), done: make(chan struct{})}
	// Not ctx's child: that is of whoever starts it, and what is queued when it ends is still sent.
	e.ctx, e.end = context.WithCancel(context.Background())
	provider := sdk.NewTracerProvider(sdk.WithResource(who), sdk.WithIDGenerator(given{}), sdk.WithSampler(sdk.AlwaysSample()), sdk.WithSpanProcessor(collect{e}))
	e.tracer = provider.Tracer("kvferry")
	go e.run()
	return e, nil
}

// Export takes the spans of a request. It never waits: they are dropped if the queue is
// full.
func (e *Exporter) Export(spans ...Span) {
	select {
	case e.spans <- spans:
	default:
		e.dropped.Add(int64(len(spans)))
	}
}

// Counts are those so far.
func (e *Exporter) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Counts{Exported: e.exported.Load(), Dropped: e.dropped.Load(), LastErr: e.lastErr}
}

// Close sends what is queued, until ctx is done, and says what became of all spans. No
// Export may follow.
func (e *Exporter) Close(ctx context.Context) Counts {
	close(e.stop)
	select {
	case <-e.done:
	case <-ctx.Done():
		e.end()
		<-e.done
	}
	e.end()
	_ = e.client.Shutdown(context.Background())
	e.transport.CloseIdleConnections()
	return e.Counts()
}

// run makes batches until it is stopped, and then of what is left. It alone calls the collector: a
// slow one fills the queue and holds up nobody.
func (e *Exporter) run() {
	defer close(e.done)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case group := <-e.spans:
			if e.add(group); len(e.made) >= batch {
				e.send()
			}
		case <-tick.C:
			e.send()
		case <-e.stop:
			for len(e.spans) > 0 {
				if e.add(<-e.spans); len(e.made) >= batch {
					e.send()
				}
			}
			e.send()
			return
		}
	}
}

// add makes spans of a group, and with that the tracer's processor adds them to made.
func (e *Exporter) add(group []Span) {
	for _, s := range group {
		ctx := trace.ContextWithRemoteSpanContext(context.WithValue(e.ctx, idKey{}, s.Context), s.Parent)
		_, span := e.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Start), trace.WithSpanKind(s.Kind), trace.WithAttributes(s.Attributes...))
		for _, event := range s.Events {
			span.AddEvent(event.Name, trace.WithTimestamp(event.At))
		}
		if s.Error != "" {
			span.SetStatus(codes.Error, s.Error)
		}
		span.End(trace.WithTimestamp(s.End))
	}
}

// send sends the batch; the library tries again for as long as retry. Failed is told of the first
// batch that is lost after one that was not, so that a collector that is down for an hour is one
// line of a log.
func (e *Exporter) send() {
	n := int64(len(e.made))
	if n == 0 {
		return
	}
	err := e.client.ExportSpans(e.ctx, e.made)
	e.made = e.made[:0]
	e.mu.Lock()
	first := err != nil && !e.failing
	if e.failing = err != nil; e.failing {
		e.lastErr = err
		e.dropped.Add(n)
	} else {
		e.exported.Add(n)
	}
	e.mu.Unlock()
	if first && e.failed != nil {
		e.failed(err)
	}
}

// collect is the tracer's processor: it keeps what has ended. It runs within span.End, and so in
// run's goroutine.
type collect struct{ *Exporter }

func (collect) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (c collect) OnEnd(s sdk.ReadOnlySpan)                 { c.made = append(c.made, s) }
func (collect) Shutdown(context.Context) error             { return nil }
func (collect) ForceFlush(context.Context) error           { return nil }

// given gives spans the ids that they have: the tracer asks it, with the context in which add put
// them.
type given struct{}

type idKey struct{}

func (given) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(idKey{}).(trace.SpanContext)
	return c.TraceID(), c.SpanID()
}

func (g given) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, id := g.NewIDs(ctx)
	return id
}

// String says what became of the spans, for a report or a log.
func (c Counts) String() string {
	text := fmt.Sprintf("%d spans exported", c.Exported)
	if c.Dropped > 0 {
		text += fmt.Sprintf(", %d dropped", c.Dropped)
		if c.LastErr != nil {
			text += ": " + c.LastErr.Error()
		} else {
			text += ": they came faster than the collector took them"
		}
	}
	return text
}
