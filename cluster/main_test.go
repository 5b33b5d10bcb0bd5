package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/modelled"
	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/proxy/openai"
)

func TestMain(m *testing.M) {
	probe()
	Child()
	if os.Getenv(orphanEnv) != "" {
		os.Exit(orphan())
	}
	clocktest.SideBySide()
	os.Exit(m.Run())
}

var handoffs = handoff.Names()

// patience bounds every wait of a test. It is no measure of speed: the two cores
// may be busy with other packages' tests.
const patience = 3 * time.Minute

// A cost says what the modelled GPU of a test takes, in milliseconds. MaxLen is
// the model's length in tokens.
type cost struct {
	PrefillToken, Decode float64
	MaxLen               int
}

// profile writes a profile of few small layers (4 KiB of KV a token) with these
// costs, and returns its path.
func profile(t testing.TB, c cost) string {
	t.Helper()
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p.Name = "test"
	p.KVGeometry = smallGeometry(t)
	p.KVBytes = 64 << 20
	p.MaxModelLen = 4096
	if c.MaxLen > 0 {
		p.MaxModelLen = c.MaxLen
	}
	p.MaxBatchedTokens = p.MaxModelLen
	p.Costs.PrefillTokenMS, p.Costs.DecodeStepMS, p.Disagg.DecodeStepMS = c.PrefillToken, c.Decode, c.Decode
	return write(t, p)
}

// smallGeometry has 4 KiB of KV a token, few enough that nodes read all of it in each step.
func smallGeometry(t testing.TB) kvcache.Geometry {
	t.Helper()
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	g := p.KVGeometry
	g.Layers, g.KVHeads, g.HiddenSize = 4, 2, 256
	return g
}

// write writes a profile, and returns its path.
func write(t testing.TB, p *engine.Profile) string {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// testCluster is a Cluster of child processes and a client of it.
type testCluster struct {
	*Cluster
	t    testing.TB
	http *http.Client
	logs *clocktest.Log
}

// start starts a cluster that serves. At the end it must stop as asked, with no
// crash and no race on its way. Leases last longer than a busy machine is silent,
// except where the test is about them. Where the geometry is the small one, tokens are drawn from KV.
func start(t testing.TB, cfg Spec) *testCluster {
	t.Helper()
	logs := &clocktest.Log{}
	cfg.Log = logs
	config.Default(&cfg.Node.WarmBytes, -1) // none
	if p, err := engine.LoadProfile(cmp.Or(cfg.Profile, engine.DefaultProfile)); err == nil {
		cfg.Node.TokensFromKV = p.KVGeometry == smallGeometry(t)
	}
	for _, limit := range []*time.Duration{&cfg.Proxy.RequestTimeout, &cfg.Proxy.LeaseTTL, &cfg.StopTimeout} {
		if *limit == 0 {
			*limit = patience
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl, err := Start(ctx, cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, logs)
	}
	c := &testCluster{Cluster: cl, t: t, logs: logs, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		text := logs.String()
		if strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:") {
			t.Error("a daemon crashed or raced")
		}
		if t.Failed() {
			t.Logf("the daemons said:\n%s", text)
		}
	})
	want := map[string]int{"prefill": cfg.Prefill, "decode": cfg.Decode, "nondisagg": cfg.Nondisagg}
	c.poll("the nodes to join", func() bool {
		for role, n := range want {
			if int(c.metric(fmt.Sprintf(`kvferry:nodes{role=%q}`, role))) != n {
				return false
			}
		}
		return true
	})
	return c
}

// poll waits for a condition that only asking can tell.
func (c *testCluster) poll(what string, cond func() bool) {
	c.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond) // mostly all metrics are asked for, which costs CPU
	defer tick.Stop()
	limit := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			c.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// metrics reads the proxy's. It is empty while the proxy is not there.
func (c *testCluster) metrics() string {
	resp, err := c.http.Get(c.URL() + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// metric is the sum of the series that begin with that; 0 if there is
// none.
func (c *testCluster) metric(series string) float64 { return value(c.metrics(), series) }

func value(metrics, series string) float64 {
	sum := 0.0
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, series); ok && (strings.HasSuffix(series, "}") || rest[0] == '{' || rest[0] == ' ') {
			f := strings.Fields(rest[strings.LastIndex(rest, "}")+1:])
			v, err := strconv.ParseFloat(f[0], 64)
			if err != nil {
				return 0
			}
			sum += v
		}
	}
	return sum
}

const model = "Qwen2.5-7B-Instruct-GPTQ-Int4"

// ofNode is a series of one node.
func ofNode(name, node string) string {
	return fmt.Sprintf(`%s{engine=%q,model_name=%q}`, name, node, model)
}

func (c *testCluster) running(node string) int {
	return int(c.metric(ofNode("vllm:num_requests_running", node)))
}

// quiet waits until no node has a request or a used block left.
func (c *testCluster) quiet() {
	c.t.Helper()
	c.poll("the nodes to be idle, with no block used", func() bool {
		seen := 0
		for line := range strings.Lines(c.metrics()) {
			for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} {
				if strings.HasPrefix(line, name+"{") {
					seen++
					if !strings.HasSuffix(line, " 0\n") {
						return false
					}
				}
			}
		}
		return seen > 0
	})
}

// A call is a request as a test makes it.
type call struct {
	Prompt    []int
	MaxTokens int
	Stream    bool
	Timeout   float64 // s
	Breakdown bool
	More      map[string]any // fields beside or instead of these
}

// vocab is that of the profile zero, which profile starts from.
const vocab = 151936

// prompt is a prompt of n tokens, different for each seed.
func prompt(seed, n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = (seed*7919 + i*104729 + 1) % vocab
	}
	return p
}

func (q call) body() []byte {
	b := map[string]any{"model": model, "prompt": q.Prompt, "max_tokens": q.MaxTokens, "stream": q.Stream, "ignore_eos": true}
	if q.Stream {
		b["stream_options"] = map[string]any{"include_usage": true}
	}
	if q.Timeout > 0 {
		b["timeout"] = q.Timeout
	}
	if q.Breakdown {
		b["return_breakdown"] = true
	}
	maps.Copy(b, q.More)
	data, err := json.Marshal(b)
	if err != nil {
		panic(err) // of maps and slices
	}
	return data
}

// A result is how a call ended, however it did.
type result struct {
	Status    int    // HTTP; 0 if there was no answer
	Text      string // of all tokens
	Tokens    int
	Done      bool // the answer is whole
	Finish    string
	Cached    int
	Breakdown map[string]any
	TTFT      time.Duration
	Second    time.Duration // from the first token to the second
	Err       apiError      // in the body or the stream
	Cut       error         // the connection broke
}

type apiError struct {
	Message, Type, Param, Code string
}

func (r result) String() string {
	return fmt.Sprintf("status %d, %d tokens, done %t, error %+v, connection %v", r.Status, r.Tokens, r.Done, r.Err, r.Cut)
}

// chunk is an answer or an event of a stream.
type chunk struct {
	Choices []struct {
		Text         string
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Breakdown map[string]any
	Error     *apiError
}

// A stream is a call under way.
type stream struct {
	t    testing.TB
	resp *http.Response
	in   *bufio.Reader
	sent time.Time
	q    call
	r    result
}

// open sends a call and returns when its answer begins.
func (c *testCluster) open(ctx context.Context, q call) *stream {
	s := &stream{t: c.t, q: q, sent: time.Now()}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL()+"/v1/completions", bytes.NewReader(q.body()))
	if err != nil {
		s.r.Cut = err
		return s
	}
	req.Header.Set("Content-Type", "application/json")
	if s.resp, s.r.Cut = c.http.Do(req); s.r.Cut == nil {
		s.r.Status, s.in = s.resp.StatusCode, bufio.NewReader(s.resp.Body)
	}
	return s
}

// next reads until n more tokens have come, or the stream ends: false.
func (s *stream) next(n int) bool {
	if s.in == nil || s.r.Done || s.r.Cut != nil {
		return false
	}
	if s.r.Status != http.StatusOK || !strings.HasPrefix(s.resp.Header.Get("Content-Type"), "text/event-stream") {
		s.whole()
		return false
	}
	for want := s.r.Tokens + n; s.r.Tokens < want; {
		line, err := s.in.ReadBytes('\n')
		if err != nil {
			s.r.Cut = err // also a clean end before [DONE]: nothing may look whole that is not
			return false
		}
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			_, err := io.Copy(io.Discard, s.in)
			s.r.Done, s.r.Cut = err == nil, err
			return false
		}
		s.take(data)
	}
	return true
}

func (s *stream) whole() {
	data, err := io.ReadAll(s.in)
	if err != nil {
		s.r.Cut = err
		return
	}
	s.take(data)
	s.r.Done = true
}

func (s *stream) take(data []byte) {
	var k chunk
	if err := json.Unmarshal(data, &k); err != nil {
		s.t.Errorf("an answer that is no JSON: %q: %v", data, err)
	}
	for _, choice := range k.Choices {
		s.r.Text += choice.Text
		if choice.FinishReason != nil {
			s.r.Finish = *choice.FinishReason
		}
		s.r.Tokens = strings.Count(s.r.Text, " ") // a token is a space and a word
		switch s.r.Tokens {
		case 1:
			s.r.TTFT = time.Since(s.sent)
		case 2:
			s.r.Second = time.Since(s.sent) - s.r.TTFT
		}
	}
	if k.Usage != nil {
		s.r.Cached = k.Usage.PromptTokensDetails.CachedTokens
		if _, stops := s.q.More["stop"]; !stops && k.Usage.CompletionTokens != s.r.Tokens { // with a stop string, a token's text may be missing
			s.t.Errorf("usage counts %d tokens, there are %d", k.Usage.CompletionTokens, s.r.Tokens)
		}
	}
	if k.Breakdown != nil {
		s.r.Breakdown = k.Breakdown
	}
	if k.Error != nil {
		s.r.Err = *k.Error
	}
}

// rest reads to the end.
func (s *stream) rest() result {
	for s.next(1) {
	}
	if s.resp != nil {
		s.resp.Body.Close()
	}
	return s.r
}

// do makes a call and reads all of its answer.
func (c *testCluster) do(q call) result {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return c.open(ctx, q).rest()
}

// expect fails the test unless the call has all its tokens.
func (r result) expect(t testing.TB, tokens int) {
	t.Helper()
	if r.Status != http.StatusOK || !r.Done || r.Tokens != tokens || r.Err != (apiError{}) {
		t.Fatalf("want all of %d tokens, got %v", tokens, r)
	}
}

// want is the text that a cluster of the small geometry gives if no byte of KV is wrong: its tokens follow
// from the call alone.
func want(t testing.TB, q call) string {
	t.Helper()
	tok := openai.NewTokenizer(vocab)
	r := engine.Request{Prompt: tokensOf(q.Prompt), MaxTokens: q.MaxTokens}
	r.Words.First, r.Words.Count = tok.Words()
	for field, value := range q.More {
		switch field {
		case "model":
			if value != model {
				r.Adapter = value.(string)
			}
		case "cache_salt":
			r.Salt = value.(string)
		}
	}
	return tok.Decode(modelled.Answer(smallGeometry(t), vocab, &r))
}

// descriptors counts the open files of a daemon.
func descriptors(t testing.TB, p *Process) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// wait waits for a daemon's end.
func wait(t testing.TB, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("%s did not end", p.Name)
	}
}

// broken reports whether a stream ended with an error event and then an aborted
// connection, the way that no client can take for a whole answer.
func (r result) broken() bool {
	return r.Err.Message != "" && !r.Done && errors.Is(r.Cut, io.ErrUnexpectedEOF)
}

// unsent reports whether the call failed before its first token with an error
// that one can act on.
func (r result) unsent(codes ...string) bool {
	return r.Status >= 500 && r.Tokens == 0 && r.Err.Message != "" && slices.Contains(codes, r.Err.Code)
}
