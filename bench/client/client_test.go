package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client/clienttest"
	"kvferry/bench/stats"
	"kvferry/kvcache"
	"kvferry/load"
)

// list is a load of these.
func list(r ...load.Request) load.Load {
	l := load.List(r)
	return load.Load{Source: &l}
}

// collect runs a load and returns its records in order.
func collect(ctx context.Context, c *Client, l load.Load) (records []Record, took time.Duration, err error) {
	took, err = c.Run(ctx, "fake-7b", l, func(r *Record) { records = append(records, *r) })
	slices.SortFunc(records, func(a, b Record) int { return a.Index - b.Index })
	return records, took, err
}

// measure is the metrics of these records.
func measure(records []Record, duration float64) Metrics {
	var m Meter
	for i := range records {
		m.Add(&records[i])
	}
	return m.Metrics(duration)
}

// ask sends one request to a server that behaves as told.
func ask(t *testing.T, timeout time.Duration, behave func(f *clienttest.Server, w http.ResponseWriter, r *http.Request, req *clienttest.Completion)) Record {
	t.Helper()
	f := &clienttest.Server{}
	if behave != nil {
		f.Behave = func(w http.ResponseWriter, r *http.Request, req *clienttest.Completion) bool {
			behave(f, w, r, req)
			return true
		}
	}
	clienttest.NewServer(t, f)
	c := New(Config{URL: f.URL, Timeout: timeout})
	defer c.Close()
	records, _, err := collect(t.Context(), c, list(load.Request{ID: "r-0", Prompt: []kvcache.Token{1, 2, 3}, MaxTokens: 6}))
	if err != nil || len(records) != 1 {
		t.Fatalf("Run = %d records, %v", len(records), err)
	}
	return records[0]
}

func TestClientSuccess(t *testing.T) {
	r := ask(t, time.Minute, nil)
	if r.Error != "" {
		t.Fatal(r.Error)
	}
	if len(r.TokenTimes) != 6 || r.FirstToken != r.TokenTimes[0] || r.FinishReason != "length" {
		t.Errorf("token times %v, first %v, finish reason %q", r.TokenTimes, r.FirstToken, r.FinishReason)
	}
	last := r.Sent
	for _, at := range append(r.TokenTimes, r.Finish) {
		if at < last {
			t.Errorf("times go back: sent %v, tokens %v, finish %v", r.Sent, r.TokenTimes, r.Finish)
		}
		last = at
	}
	if r.Usage == nil || *r.Usage != (Usage{PromptTokens: 3, CompletionTokens: 6}) {
		t.Errorf("usage = %+v", r.Usage)
	}
	if r.Breakdown == nil || r.Breakdown.PrefillUS != 50000 || r.Breakdown.PrefillNode != "p0" {
		t.Errorf("breakdown = %+v", r.Breakdown)
	}
}

func TestClientTimeout(t *testing.T) {
	r := ask(t, 50*time.Millisecond, func(f *clienttest.Server, w http.ResponseWriter, r *http.Request, req *clienttest.Completion) {
		f.Stream(w, req, 1)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	if !strings.Contains(r.Error, "not over within 50ms, the client's timeout (--request-timeout)") {
		t.Fatalf("error = %q, want the client's timeout", r.Error)
	}
}

func TestClientServerGone(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	f.Close()
	c := New(Config{URL: f.URL})
	defer c.Close()
	records, _, err := collect(t.Context(), c, list(load.Request{Prompt: []kvcache.Token{1}, MaxTokens: 1}))
	if err != nil || !strings.Contains(records[0].Error, "connection refused") {
		t.Fatalf("records = %+v, %v", records, err)
	}
}

// holding is a server that answers nobody before n requests are there.
func holding(t *testing.T, n int) *clienttest.Server {
	arrived, release := make(chan struct{}, n), make(chan struct{})
	f := &clienttest.Server{}
	f.Behave = func(http.ResponseWriter, *http.Request, *clienttest.Completion) bool {
		select {
		case arrived <- struct{}{}:
		default: // all that count are there
		}
		<-release
		return false
	}
	clienttest.NewServer(t, f)
	go func() {
		for range n {
			<-arrived
		}
		close(release)
	}()
	return f
}

// The open loop: no answer comes until every request has been sent.
func TestClientNeverQueues(t *testing.T) {
	const n = 64
	f := holding(t, n)
	c := New(Config{URL: f.URL})
	defer c.Close()
	w := load.Workload{Name: "256/q8", InputLen: 256, QPS: 2000}
	want, err := load.Collect(w.Load(n, 0, "", 1000))
	if err != nil {
		t.Fatal(err)
	}
	records, took, err := collect(t.Context(), c, w.Load(n, 0, "", 1000))
	if err != nil || len(records) != n {
		t.Fatal(len(records), err)
	}
	if end := w.End(n, 0); took < end {
		t.Errorf("run lasted %v, the load %v", took, end)
	}
	for i, r := range records {
		if r.Error != "" || r.Index != i {
			t.Fatalf("record %d: index %d, error %q", i, r.Index, r.Error)
		}
		if r.Intended != stats.Seconds(want[i].At) || r.Sent < r.Intended || r.Room != 0 || r.RequestID != want[i].ID {
			t.Errorf("record %d: intended %v, sent %v, due %v", i, r.Intended, r.Sent, want[i].At)
		}
	}
	for i, req := range f.Requests() {
		if req.Model != "fake-7b" || !req.Stream || !req.StreamOptions.IncludeUsage || !req.IgnoreEOS || !req.ReturnBreakdown || req.MaxTokens != 6 || req.ID == "" {
			t.Fatalf("request %d on the wire: %+v", i, req)
		}
	}
}

func TestClientInterrupted(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	f := &clienttest.Server{}
	f.Behave = func(_ http.ResponseWriter, r *http.Request, req *clienttest.Completion) bool {
		if req.ID != "second" {
			return false
		}
		cancel()
		<-r.Context().Done()
		return true
	}
	clienttest.NewServer(t, f)
	c := New(Config{URL: f.URL})
	one := []kvcache.Token{1}
	l := list(load.Request{ID: "first", Prompt: one, MaxTokens: 2}, load.Request{ID: "second", Prompt: one, MaxTokens: 2}, load.Request{ID: "third", At: time.Hour, Prompt: one, MaxTokens: 2})
	l.End = time.Hour
	records, _, err := collect(ctx, c, l)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v, want context.Canceled", err)
	}
	if len(records) != 2 || !strings.Contains(records[1].Error, "interrupted") {
		t.Fatalf("records = %+v, want two, the second given up", records)
	}
	c.Close()
	f.Close()
	waitGoroutines(t, before)
}

// waitGoroutines fails when goroutines outlive what they served. Those of net/http
// end a moment after the call that ends them.
func waitGoroutines(t *testing.T, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := Poll(ctx, func() error {
		if n := runtime.NumGoroutine(); n > want {
			return fmt.Errorf("%d goroutines, %d at the start", n, want)
		}
		return nil
	})
	if err != nil {
		buf := make([]byte, 1<<16)
		t.Fatalf("%v\n%s", err, buf[:runtime.Stack(buf, true)])
	}
}
