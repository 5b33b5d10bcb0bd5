package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/internal/config"
	"kvferry/internal/otlp"
	"kvferry/load"
	"kvferry/proxy/serverinfo"
	"kvferry/tokenizer"
)

// Asking says how servers are asked.
type Asking struct {
	client.Config
	// Ready is how long the server may take to answer first, and then to answer each request by which
	// is found out what it accepts (Config.First). Default 1 min.
	Ready time.Duration
	Needs client.Needs // what the load has that a server may not take
	// Collector is the URL of an OpenTelemetry collector that gets a span for each request, empty
	// for none. Trace context is sent with each request in any case.
	Collector string
	// Metrics are the URLs of the engines' pages of metrics, where URL is that of a gateway which
	// has none of them. Default: /metrics of the servers that are asked.
	Metrics []string
	// Flush has the servers empty their prefix caches before each load, after the warm-up. Wait
	// is how long one may wait until it has no requests. Default 60 s, as SGLang's client has it.
	Flush bool
	Wait  time.Duration
}

// Server is one that somebody else started, or several that are alike.
func Server(how Asking) Target { return &server{how: how} }

// server asks at a URL. From Open to Close it owns a client with its connections.
type server struct {
	how    Asking
	client *client.Client
	model  string
	// Of the run that goes on. The client is made before the first run and asks for trace context
	// in goroutines of its own, hence the atomic pointer.
	traces atomic.Pointer[requestTraces]
	accept client.Accepts
	spans  otlp.Counts // of the last run
}

// Open waits until the server answers, finds out by trial what it accepts, and asks what it is. All
// of that is before the load: a request of the load is never the one that finds out.
func (s *server) Open(ctx context.Context) (f Facts, err error) {
	cfg := s.how.Config
	cfg.Trace = func(r *client.Record) string {
		if t := s.traces.Load(); t != nil {
			return t.Parent(r.Index)
		}
		return ""
	}
	patience := cmp.Or(s.how.Ready, time.Minute)
	cfg.First = patience
	s.client = client.New(cfg)
	ready, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it did not answer within %v (--ready-check-timeout-sec)", patience))
	s.model, err = s.client.Ready(ready)
	cancel()
	switch {
	case errors.As(err, new(*config.Fault)) || errors.As(err, new(*client.StatusError)):
		return Facts{}, err // it says why
	case err != nil:
		return Facts{}, fmt.Errorf("%w: is that where it listens (--base-url)?", err)
	}
	if err := s.tryMetrics(ctx); err != nil {
		return Facts{}, err
	}
	accepts, err := s.client.Probe(ctx, s.model, s.how.Needs)
	if err != nil {
		return Facts{}, err
	}
	s.accept = accepts
	info, err := s.client.ServerInfo(ctx)
	if err != nil {
		return Facts{}, err
	}
	at := cmp.Or(s.how.URL, strings.Join(s.how.URLs, " "))
	f = Facts{
		Clock: report.ClockReal, BaseURL: s.how.URL, Workers: s.how.URLs, Model: s.model,
		Backend: accepts.Backend, Endpoint: pathOf(accepts.Endpoint), Accepts: &accepts,
		Label: "measured: the server at " + at + " (it does not say what it is)",
	}
	f.Scrape = func(ctx context.Context) *observe.Scrape {
		return observe.StartScrape(ctx, s.client.HTTP(), s.pages())
	}
	f.About = s.about
	f.Spans = func() otlp.Counts { return s.spans }
	if s.how.Flush {
		f.Flush = func(ctx context.Context) error { return s.flush(ctx, cmp.Or(s.how.Wait, time.Minute)) }
	}
	for _, r := range accepts.Refused {
		if r.Field == client.BreakdownField {
			continue // kvferry's own, which nobody asked for; Accepts has it
		}
		f.Notes = append(f.Notes, fmt.Sprintf("the server refuses %s, so it was not sent: %s", r.Field, r.Reason))
	}
	f.Notes = append(f.Notes, accepts.Notes...)
	if info != nil {
		f.Vocab = info.Vocab
		compute := serverinfo.Measured
		if !info.Engines() {
			compute, f.Tokenizer = serverinfo.Modelled, s.tokenizer
		}
		f.Label = "measured at " + at + ": compute " + compute + ", " + info.Describe(func(text string) serverinfo.Link { return serverinfo.Link{Name: text, Native: text == "native"} })
	}
	return f, nil
}

// pages are where metrics are. A key is for the server that it was given for: others that are
// named get none of the header.
func (s *server) pages() (list []observe.MetricsPage) {
	var servers []string // each once: its counts would be added up
	for _, at := range s.client.Pages("/metrics") {
		if !slices.ContainsFunc(servers, func(of string) bool { return observe.SamePage(of, at) }) {
			servers = append(servers, at)
		}
	}
	for _, at := range s.how.Metrics {
		public, user := config.Credentials(at)
		p := observe.MetricsPage{URL: public}
		if user != "" {
			p.Header = http.Header{"Authorization": {user}}
		} else if slices.ContainsFunc(servers, func(of string) bool { return observe.SameServer(of, at) }) {
			p.Header = s.client.Header()
		}
		list = append(list, p)
	}
	if len(list) == 0 {
		for _, at := range servers {
			list = append(list, observe.MetricsPage{URL: at, Header: s.client.Header()})
		}
	}
	return list
}

// tryMetrics reads the pages that were named once before the load: that one cannot be read is a fault
// then, and not a note after the run. The servers' own /metrics nobody named, and they may be missing.
func (s *server) tryMetrics(ctx context.Context) error {
	if len(s.how.Metrics) == 0 {
		return nil
	}
	for _, p := range s.pages() {
		err := client.Again(ctx, func() error {
			_, err := observe.FetchMetrics(ctx, s.client.HTTP(), p.URL, p.Header)
			return err
		})
		if err != nil {
			return &config.Fault{Field: "Metrics", Err: fmt.Errorf("%q: it cannot be read: name the engine's page, or leave it out: %w", p.URL, err)}
		}
	}
	return nil
}

// about is what the server says of itself after a run, for SGLang's result: null where it has
// neither of the paths that SGLang has had for it, or says no JSON.
func (s *server) about(ctx context.Context) json.RawMessage {
	for _, path := range []string{"/server_info", "/get_server_info"} {
		if body, err := s.client.Get(ctx, path); err == nil && json.Valid(body) {
			return secretField.ReplaceAll(body, []byte(`$1"..."`))
		}
	}
	return nil
}

// secretField matches what SGLang says of its own keys: /server_info has all of its options.
var secretField = regexp.MustCompile(`("[a-z_]*(?:api_key|password|secret|auth_token|hf_token)[a-z_]*"\s*:\s*)"(?:[^"\\]|\\.)*"`)

// pathOf is the path of a URL.
func pathOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Path
}

// tokenizer is what a kvferry proxy counts tokens by. It serves the file.
func (s *server) tokenizer(ctx context.Context) (load.Tokenizer, error) {
	const path = "/tokenizer/tokenizer.json"
	body, err := s.client.Get(ctx, path)
	if err != nil {
		return nil, err
	}
	t, err := tokenizer.Parse(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return t, nil
}

// Run asks what the load says. Spans are made of records that are over, after the client has
// counted their time, and the last go to the collector after the run.
func (s *server) Run(ctx context.Context, l load.Load, done func(*client.Record)) (took time.Duration, err error) {
	t, err := newTraces(ctx, tracing{
		Endpoint: s.how.Collector, URL: cmp.Or(append([]string{s.how.URL}, s.how.URLs...)...), Model: s.model, Provider: provider(s.accept.Backend),
		Chat: s.accept.Prompt == client.PromptChat, Streams: s.accept.Stream,
	})
	if err != nil {
		return 0, err
	}
	s.traces.Store(t)
	took, err = s.client.Run(ctx, s.model, l, func(r *client.Record) {
		t.Record(r)
		done(r)
	})
	s.traces.Store(nil)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), spansWait)
	defer cancel()
	s.spans = t.Close(limited)
	return took, err
}

// spansWait is how long the last spans of a run may take to the collector.
const spansWait = 10 * time.Second

// provider is whose API a backend is, as OpenTelemetry's gen_ai.provider.name has it.
func provider(backend string) string {
	if strings.HasPrefix(backend, "sglang") {
		return "sglang"
	}
	return "openai"
}

func (s *server) Close() error {
	if s.client != nil {
		s.client.Close()
	}
	return nil
}

// A Cluster is one that was started for a run.
type Cluster interface {
	URL() string   // of its proxy
	Pids() []int   // of its processes, for the CPU time that they took
	Label() string // what is measured and what is modelled
	Close() error
}

// Own is a cluster that start starts, asked as cfg says at its URL. words are what it is.
func Own(start func(context.Context) (Cluster, error), words string, how Asking) Target {
	return &own{start: start, words: words, server: server{how: how}}
}

// own is a server whose URL is known once its cluster has started. It owns the cluster until Close.
type own struct {
	server
	start   func(context.Context) (Cluster, error)
	words   string
	cluster Cluster // nil if it did not start
}

func (o *own) Open(ctx context.Context) (f Facts, err error) {
	if o.cluster, err = o.start(ctx); err != nil {
		return Facts{}, err
	}
	o.how.URL = o.cluster.URL()
	if f, err = o.server.Open(ctx); err != nil {
		return Facts{}, err
	}
	f.Label, f.Cluster, f.Pids, f.Here = o.cluster.Label(), o.words, o.cluster.Pids(), true
	return f, nil
}

func (o *own) Close() error {
	err := o.server.Close()
	if o.cluster != nil {
		err = errors.Join(err, o.cluster.Close())
	}
	return err
}
