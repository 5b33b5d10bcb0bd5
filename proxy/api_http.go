package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"kvferry/attempt"
	"kvferry/proxy/admission"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
)

// handler routes the HTTP API. A path that exists is answered 405 for another method, with
// what would do; the mux would do so by itself but not in OpenAI's form.
func (p *Proxy) handler() http.Handler {
	mux := http.NewServeMux()
	if p.engines != nil {
		p.serveEngines(mux)
	} else {
		p.serveNodes(mux)
	}
	for _, path := range []string{"/health", "/ping", "/health_generate"} { // the last is SGLang's, which generates a token there
		mux.HandleFunc("GET "+path, p.whenReady(func(http.ResponseWriter, *http.Request, members.Cluster) error { return nil }))
	}
	mux.HandleFunc("GET /version", serveVersion)
	mux.HandleFunc("GET /server_info", p.serveServerInfo)
	mux.HandleFunc("GET /get_server_info", p.serveServerInfo)
	mux.Handle("GET /metrics", p.metrics.Handler())
	for _, method := range []string{http.MethodGet, http.MethodPost} { // SGLang takes both
		mux.HandleFunc(method+" /start_profile", orError(p.serveStartProfile))
		mux.HandleFunc(method+" /stop_profile", orError(p.serveStopProfile))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { wire.Nothing(w, r, mux) })
	return timedHandler{p, mux}
}

// serveNodes adds what nodes answer to the API.
func (p *Proxy) serveNodes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { p.serveGeneration(w, r, completions) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { p.serveGeneration(w, r, chats) })
	mux.HandleFunc("POST /generate", func(w http.ResponseWriter, r *http.Request) { p.serveGeneration(w, r, native) })
	mux.HandleFunc("GET /v1/models", p.whenReady(p.serveModels))
	p.adapters.Serve(mux)
	mux.HandleFunc("GET /tokenizer/{file}", orError(p.serveTokenizer))
	mux.HandleFunc("GET /v1/models/{id...}", p.whenReady(p.serveModel))
	mux.HandleFunc("GET /model_info", p.whenReady(p.serveModelInfo))
	mux.HandleFunc("GET /get_model_info", p.whenReady(p.serveModelInfo))
	mux.HandleFunc("POST /tokenize", orError(p.serveTokenize))
	mux.HandleFunc("POST /detokenize", orError(p.serveDetokenize))
	mux.HandleFunc("GET /flush_cache", orError(p.serveFlushCache))
	mux.HandleFunc("POST /flush_cache", orError(p.serveFlushCache))
	mux.HandleFunc("POST /reset_prefix_cache", orError(p.serveResetPrefixCache))
}

// orError is the handler of an endpoint that answers, or returns the error that the client gets.
func orError(serve func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := serve(w, r); err != nil {
			wire.Error(w, wire.ErrorOf(err))
		}
	}
}

// whenReady is orError for an endpoint that answers only if a request would be served now. Clients wait for the list of
// models until it is there, and take an empty one for ready.
func (p *Proxy) whenReady(serve func(http.ResponseWriter, *http.Request, members.Cluster) error) http.HandlerFunc {
	return orError(func(w http.ResponseWriter, r *http.Request) error {
		if err := p.Ready(); err != nil {
			return err
		}
		c, _ := p.nodes.info()
		return serve(w, r, c)
	})
}

// serveGeneration is every endpoint that generates. Its frame is under every request that
// waits for a whole answer, and a few hundred bytes more would keep each at a stack of 16
// KiB instead of 8: what only prepares or answers is in functions of its own.
func (p *Proxy) serveGeneration(w http.ResponseWriter, r *http.Request, a api) {
	// TTFT and all deadlines count from here, not from when the body is read or a place free.
	x := &exchange{proxy: p, api: a, requestID: wire.RequestID(r), accepted: p.clock.Now()}
	w.Header().Set("X-Request-Id", x.requestID)
	if err := p.accept(x, w, r); err != nil {
		p.refuse(w, x.requestID, err)
		return
	}
	var err error
	if x.events != nil {
		if err = p.serveStream(w, r, x); err == nil {
			return // another goroutine has x and the connection
		}
	}
	defer p.leave(x) // what accept has admitted
	if err == nil {
		err = p.serveWhole(w, r, x)
	}
	if p.finish(w, x, err) {
		panic(http.ErrAbortHandler) // net/http's way to break the connection
	}
}

// serveWhole serves a request that is answered at its end.
func (p *Proxy) serveWhole(w http.ResponseWriter, r *http.Request, x *exchange) error {
	ctx, cancel := x.deadline(r.Context(), w)
	defer cancel()
	if err := x.run(ctx); err != nil {
		return err
	}
	return x.write(w)
}

// accept reads and checks a request, readies its flights and admits it. A full or
// draining proxy says so before it reads the body; a request takes a place in the
// queue only once it is whole: places taken before the body were all held by 4,096
// clients that sent one byte each, and 20 of 20 others got 429.
//
// An error means that the request was not admitted: the caller answers it by refuse and does
// not call leave.
func (p *Proxy) accept(x *exchange, w http.ResponseWriter, r *http.Request) error {
	if err := p.room(); err != nil {
		return err
	}
	body, err := p.readBody(w, r)
	if err != nil {
		return err
	}
	defer func() {
		if x.body == nil {
			body.Release() // x.req keeps none of its bytes
		}
	}()
	cluster, ok := p.cluster()
	if !ok {
		if err := p.hold(x, 1); err != nil {
			return err
		}
		defer func() { _ = p.hold(x, -x.early) }()
		ctx, cancel := x.within(r.Context(), p.cfg.RequestTimeout) // what the request itself says is read when its model is known
		defer cancel()
		if err := p.awaitNodes(ctx); errors.Is(err, context.Canceled) {
			return fmt.Errorf("%w: %w", attempt.ClientGone, err)
		} else if err != nil {
			return err
		}
		cluster, _ = p.cluster()
	}
	if err := p.parse(r.Context(), func() (err error) {
		if x.req, err = x.api.parse(body.Bytes, p.model(cluster)); err == nil {
			x.created = time.Now()
			x.metrics = p.metrics.Model(p.servedName(cluster))
			x.prepare()
		}
		return err
	}); err != nil {
		return err
	}
	if err := p.admit(x); err != nil {
		return err
	}
	if x.api.held != nil {
		x.body = body
		body.Keep(x.api.held())
	}
	x.parent = p.traces.Parent(r.Header)
	if c := admission.ConnectionOf(r); c != nil {
		p.connections.Running(c)
	}
	return nil
}

// deadline is the request's context, and the connection's deadline for writing: a request has
// the shorter of what it and the configuration say.
func (x *exchange) deadline(parent context.Context, w http.ResponseWriter) (context.Context, context.CancelFunc) {
	timeout := x.proxy.cfg.RequestTimeout
	if x.req.Timeout > 0 {
		timeout = min(timeout, x.req.Timeout)
	}
	ctx, cancel := x.within(parent, timeout)
	end, _ := ctx.Deadline()
	// A client that does not read must not hold the handler beyond its time.
	// Recorders of tests have no deadlines; a connection has.
	_ = http.NewResponseController(w).SetWriteDeadline(end.Add(x.proxy.timeouts.grace))
	return ctx, cancel
}

// within ends a context when a request has taken so long, from when it was accepted. The cause says how long.
func (x *exchange) within(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("%w: the request was given %v", attempt.Deadline, timeout)
	return context.WithTimeoutCause(parent, timeout-(x.proxy.clock.Now()-x.accepted), cause)
}

// write sends all of what is no stream.
func (x *exchange) write(w http.ResponseWriter) error {
	b := x.api.answer(nil, x.req, x.requestID, x.created, x.results(), x.account())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("%w: %w", attempt.ClientGone, err)
	}
	return nil
}

// ended is a context that is over: what waits on it asks for the state of now.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// finish accounts for a request that was admitted, once, and, if it failed, tells the client: with a
// status if nothing was sent yet, else with an event and a broken connection,
// because a chunked body that ends cleanly would pass for a whole answer. It
// reports whether the caller is to break it.
func (p *Proxy) finish(w http.ResponseWriter, x *exchange, err error) (broken bool) {
	var api *openai.Error
	if err != nil {
		// net/http cancels a request's context with no cause of its own when
		// the client is gone.
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: %w", attempt.ClientGone, err)
		}
		api = wire.ErrorOf(fmt.Errorf("request %s: %w", x.requestID, err))
	}
	e2e := p.clock.Now() - x.accepted
	for i := range x.flights {
		x.flights[i].count(e2e, api)
	}
	p.trace(x, e2e, api)
	level := slog.LevelDebug // a client that left is no fault of anybody here
	if api != nil && api.Status != wire.StatusClientClosed {
		level = slog.LevelWarn
	}
	if log := p.cfg.Logger; log.Enabled(context.Background(), level) {
		u, f := x.account(), &x.flights[0]
		attrs := []slog.Attr{
			slog.String("request", x.requestID), slog.String("prefill", f.prefillNode), slog.String("decode", f.decodeNode), slog.Int("choices", len(x.flights)),
			slog.Int("prompt", int(u.Prompt)), slog.Int("tokens", int(u.Completion)), slog.Int("retries", f.retries), slog.Duration("took", e2e),
		}
		msg := "request done"
		if err != nil {
			msg = "request failed"
			attrs = append(attrs, slog.Any("err", err))
		}
		log.LogAttrs(context.Background(), level, msg, attrs...)
	}
	switch {
	case api == nil:
	case x.events != nil && x.events.Begun():
		x.events.Fail(api)
		return true
	case api.Status == wire.StatusClientClosed:
		return true
	default:
		wire.Error(w, api)
	}
	return false
}

// count counts a choice whose request has ended, well if err is nil. One that was complete
// when another failed it has been served all the same.
func (f *flight) count(e2e time.Duration, err *openai.Error) {
	prompt, output := f.counts()
	switch {
	case err == nil, len(f.flights) > 1 && f.end.Finish != "":
		f.metrics.Served(metrics.Request{
			Prompt: prompt, Cached: int(f.cached), Output: output, MaxTokens: f.choice.MaxTokens, Stop: f.end.Finish == "stop",
			E2E: e2e, Decode: f.last - f.first, Breakdown: &f.breakdown, Unknown: f.unknown, Proxy: f.own,
		})
	case err.Status == wire.StatusClientClosed:
		f.metrics.Aborted(output)
	default:
		f.metrics.Failed(output, cmp.Or(err.Code, err.Type), err.Status >= http.StatusInternalServerError)
	}
}

// refuse answers a request that never started. It counts among the failures, not among the
// requests that have ended, and is in the log at debug: a full queue may refuse a thousand a
// second, and /metrics has their number.
func (p *Proxy) refuse(w http.ResponseWriter, id string, err error) {
	api := wire.ErrorOf(err)
	if cluster, ok := p.cluster(); ok {
		p.metrics.Model(p.servedName(cluster)).Refused(cmp.Or(api.Code, api.Type))
	}
	p.cfg.Logger.Debug("request refused", "request", id, "status", api.Status, "err", err)
	if errors.Is(err, attempt.Ending) {
		w.Header().Set("Connection", "close")
	}
	p.answerSoon(w)
	wire.Error(w, api)
}
