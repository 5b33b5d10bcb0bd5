package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// handler routes the HTTP API.
func (p *Proxy) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { p.serveGeneration(w, r, kindCompletion) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { p.serveGeneration(w, r, kindChat) })
	mux.HandleFunc("GET /v1/models", p.serveModels)
	mux.HandleFunc("GET /health", p.serveHealth)
	mux.HandleFunc("GET /ping", p.serveHealth)
	mux.HandleFunc("GET /version", serveVersion)
	mux.HandleFunc("GET /server_info", p.serveServerInfo)
	mux.HandleFunc("GET /get_server_info", p.serveServerInfo)
	mux.HandleFunc("POST /tokenize", p.serveTokenize)
	mux.HandleFunc("POST /detokenize", p.serveDetokenize)
	mux.Handle("GET /metrics", p.metrics.handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		e := &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found", Message: fmt.Sprintf("no such endpoint: %s %s", r.Method, abbreviate(r.URL.Path))}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
			if _, pattern := mux.Handler(probe); pattern != "/" && method != r.Method {
				e.Status, e.Code = http.StatusMethodNotAllowed, "method_not_allowed"
				e.Message = fmt.Sprintf("%s %s: use %s", r.Method, abbreviate(r.URL.Path), method)
				w.Header().Set("Allow", method)
			}
		}
		writeError(w, e)
	})
	return mux
}

// serveGeneration is both generation endpoints. Its frame is under every open
// stream, and a few hundred bytes more would keep each at a stack of 16 KiB
// instead of 8: what only prepares or answers is in functions of its own.
func (p *Proxy) serveGeneration(w http.ResponseWriter, r *http.Request, kind apiKind) {
	f := &flight{proxy: p, requestID: requestID(r), accepted: p.clock.Now()}
	w.Header().Set("X-Request-Id", f.requestID)
	done, err := p.admit()
	if err != nil {
		p.refuse(w, f.requestID, err)
		return
	}
	defer done()
	if err := p.accept(f, w, r, kind); err != nil {
		p.refuse(w, f.requestID, err)
		return
	}
	ctx, cancel := f.deadline(r.Context(), w)
	defer cancel()
	err = f.run(ctx)
	if err == nil {
		err = f.answer(w)
	}
	p.finish(w, f, err)
}

// accept reads and checks a request and readies its flight.
func (p *Proxy) accept(f *flight, w http.ResponseWriter, r *http.Request, kind apiKind) error {
	body, err := p.readBody(w, r)
	if err != nil {
		return err
	}
	cluster, ok := p.registry.info()
	if !ok {
		if err := p.awaitNodes(r.Context()); errors.Is(err, context.Canceled) {
			return fmt.Errorf("%w: %w", errClientGone, err)
		} else if err != nil {
			return err
		}
		cluster, _ = p.registry.info()
	}
	f.req, err = parseGeneration(kind, body, cluster)
	if err != nil {
		return err
	}
	f.created = time.Now()
	f.metrics = p.metrics.model(f.req.Model)
	if f.req.Stream {
		f.events = newEventStream(w, f.req, f.requestID, f.created)
		f.inbox = newInbox(1)
	} else {
		f.inbox = newInbox(int(f.req.MaxTokens))
	}
	return nil
}

// deadline is the request's context, and the connection's.
func (f *flight) deadline(parent context.Context, w http.ResponseWriter) (context.Context, context.CancelFunc) {
	timeout := f.proxy.cfg.RequestTimeout
	if f.req.Timeout > 0 {
		timeout = min(timeout, f.req.Timeout)
	}
	cause := fmt.Errorf("%w: the request was given %v", errDeadline, timeout)
	timeout -= f.proxy.clock.Now() - f.accepted
	// A client that does not read must not hold the handler beyond its time.
	// Recorders of tests have no deadlines; a connection has.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout + writeGrace))
	return context.WithTimeoutCause(parent, timeout, cause)
}

// answer ends a stream, or sends all of what is none.
func (f *flight) answer(w http.ResponseWriter) error {
	if f.events != nil {
		return f.events.end(f.account())
	}
	b := appendBody(nil, f.req, f.requestID, f.created, f.delivered, f.finish, f.account())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// ended is a context that is over: what waits on it asks for the state of now.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// finish accounts for a request and, if it failed, tells the client: with a
// status if nothing was sent yet, else with an event and a broken connection,
// because a chunked body that ends cleanly would pass for a whole answer.
func (p *Proxy) finish(w http.ResponseWriter, f *flight, err error) {
	var api *apiError
	if err != nil {
		// net/http cancels a request's context with no cause of its own when
		// the client is gone.
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: %w", errClientGone, err)
		}
		api = toAPIError(fmt.Errorf("request %s: %w", f.requestID, err))
	}
	e2e := p.clock.Now() - f.accepted
	f.metrics.ended(f, e2e, api)
	level := slog.LevelDebug
	if api != nil && api.Status != statusClientClosed {
		level = slog.LevelWarn
	}
	if log := p.cfg.Logger; log.Enabled(context.Background(), level) {
		attrs := []slog.Attr{
			slog.String("request", f.requestID), slog.String("prefill", f.prefillNode), slog.String("decode", f.decodeNode),
			slog.Int("prompt", len(f.req.Prompt)), slog.Int("tokens", len(f.delivered)), slog.Int("retries", f.retries), slog.Duration("took", e2e),
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
	case f.events != nil && f.events.sent:
		f.events.fail(api)
		panic(http.ErrAbortHandler) // net/http's way to break the connection
	case api.Status == statusClientClosed:
		panic(http.ErrAbortHandler)
	default:
		writeError(w, api)
	}
}

// refuse answers a request that never started.
func (p *Proxy) refuse(w http.ResponseWriter, id string, err error) {
	api := toAPIError(err)
	if cluster, ok := p.registry.info(); ok {
		p.metrics.model(cluster.Model).failed(api)
	}
	p.cfg.Logger.Debug("request refused", "request", id, "status", api.Status, "err", err)
	if errors.Is(err, errProxyDrains) {
		w.Header().Set("Connection", "close")
	}
	writeError(w, api)
}

func writeError(w http.ResponseWriter, e *apiError) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.appendJSON(nil)) // a client that is gone needs no error
}

// readBody reads a request's body to its end before anything is answered.
// Streaming an answer while the body is still coming in makes net/http cut
// off one or the other: 1 to 3 % of the streams came up short where a proxy
// did that (golang/go#40747).
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Now().Add(bodyTimeout)) // see serveGeneration
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.cfg.MaxBodyBytes))
	if err == nil {
		_ = deadlines.SetReadDeadline(time.Time{})
		return body, nil
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &apiError{
			Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "body_too_large",
			Message: fmt.Sprintf("the body is longer than %d bytes (MaxBodyBytes)", tooLarge.Limit), Err: err,
		}
	}
	w.Header().Set("Connection", "close")
	return nil, &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: fmt.Sprintf("the body could not be read: %v", err), Err: err}
}

// requestID is the client's X-Request-Id if it is fit for logs, else a new
// one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	fit := 0 < len(id) && len(id) <= 256
	for i := 0; fit && i < len(id); i++ {
		fit = ' ' < id[i] && id[i] < 0x7f
	}
	if fit {
		return id
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (p *Proxy) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Model    *string         `json:"model"`
		Prompt   json.RawMessage `json:"prompt"`
		Messages []messageBody   `json:"messages"`
	}
	cluster, ok := p.readSmall(w, r, &b)
	if !ok {
		return
	}
	err := checkModel(b.Model, cluster)
	var ids []uint32
	switch {
	case err != nil:
	case b.Messages != nil:
		ids, err = parseMessages(b.Messages, cluster.tokenizer())
	case string(b.Prompt) == `""`:
		ids = []uint32{}
	default:
		ids, err = parsePrompt("prompt", b.Prompt, cluster.tokenizer())
	}
	if err != nil {
		writeError(w, toAPIError(err))
		return
	}
	writeJSON(w, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": cluster.MaxModelLen})
}

func (p *Proxy) serveDetokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Model  *string         `json:"model"`
		Tokens json.RawMessage `json:"tokens"`
	}
	cluster, ok := p.readSmall(w, r, &b)
	if !ok {
		return
	}
	err := checkModel(b.Model, cluster)
	var ids []uint32
	if err == nil && string(b.Tokens) != "[]" {
		if len(b.Tokens) == 0 || b.Tokens[0] != '[' {
			err = badField("tokens", "want a list of token ids")
		} else {
			ids, err = parsePrompt("tokens", b.Tokens, cluster.tokenizer())
		}
	}
	if err != nil {
		writeError(w, toAPIError(err))
		return
	}
	writeJSON(w, map[string]string{"prompt": Tokenizer{}.Decode(ids)})
}

// readSmall reads the body of a request that needs no node. It has answered
// the client if it returns false.
func (p *Proxy) readSmall(w http.ResponseWriter, r *http.Request, v any) (clusterInfo, bool) {
	cluster, ok := p.registry.info()
	if !ok {
		writeError(w, toAPIError(p.registry.wait(ended)))
		return cluster, false
	}
	body, err := p.readBody(w, r)
	if err == nil {
		err = parseJSON(body, v)
	}
	if err != nil {
		writeError(w, toAPIError(err))
		return cluster, false
	}
	return cluster, true
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the values are ours and always encode
}

func uintString(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
