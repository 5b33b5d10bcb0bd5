// Package upstream has real engines answer the proxy's clients: servers of OpenAI's HTTP API,
// vLLM's above all, unmodified. Which of them answers a request, what each is asked, and what
// is done when one fails is here; the clients' side of it is package proxy's.
//
// A request that is disaggregated goes to a prefill engine first, for one token, and then to a
// decode engine with the kv_transfer_params of the first answer: what vLLM's connectors agree
// on, and vLLM's own proxies do. The client gets the decode engine's bytes. The KV moves between
// the engines, by their connector; nothing of it passes through here.
//
// An engine is there while its GET /health says 200. One that cannot be reached, or says that it
// is ill, is left until it is well again; one that fails requests rests (package health).
//
// Durations are on the clock that a Config names. All of it may be used by several goroutines.
package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/health"
	"kvferry/proxy/openai"
)

// URLs are where the engines listen: base URLs, such as http://10.0.0.2:8000.
type URLs struct {
	Prefill []string // compute prompts, and offer their KV
	Decode  []string // take that KV, and answer
	Both    []string // do all by themselves

	// Bootstrap is where the prefill engines' connectors are found, one for each of Prefill in that
	// order. With these a decode engine is asked at the same time as its prefill engine.
	Bootstrap []string
	// Report is this proxy's own base URL, as engines reach it. Empty: what they see of it.
	Report string
}

// Any reports whether there are engines at all.
func (u URLs) Any() bool { return len(u.Prefill)+len(u.Decode)+len(u.Both) > 0 }

// Validate lists every fault by its field, as a [config.Invalid].
func (u URLs) Validate() error {
	_, _, err := u.engines()
	return err
}

// engines are those at the URLs, and Report as a base URL, or what is wrong with these, as a [config.Invalid].
func (u URLs) engines() (all []*engine, report string, err error) {
	var bad config.Faults
	seen := make(map[string]bool)
	for _, f := range []struct {
		field string
		role  proto.Role
		urls  []string
	}{{"Prefill", proto.Role_ROLE_PREFILL, u.Prefill}, {"Decode", proto.Role_ROLE_DECODE, u.Decode}, {"Both", proto.Role_ROLE_NONDISAGG, u.Both}} {
		for _, text := range f.urls {
			base, err := config.PublicURL(text)
			id := engineID(base)
			switch {
			case err != nil:
				bad.Check(f.field, err)
				continue
			case strings.HasSuffix(base, "/v1"):
				bad.Add(f.field, text, "an engine's URL has no /v1, which requests have: use %s", strings.TrimSuffix(base, "/v1"))
			case seen[id]:
				bad.Add(f.field, text, "an engine is named once, with one role")
			}
			seen[id] = true
			all = append(all, &engine{id: id, url: base, role: f.role, why: errUnasked})
		}
	}
	if len(u.Bootstrap) > 0 && len(u.Bootstrap) != len(u.Prefill) {
		bad.Add("Bootstrap", len(u.Bootstrap), "name one for each of the %d prefill engines, in the same order", len(u.Prefill))
	}
	for i, text := range u.Bootstrap {
		base, err := config.PublicURL(text)
		bad.Check("Bootstrap", err)
		if i < len(all) {
			all[i].bootstrap = base
		}
	}
	if u.Report != "" {
		report, err = config.PublicURL(u.Report)
		bad.Check("Report", err)
	}
	switch {
	case len(u.Prefill) > 0 && len(u.Decode) == 0:
		bad.Add("Decode", nil, "prefill engines need decode engines that take their KV: name one or more")
	case len(u.Decode) > 0 && len(u.Prefill) == 0:
		bad.Add("Prefill", nil, "decode engines need prefill engines whose KV they take: name one or more")
	}
	return all, report, bad.Err("upstream.URLs")
}

// engineID is what an engine is called: its base URL without the scheme.
func engineID(base string) string {
	_, id, _ := strings.Cut(base, "://")
	return id
}

// Config is which engines there are, and how they are used.
type Config struct {
	URLs
	Together   bool          // a request may go to a prefill and a decode engine
	Alone      bool          // it may go to one that does both; where it may do either, the pair comes first
	Placement  string        // a policy of package placement
	MaxRetries int           // times that a request is placed again after an engine failed it
	Wait       time.Duration // that a request waits for engines while they are not there
	Every      time.Duration // between two questions for an engine's health
	Timeout    time.Duration // a request's deadline; 0: it has none. It shortens the engines' progress deadline
	// Dial opens connections to engines. Default nil: a net.Dialer.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Listens func() string // host:port at which ServeReport is reached
	Clock   clock.Clock
	Logger  *slog.Logger
}

// checkPatience is how long an engine may take to say how it is, or what is wrong with a request. It is
// chosen: one whose machine is busy with a long prompt answers late.
const checkPatience = 5 * time.Second

// Engines are those of one proxy.
type Engines struct {
	cfg    Config
	client *http.Client
	asks   *http.Client // for how they are
	all    []*engine    // prefill, decode, both

	silence  time.Duration // without progress, after which an engine has stalled
	patience time.Duration // that one has to say how it is, or what is wrong

	reports sync.Map  // of reports that are waited for: their word to a chan connector
	deaf    sync.Once // said that there can be none
	mark    string    // in every request's name

	mu         sync.Mutex
	places     map[proto.Role]placement.Policy
	quarantine *health.Quarantine
	changed    chan struct{} // closed at the next change of who is up
}

// New knows the engines of a configuration; Run finds out how they are. The error is a [config.Invalid].
func New(cfg Config) (*Engines, error) {
	all, report, err := cfg.engines()
	if err != nil {
		return nil, err
	}
	cfg.Report = report
	e := &Engines{
		cfg: cfg, client: newClient(cfg.Dial, false), asks: newClient(cfg.Dial, true), all: all, patience: checkPatience,
		silence: silence, places: make(map[proto.Role]placement.Policy), quarantine: health.NewQuarantine(), changed: make(chan struct{}),
	}
	e.mark = strings.TrimPrefix(e.unique(""), "-")
	if cfg.Timeout > 0 {
		e.silence = min(silence, cfg.Timeout/2) // so that there is time for another engine
	}
	for _, en := range all {
		en.visits = make(map[*visit]bool)
	}
	for _, role := range []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE, proto.Role_ROLE_NONDISAGG} {
		if e.places[role], err = placement.New(cfg.Placement, wordsInBlock, role != proto.Role_ROLE_DECODE); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Run asks the engines how they are until ctx is done, and then closes the connections to them.
func (e *Engines) Run(ctx context.Context) {
	defer e.client.CloseIdleConnections()
	var all sync.WaitGroup
	for _, en := range e.all {
		all.Go(func() {
			tick := time.NewTicker(e.cfg.Every)
			defer tick.Stop()
			pause := health.NewPause(e.cfg.Clock.Now(), 2*(e.patience+2*e.cfg.Every)) // a check may take that long
			for ctx.Err() == nil {
				if now := e.cfg.Clock.Now(); pause.Step(now) > 0 {
					en.spoke.Store(int64(now)) // the proxy heard nobody
				}
				e.leaveStalled(en)
				e.check(ctx, en)
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
}

// A State is an engine as it is now.
type State struct {
	ID, URL  string
	Role     proto.Role
	Up       bool
	Model    string   // empty while it has not said
	InFlight int      // requests that it has
	Adapters []string // LoRA adapters that are taken to be in its slots
	MaxLoRAs int      // how many of these there are; 0: it has not said
}

// States lists the engines: prefill, decode, both, in the order in which they were named.
func (e *Engines) States() []State {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []State
	for _, en := range e.all {
		all = append(all, State{en.id, en.url, en.role, en.why == nil, en.model, en.inFlight, en.slots.names, en.slots.most})
	}
	return all
}

// Model is what the engines serve: the first name of the first that has said, and the least
// length that one takes; false while none has. One that wants a key for it is unknown.
func (e *Engines) Model() (name string, maxLen uint32, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, en := range e.all {
		switch {
		case !en.said:
		case !ok:
			name, maxLen, ok = cmp.Or(en.model, "unknown"), en.maxLen, true
		case en.maxLen > 0:
			maxLen = min(maxLen, en.maxLen)
		}
	}
	return name, maxLen, ok
}

// Rests goes through the engines that have failed of late, as [health.Quarantine] does.
func (e *Engines) Rests(now time.Duration, each func(node, peer string, resting bool, total uint64)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quarantine.Rests(now, each)
}

// Expected is how long a request that arrives now would wait for others, with so many tokens of
// prompts that are at no engine yet.
func (e *Engines) Expected(now time.Duration, unplaced int) time.Duration {
	together, err := e.Serving()
	if err != nil {
		return 0
	}
	backlogs := make(map[proto.Role][]*health.Backlog)
	e.mu.Lock()
	for _, en := range e.all {
		if en.why == nil {
			backlogs[en.role] = append(backlogs[en.role], &en.backlog)
		}
	}
	e.mu.Unlock()
	if together {
		return health.Wait(now, unplaced, backlogs[proto.Role_ROLE_PREFILL]) + health.Wait(now, 0, backlogs[answers(together)])
	}
	return health.Wait(now, unplaced, backlogs[answers(together)])
}

// Serving says how a request would be served now: by a prefill and a decode engine together, or
// by one; or why it cannot, as an [openai.Error].
func (e *Engines) Serving() (together bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	up := func(role proto.Role) bool { return len(e.up(role)) > 0 }
	switch {
	case e.cfg.Together && up(proto.Role_ROLE_PREFILL) && up(proto.Role_ROLE_DECODE):
		return true, nil
	case e.cfg.Alone && up(proto.Role_ROLE_NONDISAGG):
		return false, nil
	}
	return false, e.nobody()
}

// nobody says that a request cannot be served, and how it stands with each engine. The caller
// holds mu.
func (e *Engines) nobody() *openai.Error {
	var down []string
	for _, en := range e.all {
		if en.why != nil {
			down = append(down, fmt.Sprintf("%s engine %s: %v", proto.RoleName(en.role), en.id, en.why))
		}
	}
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Type: "server_error", Code: "no_node", RetryAfter: 1,
		Message: errNoEngine.Error() + ": " + strings.Join(down, "; "), Err: errNoEngine,
	}
}

// WaitReady returns once the engines can serve, or with the reason they cannot when ctx ends.
func (e *Engines) WaitReady(ctx context.Context) error { return e.await(ctx, e.Serving) }

// await returns once serving says that the engines can serve, or with the reason they cannot when ctx ends.
func (e *Engines) await(ctx context.Context, serving func() (together bool, err error)) error {
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		_, err := serving()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

var (
	errNoEngine = errors.New("no engine can take it")
	errUnasked  = errors.New("not asked yet")
)

// up lists the engines of a role that are up. The caller holds mu.
func (e *Engines) up(role proto.Role) []*engine {
	return slices.DeleteFunc(slices.Clone(e.all), func(en *engine) bool { return en.role != role || en.why != nil })
}
