package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proxy/openai"
	"kvferry/proxy/upstream"
	"kvferry/proxy/upstream/upstreamtest"
)

// urlsOf are the URLs of a setting's engines, where at says each is.
func urlsOf(s upstreamtest.Setting, at func(name string) string) upstream.URLs {
	u := upstream.URLs{Prefill: []string{at("p0"), at("p1")}, Decode: []string{at("d0"), at("d1")}}
	switch s.Mode {
	case "alone":
		u = upstream.URLs{Both: u.Decode}
	case "layerwise":
		u.Bootstrap = u.Prefill
	}
	return u
}

// A client is the connection of a client, on which an answer is written.
type client struct{ *httptest.ResponseRecorder }

func (client) FlushError() error { return nil }
func (client) End() error        { return nil }

type counts struct{}

func (counts) FirstToken(time.Duration) {}
func (counts) NextToken(time.Duration)  {}
func (counts) Retried()                 {}

// patience bounds an engine's silence.
const patience = 30 * time.Second

// An outcome records how a request ended.
type outcome struct {
	right, retried bool
	err            error
	took           time.Duration
	progress       time.Duration // when the faulty engine last had any, from the beginning of this request
}

// check holds an outcome against what may come of it.
func (o outcome) check(s upstreamtest.Setting, answer, want string) error {
	text, whole, bad := "", false, error(nil)
	if answer != "" {
		text, whole, bad = upstreamtest.TextOf(answer, s.Stream)
	}
	var api *openai.Error
	most := 3 * time.Second
	if upstreamtest.Late(s.Op) { // what honest engines take is less than a second
		most = max(o.progress, 0) + patience + 2*time.Second
	}
	switch {
	case o.took > most:
		return fmt.Errorf("it took %v", o.took)
	case bad != nil:
		return bad
	case o.err == nil && (text != want || !whole):
		return fmt.Errorf("the text is %q, want %q; ended %v: %s", text, want, whole, answer)
	case o.err == nil:
		return nil
	case !strings.HasPrefix(want, text) && !s.Misplaces(): // what shows with a later event
		return fmt.Errorf("the text until the error is %q, want %q", text, want)
	case !errors.As(o.err, &api) || api.Message == "" || api.Status < 400 || api.Status > 599 || api.RetryAfter > 3600:
		return fmt.Errorf("no clear error: %+v", o.err)
	case text == "" && answer == "" && api.Status != 400 && api.Code != "no_memory":
		return fmt.Errorf("it was not tried again: %w", o.err)
	}
	return nil
}

// TestByzantine: engines that answer with one step too early, doubled, too long or missing, with values that cannot be, or of another
// request. Each client gets the right text, or an error after a part of it; another engine is tried while it has nothing, within 2 s
// of the bad message, or of the progress deadline where one is missing. Nothing is left behind.
func TestByzantine(t *testing.T) {
	log.SetOutput(io.Discard) // net/http's, of what comes on idle connections
	defer log.SetOutput(os.Stderr)
	var sum struct{ right, retried, failed, faults int }
	var mu sync.Mutex // for sum
	ops := make(map[string]int)
	only, _ := strconv.Atoi(os.Getenv("KVFERRY_SEED"))
	for seed := range clocktest.Seeds(t, 30) {
		if only > 0 && seed != only {
			continue
		}
		s, r := upstreamtest.SettingOf(seed)
		synctest.Test(t, func(t *testing.T) {
			n := &upstreamtest.Net{Engines: s.Engines(r)}
			e, err := upstream.New(upstream.Config{
				URLs: urlsOf(s, func(name string) string { return "http://" + name + ":1" }), Together: true, Alone: true, Placement: placement.RoundRobin, MaxRetries: 2,
				Wait: 10 * time.Second, Every: time.Second, Timeout: 10 * time.Minute, Clock: clock.Std(), Logger: logger(),
				Listens: func() string { return "127.0.0.1:1" }, Dial: n.Dial,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running, clients sync.WaitGroup
			running.Go(func() { e.Run(ctx) })
			upstreamtest.Pass(100 * time.Millisecond)
			if err := e.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i := range s.Clients {
				clients.Go(func() {
					for round := range 2 { // the second may meet what the first has left on a connection
						start := time.Now()
						o, answer, want := ask(t, e, s, 2*i+round)
						o.progress = n.Engines[s.At].Progress().Sub(start)
						if err := o.check(s, answer, want); err != nil {
							t.Errorf("%v, client %d: %v", s, i, err)
						}
						mu.Lock()
						if o.right = o.err == nil; o.right {
							sum.right++
						} else {
							sum.failed++
						}
						if o.retried {
							sum.retried++
						}
						mu.Unlock()
					}
				})
			}
			clients.Wait()
			upstreamtest.Pass(time.Second) // for what ends late by itself
			for _, state := range e.States() {
				if state.InFlight != 0 {
					t.Errorf("%v: %+v", s, state)
				}
			}
			if b := n.Engines[s.At]; b.Faulty() > 0 {
				sum.faults += b.Faulty()
				ops[s.Op]++
			}
			cancel()
			running.Wait()
			n.Served.Wait()
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("%d faults; %d requests answered, %d of all after a retry, %d ended with an error; worlds by fault: %v", sum.faults, sum.right, sum.retried, sum.failed, ops)
}

// ask has engines answer one request.
func ask(t *testing.T, e *upstream.Engines, s upstreamtest.Setting, i int) (o outcome, answer, want string) {
	path, body, want := s.Request(i)
	kind := openai.Completion
	if s.Chat {
		kind = openai.Chat
	}
	r := upstream.NewRequest(kind, httptest.NewRequest("POST", path, nil))
	if _, err := r.Parse([]byte(body)); err != nil {
		t.Error(err)
		return o, "", want
	}
	memory := &budget{}
	memory.left.Store(4 << 20)
	r.ID, r.More = fmt.Sprintf("req-%d", i), memory.more
	w := client{httptest.NewRecorder()}
	r.Events().To(w)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	start := time.Now()
	o.err = e.Serve(ctx, r, counts{}, func() {})
	o.took, o.retried = time.Since(start), r.Retries > 0
	switch {
	case o.err == nil && s.Stream:
		_ = r.Events().End(openai.Usage{})
	case o.err == nil:
		_, _ = w.Write(r.Answer(openai.Usage{}))
	}
	return o, w.Body.String(), want
}

func logger() *slog.Logger {
	if os.Getenv("KVFERRY_SEED") != "" {
		return slog.New(slog.NewTextHandler(os.Stdout, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// A budget is the memory that there is for an answer.
type budget struct{ left atomic.Int64 }

func (b *budget) more(bytes int64) bool { return b.left.Add(-bytes) >= 0 }
