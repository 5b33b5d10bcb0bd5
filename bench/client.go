package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"kvferry/clock"
)

// A Record is what happened to one request. Times are seconds since the run's
// start; a time that never came is 0.
type Record struct {
	Workload     string     `json:"workload"`
	Setting      string     `json:"setting"`
	Repeat       int        `json:"repeat"`
	Attempt      int        `json:"attempt,omitempty"` // 0, 1, ..: of a cell that was measured again
	Clock        string     `json:"clock"`             // ClockReal or ClockVirtual
	Index        int        `json:"index"`
	RequestID    string     `json:"request_id"`
	PromptTokens int        `json:"prompt_tokens"`
	MaxTokens    int        `json:"max_tokens"`
	Intended     float64    `json:"intended"`    // when the schedule wanted it sent
	Sent         float64    `json:"sent"`        // just before the HTTP request was written
	FirstToken   float64    `json:"first_token"` // first chunk with choices
	TokenTimes   []float64  `json:"token_times"` // every chunk with choices
	Finish       float64    `json:"finish"`      // end of the stream, or of trying
	FinishReason string     `json:"finish_reason,omitempty"`
	Status       string     `json:"status"` // StatusOK, StatusFailed or StatusInterrupted
	Error        string     `json:"error,omitempty"`
	Usage        *Usage     `json:"usage"`
	Breakdown    *Breakdown `json:"breakdown"`
}

// Values of Record.Status.
const (
	StatusOK          = "ok"
	StatusFailed      = "failed"
	StatusInterrupted = "interrupted" // in flight when the run was; it has what it had
)

// failure says why a record has no figures; "" for one that has them.
func (r *Record) failure() string {
	switch {
	case r.Error != "":
		return r.Error
	case len(r.TokenTimes) == 0:
		return errNoChunk.Error()
	case r.Usage == nil:
		return errNoUsage.Error()
	}
	return ""
}

// A StatusError is an HTTP answer other than 200.
type StatusError struct {
	Code    int
	Message string // the server's own words
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("HTTP %d %s: %s", e.Code, http.StatusText(e.Code), e.Message)
}

// A Client sends completions to one server. Close it after use.
type Client struct {
	url     string
	timeout time.Duration
	clock   clock.Clock
	http    *http.Client
	buffers sync.Pool
}

// NewClient returns a client of the server at url. A request that is not over
// after timeout fails. Connections are kept alive and unlimited in number, so a
// request never waits for another's.
func NewClient(url string, timeout time.Duration, clk clock.Clock) *Client {
	return &Client{
		url:     url,
		timeout: timeout,
		clock:   clk,
		http: &http.Client{Transport: &http.Transport{
			// No Proxy: what stands between the client and the server is
			// part of what is measured.
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			DisableCompression:  true,
			MaxIdleConnsPerHost: math.MaxInt,
			WriteBufferSize:     16 << 10, // a 1024-token prompt is 7 KB of JSON: one write
		}},
		buffers: sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }},
	}
}

// Close drops the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// get returns the body of url+path when the answer is 200. Bodies are cut at
// 8 MiB.
func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %w", path, statusError(resp))
	}
	return io.ReadAll(io.LimitReader(resp.Body, 8<<20))
}

// statusError reads the server's reason, an OpenAI error object or plain text.
func statusError(resp *http.Response) *StatusError {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what was read is what there is to say
	var body struct {
		Error *apiError `json:"error"`
		apiError
	}
	message := string(bytes.TrimSpace(text))
	if json.Unmarshal(text, &body) == nil {
		switch {
		case body.Error != nil:
			message = body.Error.Message
		case body.Message != "": // vLLM before 0.9 has no envelope
			message = body.Message
		}
	}
	return &StatusError{Code: resp.StatusCode, Message: message}
}

// end says how the request ended.
func (r *Record) end(err error) {
	switch {
	case err == nil:
		r.Status = StatusOK
		return
	case errors.Is(err, errInterrupted):
		r.Status = StatusInterrupted
	default:
		r.Status = StatusFailed
	}
	r.Error = err.Error()
}

// errInterrupted is of a request that was in flight when the run's context ended.
var errInterrupted = errors.New("given up: the run was interrupted")

// Run replays the schedule: request i is sent at schedule.At[i], whatever the
// others do. It returns a record of every request that was sent, in order, and
// the run's length in seconds, once all are over and the schedule has ended.
// When ctx is done, nothing more is sent, what is under way is given up, and
// the error is ctx's. onDone is called from many goroutines, once a request.
func (c *Client) Run(ctx context.Context, model string, requests []Request, schedule Schedule, onDone func(*Record)) ([]Record, float64, error) {
	if len(requests) != len(schedule.At) {
		return nil, 0, fmt.Errorf("%d requests for %d arrivals", len(requests), len(schedule.At))
	}
	bodies := make([][]byte, len(requests))
	for i, r := range requests {
		var err error
		if bodies[i], err = r.body(model); err != nil {
			return nil, 0, fmt.Errorf("request %d: %w", i, err)
		}
	}
	timer, err := c.clock.NewTimer()
	if err != nil {
		return nil, 0, err
	}
	defer timer.Close()

	records := make([]Record, len(requests))
	var wg sync.WaitGroup
	start := c.clock.Now()
	sent := 0
	for i := range requests {
		if err = c.wait(ctx, timer, start+schedule.At[i]); err != nil {
			break
		}
		sent++
		r := &records[i]
		*r = Record{
			Index:        i,
			RequestID:    requests[i].ID,
			PromptTokens: len(requests[i].Prompt),
			MaxTokens:    requests[i].MaxTokens,
			Intended:     seconds(schedule.At[i]),
			TokenTimes:   make([]float64, 0, requests[i].MaxTokens),
		}
		wg.Go(func() {
			r.end(c.complete(ctx, start, r, bodies[i]))
			if onDone != nil {
				onDone(r)
			}
		})
	}
	if err == nil {
		err = c.wait(ctx, timer, start+schedule.End)
	}
	wg.Wait()
	if err == nil {
		err = ctx.Err() // the last answers may have been given up
	}
	return records[:sent], seconds(c.clock.Now() - start), err
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
	defer func() { r.Finish = seconds(c.clock.Now() - start) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", r.RequestID)

	r.Sent = seconds(c.clock.Now() - start)
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
		at := seconds(c.clock.Now() - start)
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

// seconds is d rounded to the microsecond.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond).Microseconds()) / 1e6
}
