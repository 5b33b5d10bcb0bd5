package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"kvferry/clock"
	"kvferry/config"
)

// Config is a client of one server. URL is required; a zero value of another field is its
// default.
type Config struct {
	URL string // of the server, "http://127.0.0.1:8000"
	// Timeout is when a request that is not over fails. Default 120 s.
	Timeout time.Duration
	// Clock is what times are read from. Default clock.Precise().
	Clock clock.Clock
}

// A Client sends completions to one server. Its methods may be called from several
// goroutines; each Run has a load of its own.
type Client struct {
	url     string
	timeout time.Duration
	clock   clock.Clock
	http    *http.Client
	buffers sync.Pool
	name    string // of requests that the load gives none
}

// New returns a client. Connections are kept alive and unlimited in number, so a request
// never waits for another's. Close it after use.
func New(cfg Config) *Client {
	config.Default(&cfg.Timeout, 120*time.Second)
	if cfg.Clock == nil {
		cfg.Clock = clock.Precise()
	}
	return &Client{
		url:     cfg.URL,
		timeout: cfg.Timeout,
		clock:   cfg.Clock,
		http: &http.Client{Transport: &http.Transport{
			// No Proxy: what stands between the client and the server is
			// part of what is measured.
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			DisableCompression:  true,
			MaxIdleConnsPerHost: math.MaxInt,
			WriteBufferSize:     16 << 10, // a 1024-token prompt is 7 KB of JSON: one write
		}},
		buffers: sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }},
		name:    fmt.Sprintf("kvbench-%08x", rand.Uint32()),
	}
}

// Close drops the idle connections. Call it when no Run is under way, and nothing after
// it.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get returns the body of url+path when the answer is 200. Bodies are cut at
// 8 MiB.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
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

// A StatusError is an HTTP answer other than 200.
type StatusError struct {
	Code    int
	Message string // the server's own words
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("HTTP %d %s: %s", e.Code, http.StatusText(e.Code), e.Message)
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
