package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"kvferry/bench/figure"
	"kvferry/clock"
	"kvferry/kvcache"
	"kvferry/load"
)

// ahead is how many requests are drawn and encoded before they are due. A prompt of 1,024
// tokens takes 35 us (BenchmarkDraw), which must not delay a sending. A burst within the
// bound goes out at once: the largest of Mooncake's conversation trace has 28 requests at
// one moment. Of a larger one the rest is as late as its records say. The bound is also
// what a load takes in memory: 64 prompts of 1,024 tokens are 0.5 MB, of 100,000 45 MB.
const ahead = 64

// maxInFlight is more than a machine has ports for.
const maxInFlight = 1 << 20

// A job is a request that is ready to be sent.
type job struct {
	Record
	at   time.Duration
	body []byte
	err  error // of the load, instead of a request
}

// Run asks the server what the load says: each request when it is due and there is room
// for it (see [load.Load]), whatever the others do. It returns how long the run was, once
// all requests are over and l.End has passed. done is told of each request when it is
// over, of one at a time; the record is done's to keep.
//
// When ctx is done nothing more is sent, what is under way is given up, and the error is
// ctx's. An error of the load ends the run when the requests before it are over. Run takes
// up to 64 requests from the load before they are due, from a goroutine of its own, and has
// stopped when it returns; the load is the caller's to close.
func (c *Client) Run(ctx context.Context, model string, l load.Load, done func(*Record)) (time.Duration, error) {
	if l.InFlight < 0 || l.InFlight > maxInFlight {
		return 0, fmt.Errorf("%d requests in flight: use 0 to %d", l.InFlight, maxInFlight)
	}
	timer, err := c.clock.NewTimer()
	if err != nil {
		return 0, err
	}
	defer timer.Close()
	ctx, stop := context.WithCancel(ctx)
	jobs, ready := make(chan job, ahead), make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() { c.draw(ctx, model, l, jobs, ready) })
	defer drawing.Wait()
	defer stop()
	<-ready // nothing is late because it was not yet drawn

	r := &run{client: c, start: c.clock.Now(), timer: timer, done: done}
	if l.InFlight > 0 {
		r.room = make(chan time.Duration, l.InFlight)
	}
	for j := range jobs {
		if err = j.err; err == nil {
			err = r.send(ctx, &j)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = c.wait(ctx, timer, r.start+l.End)
	}
	r.sent.Wait()
	if err == nil {
		err = ctx.Err() // the last answers may have been given up
	}
	return c.clock.Now() - r.start, err
}

// draw takes requests from the load and encodes them until it has no more, and closes
// jobs. ready is closed when as many are ready as may be, or all.
func (c *Client) draw(ctx context.Context, model string, l load.Load, jobs chan<- job, ready chan<- struct{}) {
	defer close(jobs)
	enough := sync.OnceFunc(func() { close(ready) })
	defer enough()
	for i, last := 0, time.Duration(0); ; i++ {
		r, ok, err := l.Next()
		j := job{at: r.At}
		switch {
		case err == nil && !ok:
			return
		case err == nil && r.At < last:
			err = fmt.Errorf("the load goes back in time: due at %v after %v", r.At, last)
		}
		if err == nil {
			if r.ID == "" {
				r.ID = fmt.Sprintf("%s-%d", c.name, i)
			}
			j.Record = Record{Index: i, RequestID: r.ID, PromptTokens: len(r.Prompt), MaxTokens: r.MaxTokens, Intended: figure.Seconds(r.At)}
			j.body, err = body(model, r.Prompt, r.MaxTokens)
		}
		if err != nil {
			j.err = fmt.Errorf("request %d: %w", i, err)
		}
		last = r.At
		if len(jobs) == cap(jobs) {
			enough()
		}
		select {
		case jobs <- j:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// body is a request as POST /v1/completions takes it.
func body(model string, prompt []kvcache.Token, maxTokens int) ([]byte, error) {
	type options struct {
		IncludeUsage bool `json:"include_usage"`
	}
	return json.Marshal(struct {
		Model           string          `json:"model"`
		Prompt          []kvcache.Token `json:"prompt"`
		MaxTokens       int             `json:"max_tokens"`
		Temperature     float64         `json:"temperature"`
		IgnoreEOS       bool            `json:"ignore_eos"`
		Stream          bool            `json:"stream"`
		StreamOptions   options         `json:"stream_options"`
		ReturnBreakdown bool            `json:"return_breakdown"`
	}{model, prompt, maxTokens, 0, true, true, options{true}, true})
}

// A run is one that goes on.
type run struct {
	client *Client
	start  time.Duration
	timer  clock.Timer
	room   chan time.Duration // when a request ended, whose place nobody has taken; nil for any number in flight
	latest time.Duration      // of what has come from room
	sent   sync.WaitGroup     // requests that are not over

	telling sync.Mutex
	done    func(*Record)
}

// send sends a request when it is due and there is room. It does not wait for the answer.
func (r *run) send(ctx context.Context, j *job) error {
	c := r.client
	if err := c.wait(ctx, r.timer, r.start+j.at); err != nil {
		return err
	}
	rec := j.Record
	if r.room != nil && j.Index >= cap(r.room) {
		select {
		case at := <-r.room:
			// Of two that end at once, the later one may have said so first. Nobody has room
			// before those that were sent before.
			r.latest = max(r.latest, at)
			if r.latest > j.at {
				rec.Room = figure.Seconds(r.latest)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	rec.TokenTimes = make([]float64, 0, min(j.MaxTokens, 4096)) // a trace may ask for a billion
	body := j.body
	r.sent.Go(func() {
		rec.end(c.complete(ctx, r.start, &rec, body))
		if r.room != nil {
			r.room <- c.clock.Now() - r.start
		}
		r.telling.Lock()
		defer r.telling.Unlock()
		if r.done != nil {
			r.done(&rec)
		}
	})
	return nil
}

// wait returns at the given time of the clock, or with ctx's error.
func (c *Client) wait(ctx context.Context, timer clock.Timer, at time.Duration) error {
	for c.clock.Now() < at {
		timer.Set(at)
		select {
		case <-timer.C():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

var errTimeout = errors.New("the client's timeout")

// complete sends one request and fills in its record.
func (c *Client) complete(ctx context.Context, start time.Duration, r *Record, body []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("not over within %v, %w", c.timeout, errTimeout))
	defer cancel()
	defer func() { r.Finish = figure.Seconds(c.clock.Now() - start) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", r.RequestID)

	r.Sent = figure.Seconds(c.clock.Now() - start)
	resp, err := c.http.Do(req)
	if err != nil {
		return because(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return statusError(resp)
	}
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	stream := streamReader{record: r}
	for {
		n, err := resp.Body.Read(*buf)
		at := figure.Seconds(c.clock.Now() - start)
		if err := stream.feed((*buf)[:n], at); err != nil {
			return err
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), stream.done:
			return stream.end()
		default:
			return because(ctx, fmt.Errorf("%w, after %d chunks: %w", errTruncated, len(r.TokenTimes), err))
		}
	}
}

// because names the reason a context was cut short instead of the failed call.
func because(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
		return cause
	}
	return errInterrupted
}
