package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/health"
)

// An engine is one server. What has no guard here stays as it is.
type engine struct {
	id, url   string
	bootstrap string // URL of a prefill engine's connector, if KV is written while it is computed
	role      proto.Role
	backlog   health.Backlog
	spoke     atomic.Int64 // when it last said anything of any request; the proxy's clock

	// Guarded by Engines.mu.
	why      error // it is not up; nil: it is
	said     bool  // it has answered which models it has, or that it does not say
	current  bool  // that was since it is up: what comes up again may have another
	model    string
	maxLen   uint32          // tokens; 0: it does not say
	lists    map[string]bool // LoRA adapters, among its models; never changed
	tells    bool            // its metrics tell of adapters
	slots    slots           // for these
	booted   bootstrap
	here     netip.Addr // of this machine, as the engine sees it
	inFlight int        // requests
	waiting  int        // prompt tokens of those that it has not begun to answer
}

// idleConns is how long a connection to an engine is kept for the next request. It is less than
// the 5 s after which uvicorn, vLLM's server, closes one: a request that meets that has failed.
const idleConns = 2 * time.Second

// newClient is one for requests, or one that connects anew for each question: whether an engine still
// takes connections is a part of that.
func newClient(anew bool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: checkPatience}).DialContext,
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     idleConns,
			DisableCompression:  true, // the bytes are the client's
			DisableKeepAlives:   anew,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// check asks an engine how it is, and once which models it has. One that has LoRA adapters is asked for
// them each time: they are loaded and unloaded while it runs.
func (e *Engines) check(ctx context.Context, en *engine) {
	limited, cancel := context.WithTimeoutCause(ctx, e.patience, fmt.Errorf("GET /health: no answer within %v", e.patience))
	defer cancel()
	_, err := e.get(httptrace.WithClientTrace(limited, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		at, _ := netip.ParseAddrPort(c.Conn.LocalAddr().String())
		e.mu.Lock()
		defer e.mu.Unlock()
		en.here = at.Addr()
	}}), en.url, "/health")
	if err == nil && en.bootstrap != "" {
		err = e.askBootstrap(limited, en)
	}
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	ask := err == nil && (!en.current || en.tells || len(en.lists) > 0)
	e.mu.Unlock()
	if ask {
		e.askModels(limited, en)
	}
	e.settle(en, err)
	if ask {
		e.askAdapters(limited, en)
	}
}

// askModels asks an engine which models it has.
func (e *Engines) askModels(ctx context.Context, en *engine) {
	var models struct {
		Data []struct {
			ID          string `json:"id"`
			Parent      string `json:"parent"`
			MaxModelLen uint32 `json:"max_model_len"`
		} `json:"data"`
	}
	body, err := e.get(ctx, en.url, "/v1/models")
	if err == nil {
		_ = json.Unmarshal(body, &models) // it is asked again
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if refused := (*statusError)(nil); errors.As(err, &refused) {
		// One that wants a key for them is as well as another: its clients have the key.
		en.said, en.current = true, true
	} else if len(models.Data) > 0 {
		en.said, en.current, en.model, en.maxLen = true, true, models.Data[0].ID, models.Data[0].MaxModelLen
		en.lists = make(map[string]bool)
		for _, m := range models.Data {
			if m.Parent != "" {
				en.lists[m.ID] = true
			}
		}
	}
}

// get is a GET whose answer is 200, or a statusError.
func (e *Engines) get(ctx context.Context, base, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := e.asks.Do(r)
	if err != nil {
		return nil, plain(ctx, err)
	}
	defer answer.Body.Close()
	body, err := whole(answer.Body, func(int64) bool { return true }) // of one question at a time for each engine
	switch {
	case err != nil:
		return nil, plain(ctx, err)
	case answer.StatusCode != http.StatusOK:
		return nil, &statusError{path, answer.StatusCode}
	}
	return body, nil
}

// A statusError is an answer that is not 200.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: %d %s", e.path, e.status, http.StatusText(e.status))
}

// plain is an error of package http without the method and the URL, which whoever names the engine
// says better; or what ended ctx.
func plain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if of := (*url.Error)(nil); errors.As(err, &of) {
		return of.Err
	}
	return err
}

// settle notes how an engine is: up if err is nil.
func (e *Engines) settle(en *engine, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := en.why
	en.why, en.current = err, en.current && err == nil
	if err != nil {
		en.lists, en.slots = nil, slots{} // what comes up again has loaded none
	}
	switch {
	case (before == nil) == (err == nil) && before != errUnasked:
		return
	case err == nil:
		e.cfg.Logger.Info("engine is up", "engine", en.id, "role", proto.RoleName(en.role), "model", en.model)
	default:
		e.cfg.Logger.Warn("engine is down", "engine", en.id, "role", proto.RoleName(en.role), "err", err)
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// A grade says how good a choice an engine is; lower is better.
type grade int

const (
	good    grade = iota
	failed        // this request, once
	resting       // quarantined
	lacking       // does not have the request's LoRA adapter; added to these
	worst   = 2 * lacking
)

// place chooses an engine of a role for a request, and counts the request there until leave.
func (e *Engines) place(role proto.Role, r *Request) (*visit, error) {
	now := e.cfg.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	var chosen []*engine
	var candidates []placement.Candidate
	best := worst
	adapter := e.adapter(r.asked.Model)
	for _, en := range e.up(role) {
		g := good
		switch {
		case e.quarantine.Resting(now, health.Subject{Node: en.id}):
			g = resting
		case r.avoid[en]:
			g = failed
		}
		if adapter != "" && !en.lists[adapter] {
			g += lacking
		}
		if g < best {
			best, chosen, candidates = g, nil, nil
		}
		if g == best {
			chosen = append(chosen, en)
			candidates = append(candidates, placement.Candidate{ID: en.id, WaitingTokens: en.waiting, InFlight: en.inFlight, Adapters: en.slots.names, AdapterSlots: en.slots.most})
		}
	}
	if len(chosen) == 0 {
		return nil, e.nobody()
	}
	en := chosen[e.places[role].Place(placement.Request{Tokens: r.size, Prefix: r.prefix, Adapter: adapter}, candidates)]
	if adapter != "" {
		en.slots.saw(adapter)
	}
	e.quarantine.Chosen(now, health.Subject{Node: en.id})
	v := &visit{engine: en, tokens: r.size, sent: now, waits: true, says: r.asked.Stream || role == proto.Role_ROLE_PREFILL}
	en.inFlight++
	en.waiting += v.tokens
	if v.says {
		en.backlog.Enter(now, v.tokens)
	}
	return v, nil
}

// A visit is a request at an engine, from place to leave.
type visit struct {
	*engine
	tokens int
	sent   time.Duration
	waits  bool // it has not begun to answer
	says   bool // it says when it begins: it streams, or has one token to say. Else nobody knows how long it waits
}

// begun says that the engine has computed the prompt.
func (e *Engines) begun(v *visit, worked bool) {
	if worked {
		v.spoke.Store(int64(e.cfg.Clock.Now()))
	}
	if v.waits {
		v.waits = false
		if v.says {
			v.backlog.Exit(e.cfg.Clock.Now(), v.tokens, worked)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		v.waiting -= v.tokens
	}
}

// leave ends a visit: well, or by the engine's fault, or by nobody's, which is nil.
func (e *Engines) leave(v *visit, outcome *failure, well bool) {
	e.begun(v, well)
	now := e.cfg.Clock.Now()
	subject := health.Subject{Node: v.id}
	e.mu.Lock()
	v.inFlight--
	switch {
	case well:
		if e.quarantine.Succeeded(now, subject) {
			e.cfg.Logger.Info("out of quarantine", "engine", v.id)
		}
	case outcome != nil:
		if rest := e.quarantine.Failed(now, subject); rest > 0 {
			e.cfg.Logger.Warn("quarantined", "engine", v.id, "for", rest, "err", outcome)
		}
	}
	e.mu.Unlock()
	if outcome != nil && !outcome.reached {
		e.settle(v.engine, cmp.Or(outcome.err, errNoEngine)) // until it says that it is well
	}
}
