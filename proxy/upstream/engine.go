package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"sync/atomic"
	"syscall"
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
	spoke     atomic.Int64 // when it last made progress with any request, by a whole event or answer; the proxy's clock
	echoes    atomic.Bool  // its answers have the name that their request was given
	longest   atomic.Int64 // it ever took for that with a request that tells

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
	visits   map[*visit]bool
	counted  float64 // tokens, by its metrics
}

// idleConns is how long a connection to an engine is kept for the next request. It is less than
// the 5 s after which uvicorn, vLLM's server, closes one: a request that meets that has failed.
const idleConns = 2 * time.Second

// newClient is one for requests, or one that connects anew for each question: whether an engine still
// takes connections is a part of that.
func newClient(dial func(ctx context.Context, network, address string) (net.Conn, error), anew bool) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: checkPatience}).DialContext
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         dial,
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
	mute := false // with an answer that does not stream
	for v := range en.visits {
		mute = mute || !v.says
	}
	e.mu.Unlock()
	if ask {
		e.askModels(limited, en)
	}
	e.settle(en, err)
	if ask || err == nil && mute {
		e.askMetrics(limited, en)
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
	body, err := whole(answer.Body, maxPage, func(int64) bool { return true }) // of one question at a time for each engine
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
		err = of.Err
	}
	if of := syscall.Errno(0); errors.As(err, &of) && slices.Contains([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM}, of) {
		return fmt.Errorf("%w: %w", errNoConnection, err)
	}
	return err
}

// An ownFault is the proxy's: neither the request nor an engine can help it.
type ownFault struct{ code, text string }

func (f *ownFault) Error() string { return f.text }

var errNoConnection = &ownFault{"no_connection", "the proxy cannot open a connection to the engine, for want of files or ports of its own: raise the limit on open files (ulimit -n) or lower --max-connections"}

// settle notes how an engine is: up if err is nil.
func (e *Engines) settle(en *engine, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := en.why
	if before == nil && errors.As(err, new(*ownFault)) {
		e.cfg.Logger.Warn("engine not asked how it is", "engine", en.id, "err", err)
		return
	}
	en.why, en.current = err, en.current && err == nil
	if err != nil {
		en.slots = slots{} // what comes up again has loaded none, and says then what it lists
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
	with := ""
	if role == proto.Role_ROLE_DECODE {
		with = r.with
	}
	var chosen []*engine
	var candidates []placement.Candidate
	best := worst
	adapter := e.adapter(r.asked.Model)
	for _, en := range e.up(role) {
		g := good
		switch {
		case slices.ContainsFunc(subjects(en, with), func(s health.Subject) bool { return e.quarantine.Resting(now, s) }):
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
	for _, s := range subjects(en, with) {
		e.quarantine.Chosen(now, s)
	}
	v := &visit{engine: en, tokens: r.size, sent: now, waits: true, says: r.asked.Stream || role == proto.Role_ROLE_PREFILL, with: with, most: en.maxLen}
	if v.since.Store(int64(now)); !v.says {
		v.since.Store(math.MaxInt64)
	}
	en.inFlight++
	en.waiting += v.tokens
	if v.says {
		en.backlog.Enter(now, v.tokens)
	}
	return v, nil
}

// subjects returns what the outcome of a visit says something of: the engine, and the pair if with, the id of a prefill
// engine, is not empty.
func subjects(en *engine, with string) []health.Subject {
	s := []health.Subject{{Node: en.id}}
	if with != "" {
		s = append(s, health.Subject{Node: with, Peer: en.id})
	}
	return s
}

// silence is the longest that an engine may go without progress while it has requests. It is chosen: a prompt
// that takes longer is the engine's only one.
const silence = 30 * time.Second

var errStalled = errors.New("the engine makes no progress")

// leaveStalled fails the requests at an engine that has made no progress for silence, and for longer than it ever took
// by half and a second, if another engine is there for them: with nowhere to go, waiting is all there is.
func (e *Engines) leaveStalled(en *engine) {
	now := e.cfg.Clock.Now()
	limit := max(e.silence, time.Second+time.Duration(en.longest.Load())*3/2)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.ContainsFunc(e.up(en.role), func(o *engine) bool { return o != en && !e.quarantine.Resting(now, health.Subject{Node: o.id}) }) {
		return
	}
	for v := range en.visits {
		if quiet := now - time.Duration(max(v.since.Load(), en.spoke.Load())); quiet > limit && !v.held {
			v.stall(fmt.Errorf("%w: no event for %v", errStalled, quiet.Round(time.Millisecond)))
		}
	}
}

// watch returns a context for the visit, which ends when its engine has stalled.
func (e *Engines) watch(ctx context.Context, v *visit) (context.Context, func()) {
	ctx, stall := context.WithCancelCause(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	v.stall = stall
	v.visits[v] = true
	return ctx, func() { stall(nil) }
}

// word notes that the engine has made progress with the visit.
func (v *visit) word(now time.Duration) {
	before := max(v.since.Load(), v.spoke.Swap(int64(now)))
	if took := int64(now) - before; v.says && took > v.longest.Load() {
		v.longest.Store(took)
	}
}

// failed holds a failure against an engine, or a pair of them. The caller holds mu.
func (e *Engines) failed(now time.Duration, s health.Subject, err error) {
	if rest := e.quarantine.Failed(now, s); rest > 0 {
		e.cfg.Logger.Warn("quarantined", "engine", s.Node, "peer", s.Peer, "for", rest, "err", err)
	}
}

// A visit is a request at an engine, from place to leave.
type visit struct {
	*engine
	with     string                  // the prefill engine whose KV it is to take; empty: none
	taken    bool                    // at a prefill engine: the engine that takes its KV says how it did
	most     uint32                  // maxLen
	since    atomic.Int64            // when the engine began to owe progress; math.MaxInt64: it does not say
	answer   string                  // its id of it
	texts    uint32                  // events of it that have one
	finished map[uint32]bool         // its choices that have a finish_reason
	stall    context.CancelCauseFunc // guarded by Engines.mu, as the next
	held     bool                    // its prefill engine has not answered yet: it owes nothing
	tokens   int
	sent     time.Duration
	waits    bool // it has not begun to answer
	says     bool // it says when it begins: it streams, or has one token to say. Else nobody knows how long it waits
}

// begun says that the engine has computed the prompt.
func (e *Engines) begun(v *visit, worked bool) {
	if worked {
		v.word(e.cfg.Clock.Now())
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
	transfer := v.with != "" && (well || v.waits && outcome != nil && outcome.ofTransfer())
	e.begun(v, well)
	now := e.cfg.Clock.Now()
	of := subjects(v.engine, "")
	if transfer { // the prefill engine first: while it rests, it is the likelier to be at fault
		of = append([]health.Subject{{Node: v.with}, {Node: v.with, Peer: v.id}}, of...)
	}
	e.mu.Lock()
	v.inFlight--
	delete(v.visits, v)
	for i, s := range of {
		switch {
		case well && !v.taken:
			if e.quarantine.Succeeded(now, s) {
				e.cfg.Logger.Info("out of quarantine", "engine", s.Node, "peer", s.Peer)
			}
		case outcome == nil || i == 2 && e.quarantine.Resting(now, of[0]):
		default:
			e.failed(now, s, outcome)
		}
	}
	e.mu.Unlock()
	if outcome != nil && !outcome.reached {
		e.settle(v.engine, cmp.Or(outcome.err, errNoEngine)) // until it says that it is well
	}
}
