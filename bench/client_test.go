package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"kvferry/clock"
)

// ask sends one request to a server that behaves as told.
func ask(t *testing.T, timeout time.Duration, behave func(f *fakeServer, w http.ResponseWriter, r *http.Request, req *completionRequest)) Record {
	t.Helper()
	f := &fakeServer{}
	if behave != nil {
		f.behave = func(w http.ResponseWriter, r *http.Request, req *completionRequest) bool {
			behave(f, w, r, req)
			return true
		}
	}
	newFakeServer(t, f)
	c := NewClient(f.URL, timeout, clock.Precise())
	defer c.Close()
	records, _, err := c.Run(t.Context(), "fake-7b", []Request{{ID: "r-0", Prompt: []int{1, 2, 3}, MaxTokens: 6}}, Schedule{At: []time.Duration{0}}, nil)
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

func TestClientFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		behave func(f *fakeServer, w http.ResponseWriter, r *http.Request, req *completionRequest)
		want   []string
	}{
		{"truncated after 3 tokens", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			for range 3 {
				fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
			}
		}, []string{"without [DONE]", "after 3 chunks"}},
		{"truncated inside an event", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			fmt.Fprint(w, "data: {\"choices\":[{\"te")
		}, []string{"without [DONE]", "inside an event"}},
		{"connection aborted", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, req *completionRequest) {
			f.stream(w, req, 2)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, []string{"without [DONE]", "after 2 chunks", "EOF"}},
		{"short output", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, req *completionRequest) {
			f.stream(w, req, 5)
			fmt.Fprint(w, "data: [DONE]\n\n")
		}, []string{"short output: 5 tokens, want 6"}},
		{"no tokens", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			fmt.Fprint(w, "data: [DONE]\n\n")
		}, []string{"never received a valid chunk"}},
		{"no usage", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n")
		}, []string{"no usage"}},
		{"error in mid-stream", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: {\"error\":{\"message\":\"decode node d0 is lost\",\"code\":502}}\n\n")
		}, []string{"decode node d0 is lost"}},
		{"garbage", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			fmt.Fprint(w, "data: <html>oops\n\n")
		}, []string{"not JSON", "oops"}},
		{"OpenAI error", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			http.Error(w, `{"error":{"message":"prompt has 3 tokens, max_model_len is 2","type":"invalid_request_error","code":400}}`, http.StatusBadRequest)
		}, []string{"HTTP 400 Bad Request", "max_model_len is 2"}},
		{"plain error", func(f *fakeServer, w http.ResponseWriter, _ *http.Request, _ *completionRequest) {
			http.Error(w, "upstream died", http.StatusBadGateway)
		}, []string{"HTTP 502", "upstream died"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := ask(t, time.Minute, c.behave)
			for _, part := range c.want {
				if !strings.Contains(r.Error, part) {
					t.Errorf("error %q does not say %q", r.Error, part)
				}
			}
			if m := Measure([]Record{r}, 1); m.Failed != 1 || m.Successful != 0 {
				t.Errorf("counted as %d ok, %d failed", m.Successful, m.Failed)
			}
		})
	}
}

func TestClientTimeout(t *testing.T) {
	r := ask(t, 50*time.Millisecond, func(f *fakeServer, w http.ResponseWriter, r *http.Request, req *completionRequest) {
		f.stream(w, req, 1)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	if !strings.Contains(r.Error, "not over within 50ms") {
		t.Fatalf("error = %q, want the client's timeout", r.Error)
	}
}

func TestClientServerGone(t *testing.T) {
	f := newFakeServer(t, &fakeServer{})
	f.Close()
	c := NewClient(f.URL, time.Minute, clock.Precise())
	defer c.Close()
	records, _, err := c.Run(t.Context(), "m", []Request{{ID: "a", Prompt: []int{1}, MaxTokens: 1}}, Schedule{At: []time.Duration{0}}, nil)
	if err != nil || !strings.Contains(records[0].Error, "connection refused") {
		t.Fatalf("records = %+v, %v", records, err)
	}
}

// The open loop: no answer comes until every request has been sent.
func TestClientNeverQueues(t *testing.T) {
	const n = 64
	arrived := make(chan struct{}, n)
	release := make(chan struct{})
	f := &fakeServer{}
	f.behave = func(http.ResponseWriter, *http.Request, *completionRequest) bool {
		arrived <- struct{}{}
		<-release
		return false
	}
	newFakeServer(t, f)
	go func() {
		for range n {
			<-arrived
		}
		close(release)
	}()
	c := NewClient(f.URL, time.Minute, clock.Precise())
	defer c.Close()
	w := Workload{"256/q8", 256, 2000}
	schedule := PublishedSchedule(n, w.QPS, 0)
	records, duration, err := c.Run(t.Context(), "fake-7b", w.Requests(n, 0, "", safeVocabulary), schedule, nil)
	if err != nil {
		t.Fatal(err)
	}
	if duration < seconds(schedule.End) {
		t.Errorf("run lasted %v s, schedule %v", duration, schedule.End)
	}
	for i, r := range records {
		if r.Error != "" || r.Index != i {
			t.Fatalf("record %d: index %d, error %q", i, r.Index, r.Error)
		}
		if r.Intended != seconds(schedule.At[i]) || r.Sent < r.Intended {
			t.Errorf("record %d: intended %v, sent %v, schedule %v", i, r.Intended, r.Sent, schedule.At[i])
		}
	}
	for i, req := range f.requests() {
		if req.Model != "fake-7b" || !req.Stream || !req.StreamOptions.IncludeUsage || !req.IgnoreEOS || !req.ReturnBreakdown || req.MaxTokens != 6 || req.ID == "" {
			t.Fatalf("request %d on the wire: %+v", i, req)
		}
	}
}

func TestClientInterrupted(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	f := &fakeServer{}
	f.behave = func(_ http.ResponseWriter, r *http.Request, req *completionRequest) bool {
		if req.ID != "second" {
			return false
		}
		cancel()
		<-r.Context().Done()
		return true
	}
	newFakeServer(t, f)
	c := NewClient(f.URL, time.Minute, clock.Precise())
	requests := []Request{{ID: "first", Prompt: []int{1}, MaxTokens: 2}, {ID: "second", Prompt: []int{1}, MaxTokens: 2}, {ID: "third", Prompt: []int{1}, MaxTokens: 2}}
	records, _, err := c.Run(ctx, "fake-7b", requests, Schedule{At: []time.Duration{0, 0, time.Hour}, End: time.Hour}, nil)
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
	err := poll(ctx, func() error {
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
