package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvferry/bench/client/wire"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/load"
)

// Config is a client of one server, or of several that are alike. URL or URLs is required; a
// zero value of another field is its default.
type Config struct {
	URL string // of the server, "http://127.0.0.1:8000", with or without /v1
	// URLs are those of several workers, instead of URL. Assign says which is asked: a place
	// in URLs, of the request at that place of the load. Default: one after the other.
	URLs   []string
	Assign func(index int, r *load.Request) int

	Backend  string // one of Backends, default "openai"
	Endpoint string // path of the requests, default the backend's
	Model    string // that requests name; default is what Run is told, or /v1/models has first

	Header   http.Header // of every request
	APIKey   string      // Authorization: Bearer
	CAFile   string      // PEM: who may have signed an https server's certificate; default the system's
	Insecure bool        // https servers need not show who they are

	// Timeout is when a request that is not over fails. Default 120 s.
	Timeout time.Duration
	// First is how long the server may take to answer one of Probe's requests, of a few tokens, with
	// those in which it says that it is not ready. Default: as Timeout.
	First    time.Duration
	NoStream bool // answers are asked for in one piece
	// ChunkUsage asks vLLM's servers to count tokens with every chunk (continuous_usage_stats):
	// gaps between tokens are exact then, where a chunk has several.
	ChunkUsage bool
	Sampling   []Parameter // that requests name, where the server takes them
	// Extra are fields of every request's body, in JSON. One that the client has itself is
	// set to this.
	Extra map[string]json.RawMessage

	// Tokenizer is the model's: it counts tokens where the server does not, and turns ids
	// into text for servers that take no ids. Without one such prompts are words.
	Tokenizer load.Tokenizer
	TokenIDs  bool // texts are sent as the tokenizer's ids, where the server takes ids
	KeepText  bool // Record.Text is filled in
	// Retokenize counts each answer's text with the tokenizer too (Record.Retokenized).
	Retokenize bool

	// Trace is asked for the W3C trace context of a request just before it is sent: the
	// value of its traceparent header, none if it is "".
	Trace func(*Record) string
	// Clock is what times are read from. Default clock.Precise().
	Clock clock.Clock
}

// A Client sends completions to one server. Its methods may be called from several
// goroutines; each Run has a load of its own. Probe comes before Run.
type Client struct {
	cfg     Config
	backend Backend
	targets []*target
	accepts Accepts
	models  []string // that the server listed, where the configuration names one
	answers int      // to each request, by Config.Extra
	words   []string
	clock   clock.Clock
	http    *http.Client
	wire    *wire.Transport // nil where there is none
	name    string          // of requests that the load gives none
	err     error           // what is wrong with the configuration: all methods return it
}

// New returns a client. Connections are kept alive and unlimited in number, so a request
// never waits for another's. Close it after use. What is wrong with cfg is said by
// [Config.Validate], and by every method of the client.
func New(cfg Config) *Client {
	config.Default(&cfg.Timeout, 120*time.Second)
	config.Default(&cfg.First, cfg.Timeout)
	config.Default(&cfg.Clock, clock.Precise())
	if len(cfg.URLs) == 0 {
		cfg.URLs = []string{cfg.URL}
	}
	c := &Client{cfg: cfg, clock: cfg.Clock, words: commonWords, name: fmt.Sprintf("kvferry-%08x", rand.Uint32())}
	if c.err = cfg.Validate(); c.err != nil {
		c.http = &http.Client{}
		return c
	}
	c.backend, _ = ParseBackend(cfg.Backend) // Validate has seen all of these
	c.targets, _ = cfg.targets(c.backend)
	c.answers, _ = cfg.answers(c.backend)
	tls, _ := cfg.tls()
	c.http = httpClient(tls)
	c.accepts = cfg.everything(c.backend)
	c.accepts.PerChunk = c.accepts.PerChunk || cfg.ChunkUsage
	c.accepts.Endpoint, c.accepts.Model = c.targets[0].endpoint.String(), cfg.Model
	c.wire, _ = wire.New(wire.Config{Now: cfg.Clock.Now}) // where there is none, net/http does it all
	return c
}

// ownHeaders are set once, by the client.
var ownHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "X-Request-Id", "Traceparent"}

// Validate says what is wrong with a configuration: a [config.Invalid] with the names of
// its fields.
func (cfg Config) Validate() error {
	var faults config.Faults
	urls := "URLs"
	if len(cfg.URLs) == 0 {
		urls, cfg.URLs = "URL", []string{cfg.URL}
	}
	b, err := ParseBackend(cfg.Backend)
	faults.Check("Backend", err)
	_, err = cfg.targets(b)
	faults.Check(urls, err)
	_, err = cfg.tls()
	faults.Check("CAFile", err)
	for name, values := range cfg.Header {
		switch canonical := http.CanonicalHeaderKey(name); {
		case slices.Contains(ownHeaders, canonical):
			faults.Check("Header", fmt.Errorf("%q: this client sets it itself: leave it out", name))
		case strings.ContainsAny(name, " :\t") || name == "":
			faults.Check("Header", fmt.Errorf("%q: a header's name has no blanks and no colon", name))
		}
		for _, v := range append(values, name) {
			if !headerValue(v) {
				faults.Check("Header", fmt.Errorf("%q: a header has no control characters", v))
			}
		}
	}
	if !headerValue(cfg.APIKey) {
		faults.Check("APIKey", fmt.Errorf("a key has no control characters"))
	}
	checkSampling(cfg.Sampling, b, &faults)
	for name, value := range cfg.Extra {
		if !json.Valid(value) {
			faults.Check("Extra", fmt.Errorf("%s: %q is not JSON", name, value))
		}
	}
	_, err = cfg.answers(b)
	faults.Check("Extra", err)
	return faults.Err("client")
}

// maxAnswers bounds n. vLLM takes as many (VLLM_MAX_N_SEQUENCES).
const maxAnswers = 1 << 14

// answers is how many answers a request asks for: Extra's n, by default 1.
func (cfg *Config) answers(b Backend) (int, error) {
	if b.kind == generate {
		var params struct{ N int }
		if json.Unmarshal(cfg.Extra["sampling_params"], &params) == nil && params.N > 1 {
			return 1, fmt.Errorf("sampling_params: n is %d, and this client reads one answer of %s: use sglang-oai for several", params.N, b.Path)
		}
		return 1, nil
	}
	n := 1
	if value, given := cfg.Extra["n"]; given && (json.Unmarshal(value, &n) != nil || n < 1 || n > maxAnswers) {
		return 1, fmt.Errorf("n: %s: use 1 to %d answers to a request", value, maxAnswers)
	}
	return n, nil
}

// headerValue reports whether a text can stand in a header.
func headerValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// Close drops the connections. Call it when no Run is under way, and nothing after it.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	if c.wire != nil {
		c.wire.Close()
	}
}

// Accepts is what the server takes and tells, as far as is known: what [Client.Probe] found.
func (c *Client) Accepts() Accepts { return c.accepts }

// HTTP, Header and Pages are for what else is asked of the servers: how, with which header,
// and where a path is at each of them.
func (c *Client) HTTP() *http.Client { return c.http }

// Header is what every request has: the key, for one. See [Client.HTTP].
func (c *Client) Header() http.Header { return c.cfg.header() }

// Pages are the URLs of a path, one for each server. See [Client.HTTP].
func (c *Client) Pages(path string) (urls []string) {
	for _, t := range c.targets {
		urls = append(urls, t.base+path)
	}
	return urls
}

// Get returns the body of url+path when the answer is 200; of several workers it is the
// first's. Bodies are cut at 8 MiB.
func (c *Client) Get(ctx context.Context, path string) (body []byte, err error) {
	err = Again(ctx, func() error {
		body, err = c.ask(ctx, http.MethodGet, 0, path, nil)
		return err
	})
	return body, err
}

// Post asks one of several workers for a path, with an empty body; the answer is to be 200.
func (c *Client) Post(ctx context.Context, worker int, path string) error {
	_, err := c.ask(ctx, http.MethodPost, worker, path, nil)
	return err
}

// ask sends a request that is not part of a run.
func (c *Client) ask(ctx context.Context, method string, worker int, path string, body io.Reader) ([]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.targets[worker].base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = c.cfg.header()
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %w", method, path, readStatus(resp, cancel))
	}
	if by := coding(resp); by != "" {
		return nil, fmt.Errorf("%s %s: %w", method, path, compressed(by))
	}
	return io.ReadAll(io.LimitReader(resp.Body, 8<<20))
}
