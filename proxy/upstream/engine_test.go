package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/internal/config"
	"kvferry/proxy/openai"
)

// wholeAnswer is an answer that does not stream.
const wholeAnswer = `{"choices":[{"index":0,"text":"x","finish_reason":"length"}]}`

// server is an engine whose GETs are answered by get, nil for 404, and its POSTs by post.
func server(t *testing.T, get map[string]func(http.ResponseWriter), post http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch answer := get[r.URL.Path]; {
		case r.Method == http.MethodPost:
			_, _ = io.Copy(io.Discard, r.Body) // before that, nobody notices that the client has gone
			post(w, r)
		case answer != nil:
			answer(w)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// setClock is at the time that a test says.
type setClock struct {
	clock.Clock
	at atomic.Int64
}

func (c *setClock) Now() time.Duration { return time.Duration(c.at.Load()) }

// An expiring context is one whose deadline passes when the test says.
type expiring struct {
	context.Context
	over chan struct{}
}

func (c expiring) Done() <-chan struct{} { return c.over }

func (c expiring) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestHung: an engine that says nothing to anybody until a request's deadline has failed it, whatever its
// health; one that spoke to another client meanwhile has not, nor has any that was given little time.
func TestHung(t *testing.T) {
	for name, tc := range map[string]struct {
		stream bool
		takes  time.Duration // that a request is there
		speaks bool
		blamed bool
	}{
		"hung":          {true, 40 * time.Second, false, true},
		"hung, whole":   {false, 40 * time.Second, false, true},
		"it spoke":      {true, 40 * time.Second, true, false},
		"a short while": {true, 20 * time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			s := server(t, nil, func(_ http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				<-r.Context().Done()
			})
			set := &setClock{Clock: clock.Std()}
			e := newUp(t, set, URLs{Both: []string{s.URL}})
			for range 4 {
				ctx := expiring{context.Background(), make(chan struct{})}
				r := parse(t, openai.Completion, fmt.Sprintf(`{"prompt":"x","stream":%v}`, tc.stream))
				done := make(chan error, 1)
				go func() { done <- e.Serve(ctx, r, nobody{}, func() {}) }()
				clocktest.Receive(t, asked, "the request")
				if tc.speaks {
					e.all[0].spoke.Store(int64(set.Now() + tc.takes/2))
				}
				set.at.Add(int64(tc.takes))
				close(ctx.over)
				if err := clocktest.Receive(t, done, "its end"); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			rests := false
			e.Rests(0, func(_, _ string, _ bool, total uint64) { rests = total > 0 })
			if rests != tc.blamed {
				t.Errorf("quarantined: %v", rests)
			}
		})
	}
}

// TestHungBeside: a prefill engine that hangs is blamed though the decode engine has done without it, if that
// took long enough.
func TestHungBeside(t *testing.T) {
	for takes, blamed := range map[time.Duration]bool{40 * time.Second: true, 20 * time.Second: false} {
		asked := make(chan struct{}, 1)
		boot := map[string]func(http.ResponseWriter){"/query": func(w http.ResponseWriter) { fmt.Fprint(w, "{}") }}
		p := server(t, boot, func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
		})
		set := &setClock{Clock: clock.Std()}
		d := server(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			<-asked
			set.at.Add(int64(takes))
			fmt.Fprint(w, wholeAnswer)
		})
		e := newUp(t, set, URLs{Prefill: []string{p.URL}, Decode: []string{d.URL}, Bootstrap: []string{p.URL}})
		for range 4 {
			if err := e.Serve(t.Context(), parse(t, openai.Completion, `{"prompt":"x"}`), nobody{}, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		var rested []string
		e.Rests(0, func(node, _ string, _ bool, total uint64) {
			if total > 0 {
				rested = append(rested, "http://"+node)
			}
		})
		if blamed != slices.Equal(rested, []string{p.URL}) || !blamed && len(rested) > 0 {
			t.Errorf("after %v: %v are quarantined", takes, rested)
		}
	}
}

// TestStalledError: what is wrong with a request an engine has a while to say, and not until its deadline.
func TestStalledError(t *testing.T) {
	s := server(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusInternalServerError)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	e := newUp(t, clock.Std(), URLs{Both: []string{s.URL}})
	e.patience = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	err := e.Serve(ctx, parse(t, openai.Completion, `{"prompt":"x"}`), nobody{}, func() {})
	var api *openai.Error
	if !errors.As(err, &api) || api.Status != http.StatusInternalServerError || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

// TestRetryAfterIsBounded: no engine has a client wait for ever.
func TestRetryAfterIsBounded(t *testing.T) {
	for says, want := range map[string]int{"9223372036854775807": maxRetryAfter, "99999999999999999999": maxRetryAfter, "-5": 1, "7": 7, "Wed, 21 Oct 2026 07:28:00 GMT": 1} {
		s := server(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", says)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		e := newUp(t, clock.Std(), URLs{Both: []string{s.URL}})
		err := e.Serve(t.Context(), parse(t, openai.Completion, `{"prompt":"x"}`), nobody{}, func() {})
		var api *openai.Error
		if !errors.As(err, &api) || api.RetryAfter != want {
			t.Errorf("%s: %v, %+v, want %d", says, err, api, want)
		}
	}
}

// TestAnswerMemory: what an answer takes is asked for before it is there. If there is none the client is told to come again;
// no other engine is asked, and nobody is blamed.
func TestAnswerMemory(t *testing.T) {
	var asked atomic.Int32
	s := server(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprintf(w, `{"choices":[{"text":%q,"finish_reason":"stop"}]}`, strings.Repeat("x", 60<<10))
	})
	for left, want := range map[int64]int{128 << 10: 0, 128<<10 - 1: http.StatusServiceUnavailable} {
		for _, urls := range []URLs{{Both: []string{s.URL, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)}}, {Prefill: []string{s.URL}, Decode: []string{strings.Replace(s.URL, "127.0.0.1", "localhost", 1)}}} {
			e := newUp(t, clock.Std(), urls)
			r, memory := parse(t, openai.Completion, `{"prompt":"x"}`), left
			r.More = func(bytes int64) bool {
				memory -= bytes
				return memory >= 0
			}
			if len(urls.Both) == 0 && want == 0 {
				memory *= 2 // for the prefill engine's too
			}
			asked.Store(0)
			err := e.Serve(t.Context(), r, nobody{}, func() {})
			var api *openai.Error
			if want == 0 && err != nil || want > 0 && (!errors.As(err, &api) || api.Status != want || api.Code != "no_memory" || asked.Load() != 1 || len(r.avoid) > 0) {
				t.Errorf("%d bytes, %+v: %v, %d asked", left, urls, err, asked.Load())
			}
		}
	}
}

// TestAnswersNull: JSON that is no object is no answer.
func TestAnswersNull(t *testing.T) {
	s := server(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "null") })
	e := newUp(t, clock.Std(), URLs{Both: []string{s.URL}})
	if err := e.Serve(t.Context(), parse(t, openai.Completion, `{"prompt":"x"}`), nobody{}, func() {}); err == nil || !strings.Contains(err.Error(), "it answers null") {
		t.Error(err)
	}
}

// TestAskedAnew: an engine that takes no more connections is down, though one that is open still works.
func TestAskedAnew(t *testing.T) {
	well := func(http.ResponseWriter) {}
	s := server(t, map[string]func(http.ResponseWriter){"/health": well}, nil)
	e := newUp(t, clock.Std(), URLs{Both: []string{s.URL}})
	en := e.all[0]
	e.check(t.Context(), en)
	if en.why != nil {
		t.Fatal(en.why)
	}
	_ = s.Listener.Close()
	e.check(t.Context(), en)
	if op := (*net.OpError)(nil); !errors.As(en.why, &op) {
		t.Errorf("it is up: %v", en.why)
	}
}

// TestModels: the list may be long, and is asked for again of an engine that was down.
func TestModels(t *testing.T) {
	var model atomic.Value
	var ill atomic.Bool
	model.Store("first")
	s := server(t, map[string]func(http.ResponseWriter){
		"/health": func(w http.ResponseWriter) {
			if ill.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		},
		"/v1/models": func(w http.ResponseWriter) {
			fmt.Fprintf(w, `{"data":[{"id":%q,"max_model_len":7},{"id":%q}]}`, model.Load(), strings.Repeat("x", 1<<20))
		},
	}, nil)
	e := newUp(t, clock.Std(), URLs{Both: []string{s.URL}})
	for _, want := range []string{"first", "first", "second"} {
		ill.Store(want == "second")
		e.check(t.Context(), e.all[0])
		ill.Store(false)
		e.check(t.Context(), e.all[0])
		if name, most, ok := e.Model(); name != want || most != 7 || !ok {
			t.Errorf("%q, %d, %v: want %s", name, most, ok, want)
		}
		model.Store("second")
	}
}

// TestNewConfig: engines that make no sense are none.
func TestNewConfig(t *testing.T) {
	invalid := (*config.Invalid)(nil)
	if _, err := New(Config{URLs: URLs{Prefill: []string{"http://a:1"}}}); !errors.As(err, &invalid) {
		t.Errorf("%v", err)
	}
}
