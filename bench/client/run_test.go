package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/bench/client/clienttest"
	"kvferry/bench/nullserver"
	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/load"
)

func TestBody(t *testing.T) {
	c := New(Config{URL: "http://localhost:1"})
	defer c.Close()
	text := c.encoder("m").encode(&load.Request{Prompt: []kvcache.Token{1, 2}, MaxTokens: 6}, nil)
	const want = `{"model":"m","prompt":[1,2],"max_tokens":6,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true}`
	if string(text) != want {
		t.Fatalf("body = %s\nwant   %s", text, want)
	}
	if !json.Valid(text) {
		t.Fatal("not JSON")
	}
}

// TestClosedLoop: never more than InFlight requests are under way, the next is sent when
// one has ended, and both are recorded.
func TestClosedLoop(t *testing.T) {
	const n, bound = 40, 3
	var mu sync.Mutex
	now, most := 0, 0
	f := &clienttest.Server{}
	f.Behave = func(w http.ResponseWriter, _ *http.Request, req *clienttest.Completion) bool {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		f.Stream(w, req, req.MaxTokens)
		fmt.Fprint(w, "data: [DONE]\n\n")
		mu.Lock()
		now--
		mu.Unlock()
		return true
	}
	clienttest.NewServer(t, f)
	c := New(Config{URL: f.URL})
	defer c.Close()
	l := drawn(t, n, math.Inf(1))
	l.InFlight = bound
	var records []Record
	_, err := c.Run(t.Context(), "fake-7b", l, func(r *Record) { records = append(records, *r) })
	if err != nil || len(records) != n || most > bound {
		t.Fatalf("%d records, %d at once, %v", len(records), most, err)
	}
	slices.SortFunc(records, func(a, b Record) int { return a.Index - b.Index })
	for i, r := range records {
		if r.Error != "" || r.Intended != 0 || (r.Room > 0) != (i >= bound) || r.Sent < r.Room || r.Late() < 0 || r.RequestID == "" {
			t.Errorf("%+v", r)
		}
		ended := 0
		for _, o := range records {
			if o.Finish <= r.Room {
				ended++
			}
		}
		if i-ended >= bound {
			t.Errorf("request %d has room when %d have ended", i, ended)
		}
	}
	l = drawn(t, 1, 1)
	l.InFlight = -1
	if _, err := c.Run(t.Context(), "fake-7b", l, nil); err == nil || !strings.Contains(err.Error(), "-1 requests in flight: use 0 to") {
		t.Errorf("%v", err)
	}
}

// TestTimesAndRoom: with both, a request waits for its time and then for room. Nobody
// ends before all that may be are under way.
func TestTimesAndRoom(t *testing.T) {
	const bound = 4
	f := holding(t, bound)
	c := New(Config{URL: f.URL})
	defer c.Close()
	l := drawn(t, 20, 500)
	l.InFlight = bound
	records, _, err := collect(t.Context(), c, l)
	if err != nil || len(records) != 20 {
		t.Fatal(len(records), err)
	}
	for i, r := range records {
		if r.Error != "" || r.Sent < r.Intended || r.Sent < r.Room || i < bound && r.Room != 0 || i > 0 && r.Intended <= records[i-1].Intended {
			t.Errorf("%+v", r)
		}
	}
	first := records[0].Finish
	for _, r := range records[1:bound] {
		first = min(first, r.Finish)
	}
	if r := records[bound]; r.Sent < first {
		t.Errorf("request %d is sent before any has ended, at %v: %+v", bound, first, r)
	}
}

// drawn is n requests of 10 tokens at that rate.
func drawn(t *testing.T, n int, rate float64) load.Load {
	t.Helper()
	l, err := load.Spec{Requests: n, Rate: rate, Burstiness: 1, InputLen: 10, OutputLen: 2, Vocab: 1000}.Open()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// counted counts the requests that were taken from a load and have not reached the server.
type counted struct {
	load.Source
	taken, arrived atomic.Int64
	most           int64
}

func (c *counted) Next() (load.Request, bool, error) {
	c.most = max(c.most, c.taken.Add(1)-c.arrived.Load())
	return c.Source.Next()
}

// TestStream: of a long load no more is taken than is under way and a bounded number
// ahead.
func TestStream(t *testing.T) {
	const n, bound = 1000, 4
	source := &counted{Source: drawn(t, n, math.Inf(1)).Source}
	f := &clienttest.Server{}
	f.Behave = func(http.ResponseWriter, *http.Request, *clienttest.Completion) bool {
		source.arrived.Add(1)
		return false
	}
	clienttest.NewServer(t, f)
	c := New(Config{URL: f.URL})
	defer c.Close()
	ended := 0
	_, err := c.Run(t.Context(), "fake-7b", load.Load{Source: source, InFlight: bound}, func(*Record) { ended++ })
	if err != nil || ended != n {
		t.Fatal(ended, err)
	}
	// One is being drawn, one waits for room, and what is in flight may not have arrived.
	if source.most > ahead+bound+2 || source.most < ahead {
		t.Errorf("%d requests were taken and had not arrived, with %d in flight and %d ahead", source.most, bound, ahead)
	}
}

// failing is a load that fails after some requests.
type failing struct {
	load.Source
	n int
}

func (f *failing) Next() (load.Request, bool, error) {
	if f.n--; f.n < 0 {
		return load.Request{}, false, errors.New("line 4 is broken")
	}
	return f.Source.Next()
}

// TestLoadFails: what came before the error is asked and told of, and the error says which
// request.
func TestLoadFails(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	c := New(Config{URL: f.URL})
	defer c.Close()
	records, _, err := collect(t.Context(), c, load.Load{Source: &failing{drawn(t, 9, math.Inf(1)).Source, 3}})
	if err == nil || !strings.Contains(err.Error(), "request 3: line 4 is broken") || len(records) != 3 {
		t.Errorf("%d records, %v", len(records), err)
	}
	back := list(load.Request{At: time.Millisecond, Prompt: []kvcache.Token{1}, MaxTokens: 1}, load.Request{Prompt: []kvcache.Token{1}, MaxTokens: 1})
	if records, _, err := collect(t.Context(), c, back); err == nil || !strings.Contains(err.Error(), "request 1: the load goes back in time: due at 0s after 1ms") || len(records) != 1 || records[0].Error != "" {
		t.Errorf("%+v, %v", records, err)
	}
	if _, took, err := collect(t.Context(), c, load.Load{Source: &load.List{}}); err != nil || took < 0 {
		t.Errorf("nothing to ask: %v, %v", took, err)
	}
}

// BenchmarkDraw is what a request of 1,024 tokens costs before it can be sent.
func BenchmarkDraw(b *testing.B) {
	l, err := load.Spec{Requests: math.MaxInt, Rate: math.Inf(1), Burstiness: 1, InputLen: 1024, OutputLen: 16, Vocab: 151936}.Open()
	if err != nil {
		b.Fatal(err)
	}
	c := New(Config{URL: "http://localhost:1"})
	defer c.Close()
	e := c.encoder("a-model")
	b.ReportAllocs()
	for b.Loop() {
		r, _, err := l.Next()
		if err != nil {
			b.Fatal(err)
		}
		e.encode(&r, nil)
	}
}

// TestTimesOfTokens: what a server does at given times is measured so; never as less.
func TestTimesOfTokens(t *testing.T) {
	const ttft, itl, tokens = 30 * time.Millisecond, 5 * time.Millisecond, 8
	c := New(Config{URL: null(t, nullserver.Config{TTFT: ttft, ITL: itl}).URL()})
	defer c.Close()
	l := drawn(t, 20, 400)
	records, _, err := collect(t.Context(), c, load.Load{Source: &longer{l.Source, tokens}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Error != "" || len(r.TokenTimes) != tokens || r.TTFT() < ttft.Seconds() || r.E2EL() < (ttft+(tokens-1)*itl).Seconds() || r.Finish < r.TokenTimes[tokens-1] || r.ReadDelay < 0 {
			t.Errorf("TTFT %v, E2EL %v: %+v", r.TTFT(), r.E2EL(), r)
		}
	}
}

// longer is a load with answers of that many tokens.
type longer struct {
	load.Source
	tokens int
}

func (l *longer) Next() (load.Request, bool, error) {
	r, ok, err := l.Source.Next()
	r.MaxTokens = l.tokens
	return r, ok, err
}

// deaf is a clock whose timers never fire: a descriptor that nobody looks at.
type deaf struct{ clock.Clock }

func (d deaf) NewTimer() (clock.Timer, error) { return silent{}, nil }

type silent struct{}

func (silent) C() <-chan struct{} { return nil }
func (silent) Set(time.Duration)  {}
func (silent) Stop()              {}
func (silent) Close() error       { return nil }

// TestAlarm: what is due goes out though Go has no time to look at descriptors.
func TestAlarm(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	c := New(Config{URL: f.URL, Clock: deaf{clock.Std()}})
	defer c.Close()
	l := list(load.Request{At: 5 * time.Millisecond, Prompt: []kvcache.Token{1}, MaxTokens: 1})
	l.End = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	records, took, err := collect(ctx, c, l)
	if err != nil || len(records) != 1 || records[0].Error != "" || records[0].Sent < 0.005 || took < l.End {
		t.Errorf("%+v, %v, %v", records, took, err)
	}
}
