package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"kvferry/bench"
	"kvferry/bench/nics"
	"kvferry/bench/observe"
	"kvferry/bench/rail"
	"kvferry/bench/simulation"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/transport/pacing"

	"kvferry/internal/clock/clocktest"
	"kvferry/node"
)

// mainEnv has this binary be kvferry.
const mainEnv = "KVFERRY_TEST_MAIN"

// The embedded cluster executes this binary again.
func TestMain(m *testing.M) {
	cluster.Child()
	rail.Child()
	if os.Getenv(mainEnv) != "" {
		Main()
	}
	clocktest.SideBySide() // they wait for children
	os.Exit(m.Run())
}

// TestEmbeddedCluster runs the main job, scaled down: every hand-off of the
// default settings over a real cluster of child processes.
func TestEmbeddedCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), "reproduce", "mooncake", "--settings", "chunked,rdma2,tcp,layerwise", "--num-prompts", "4", "--kv-warm-mib", "64", "--retries-disturbed", "0", "--clock", "both", "--out", dir)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	paced := func(link string) string { return fmt.Sprintf("%.2f GB/s (%s)", 1/p.Links[link].MSPerMB, link) }
	carried := "transfer on cma paced to " + paced("rdma2")
	if rail, why, err := (hardware{cluster.Spec{Link: "native"}}).carrier(bench.Settings()[3]); err != nil {
		t.Fatal(err)
	} else if rail[0] != "cma" {
		carried = "transfer on tcp/loopback (" + why + ") paced to " + paced("rdma2")
	}
	if !strings.Contains(stdout, carried) || !strings.Contains(stdout, "transfer on tcp/loopback paced to "+paced("tcp")) || !strings.Contains(stdout, "no KV transfer") ||
		!strings.Contains(stdout, "transfer modelled at "+paced("tcp")) || !strings.Contains(stdout, "clocks: real against virtual") {
		t.Errorf("stdout does not say what was measured and modelled:\n%s", stdout)
	}
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	var summary struct {
		Rows []struct {
			Setting string
			Clock   string
			Metrics struct {
				Checked int `json:"kv_blocks_checked"`
				Bad     int `json:"kv_blocks_bad"`
			}
			Disturbance *observe.Disturbance
		}
	}
	if err := json.Unmarshal(text, &summary); err != nil {
		t.Fatal(err)
	}
	if len(summary.Rows) != 8 {
		t.Errorf("%d rows, want four of each clock", len(summary.Rows))
	}
	for _, r := range summary.Rows {
		if r.Clock == "virtual" {
			if r.Disturbance != nil {
				t.Errorf("%s in virtual time was disturbed: %+v", r.Setting, r.Disturbance)
			}
			continue // moves no bytes
		}
		if d := r.Disturbance; d == nil || d.LateMaxMS == 0 || runtime.GOOS == "linux" && (d.CPU == nil || !d.CPU.Daemons || d.CPU.OwnPct == 0) {
			t.Errorf("%s: disturbance %+v", r.Setting, d)
		}
		if disagg := r.Setting != "chunked"; disagg != (r.Metrics.Checked >= 4*15) || r.Metrics.Bad != 0 {
			t.Errorf("%s: %d blocks checked, %d bad", r.Setting, r.Metrics.Checked, r.Metrics.Bad)
		}
	}
}

// profileFile writes a profile of few small layers (4 KiB of KV a token) whose decode
// step takes so many ms, and returns its path.
func profileFile(t *testing.T, vocab int, decodeMS float64) string {
	t.Helper()
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	p.Name, p.Vocab, p.KVBytes = "small", vocab, 64<<20
	p.KVGeometry.Layers, p.KVGeometry.KVHeads, p.KVGeometry.HiddenSize = 4, 2, 256
	p.Costs.DecodeStepMS, p.Disagg.DecodeStepMS = decodeMS, decodeMS
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "small.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOtherVocabulary: a model that knows 32,000 tokens is served prompts of those, in
// both clocks.
func TestOtherVocabulary(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := command(t.Context(), "reproduce", "mooncake", "--profile", profileFile(t, 32000, 1), "--settings", "nondisagg,tcp,layerwise",
		"--num-prompts", "3", "--retries-disturbed", "0", "--clock", "both", "--out", t.TempDir())
	if code != 0 || strings.Count(stdout, "Successful requests:                     3") != 3 {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
}

// TestCarrier: a setting whose rail is not to be had goes over loopback, and says so;
// one that the user has named is an error.
func TestCarrier(t *testing.T) {
	s := bench.Setting{Mode: bench.ModeDisagg, Link: "rate=1GB/s", Rail: "tcp/nosuch0"}
	rail, why, err := hardware{}.carrier(s)
	if err != nil || !slices.Equal(rail, []string{node.DefaultRail}) || !strings.Contains(why, "nosuch0") {
		t.Errorf("%s, %q, %v", rail, why, err)
	}
	c, link := &children{}, &pacing.Link{BytesPerSecond: 1e9}
	c.describe(link, rail, why)
	if c.link.Rail != "tcp/loopback" || c.link.Transfer != "paced" || !strings.Contains(c.link.Label, "nosuch0") || !strings.HasSuffix(c.link.Label, "paced to 1.00 GB/s") {
		t.Errorf("%+v", c.link)
	}
	if _, _, err := (hardware{cluster.Spec{Node: node.Config{Rails: []string{"tcp/nosuch0"}}}}).carrier(s); err == nil || !strings.Contains(err.Error(), "nosuch0") {
		t.Errorf("a rail the user asked for: %v", err)
	}
	c.describe(nil, []string{"cma"}, "")
	if c.link.Rail != "cma" || c.link.Transfer != "measured" || c.link.Label != "compute modelled, transfer measured on cma" {
		t.Errorf("%+v", c.link)
	}
}

// serve answers completions at once, as a non-disaggregated server would.
func serveHTTP(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", answer)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func ok(w http.ResponseWriter, _ *http.Request) {
	for range 6 {
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\" a\"}]}\n\n")
	}
	fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n")
}

func command(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = kvferry(false).Run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestRunAgainstProxy measures a plain OpenAI server, whose address may lack the
// scheme: nothing is claimed of it.
func TestRunAgainstProxy(t *testing.T) {
	for _, prefix := range []string{"http://", ""} {
		dir := t.TempDir()
		address := prefix + strings.TrimPrefix(serveHTTP(t, ok), "http://") + "/"
		code, stdout, stderr := command(t.Context(), "reproduce", "mooncake", "--proxy", address, "--settings", "tcp", "--num-prompts", "2", "--retries-disturbed", "0", "--out", dir)
		if code != 0 {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		if !strings.Contains(stdout, "Serving Benchmark Result") || !strings.Contains(stdout, "256/q8 TTFT (ms)") ||
			!strings.Contains(stdout, "256/q8 tcp (hand-off unknown; compute and transfer unknown") {
			t.Errorf("stdout:\n%s", stdout)
		}
		for _, claim := range []string{"v0", "modelled", "paced"} {
			if strings.Contains(strings.ReplaceAll(stdout, "measured and modelled", ""), claim) {
				t.Errorf("stdout says %q of a server that nobody knows:\n%s", claim, stdout)
			}
		}
		if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "cell 1/1 256/q8 tcp: 2 ok") {
			t.Errorf("stderr of a pipe must be a line a cell:\n%s", stderr)
		}
		var summary struct {
			Rows []struct {
				Handoff, Compute, Transfer, Label string
			} `json:"rows"`
		}
		text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
		if err != nil || json.Unmarshal(text, &summary) != nil || len(summary.Rows) != 1 {
			t.Fatalf("summary.json: %v, %s", err, text)
		}
		if row := summary.Rows[0]; row.Handoff != "unknown" || row.Compute != "unknown" || row.Transfer != "unknown" {
			t.Errorf("%+v", row)
		}
	}
}

// TestAnotherSettingExit2: what serves is not what --settings names.
func TestAnotherSettingExit2(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		case "/server_info":
			fmt.Fprint(w, `{"kvferry":{"serving":"disagg","handoff":"layerwise","nodes":[
				{"id":"p","role":"prefill","up":true,"link":"name=tcp,rate=1.38GB/s,latency=600us","rails":["tcp/0"]},
				{"id":"d","role":"decode","up":true,"link":"name=tcp,rate=1.38GB/s,latency=600us","rails":["tcp/0"]}]}}`)
		case "/health":
		default:
			t.Errorf("%s was asked for", r.URL)
		}
	}))
	t.Cleanup(server.Close)
	code, _, stderr := command(t.Context(), "reproduce", "mooncake", "--proxy", server.URL, "--settings", "tcp", "--out", t.TempDir())
	for _, want := range []string{"--settings: tcp is not what serves at " + server.URL, "hand-off layerwise, link tcp on tcp/0", "name layerwise", "--handoff v0", "--help"} {
		if code != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("exit %d, stderr does not say %q:\n%s", code, want, stderr)
		}
	}
}

func TestFailedRequestsExit1(t *testing.T) {
	code, stdout, stderr := command(t.Context(), "reproduce", "mooncake", "--settings", "tcp", "--num-prompts", "1", "--out", t.TempDir(),
		"--proxy", serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "pool is gone", http.StatusInternalServerError)
		}))
	if code != ExitFailed || !strings.Contains(stderr, "pool is gone") || !strings.Contains(stdout, "tcp *") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestInterruptedExit130(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var served atomic.Int32
	url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		// The server notices that the client has left only after the body.
		_, _ = io.Copy(io.Discard, r.Body)
		if served.Add(1) == 2 { // the first is the warm-up
			cancel()
			<-r.Context().Done()
			return
		}
		ok(w, r)
	})
	dir := t.TempDir()
	code, stdout, stderr := command(ctx, "reproduce", "mooncake", "--settings", "nondisagg", "--proxy", url, "--out", dir)
	if code != ExitInterrupted || !strings.Contains(stderr, "interrupted") || !strings.Contains(stdout, "interrupted after") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "results.jsonl")); err != nil || !bytes.Contains(text, []byte(`"error":"given up`)) {
		t.Errorf("results.jsonl: %v, %s", err, text)
	}
}

func TestUsageErrorsExit2(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"reproduce mooncake --rows 512/q1 --settings tcp --proxy http://x", []string{"--rows", `"512/q1"`, "1024/q2, 256/q2"}},
		{"reproduce mooncake --settings tcp,bogus", []string{"--settings", `"bogus"`, "layerwise"}},
		{"reproduce mooncake --num-prompts 0", []string{"--num-prompts: 0: use more than 0"}},
		{"reproduce mooncake --num-prompts many", []string{"--num-prompts", "many"}},
		{"reproduce mooncake --seed -1", []string{"--seed", "-1"}},
		{"reproduce mooncake --retries-disturbed -1", []string{"--retries-disturbed", "use 0 or more"}},
		{"reproduce mooncake --repeat 0", []string{"--repeat: 0: use more than 0"}},
		{"reproduce mooncake --request-timeout 0s --ready-timeout -1s", []string{"--request-timeout: 0s: ", "--ready-timeout: -1s: ", "use more than 0"}},
		{"reproduce mooncake --proxy /x --settings tcp", []string{"--proxy", "host:port"}},
		{"reproduce mooncake --proxy ftp://10.0.0.5:8000 --settings tcp", []string{"--proxy", "ftp://10.0.0.5:8000", "http://host:port"}},
		{"reproduce mooncake --proxy :8000 --settings tcp", []string{"--proxy", `":8000"`}},
		{"reproduce mooncake --proxy 10.0.0.5:port --settings tcp", []string{"--proxy", "host:port"}},
		{"reproduce mooncake --rail eth9 --proxy http://localhost:1 --settings tcp", []string{"--rail: it is for a cluster that kvferry starts", "leave it out"}},
		{"reproduce mooncake --proxy http://localhost:1", []string{"--settings", "serves one setting"}},
		{"reproduce mooncake --proxy http://localhost:1 --settings tcp,rdma", []string{"--settings", "serves one setting"}},
		{"reproduce mooncake --rail eth9", []string{`--rail: "eth9": neither an address nor a NIC`}},
		{"reproduce mooncake --rail cma,127.0.0.1:7000", []string{`--rail: "127.0.0.1:7000": all nodes are on this machine`}},
		{"reproduce mooncake --qps 3", []string{"--qps: there is no such flag"}},
		{"reproduce mooncake extra", []string{`"extra": kvferry reproduce mooncake takes none`}},
		{"moncake", []string{`"moncake": kvferry has no such command: is it kvferry reproduce mooncake or kvferry lab nics mooncake?`}},
	} {
		refused(t, c.args, c.want...)
	}
}

// refused fails unless kvferry says no to a command line, on stderr alone: with each of the texts, and
// where to read more.
func refused(t *testing.T, args string, want ...string) {
	t.Helper()
	code, stdout, stderr := command(t.Context(), strings.Fields(args)...)
	if code != ExitUsage || stdout != "" {
		t.Errorf("%s: exit %d, want %d: %s%s", args, code, ExitUsage, stdout, stderr)
	}
	for _, want := range append(want, "--help") {
		if !strings.Contains(stderr, want) {
			t.Errorf("%s: stderr does not say %q:\n%s", args, want, stderr)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	code, stdout, _ := command(t.Context(), "reproduce", "mooncake", "--help")
	for _, want := range []string{"Examples:", "--rows", "layerwise", "Exit status", "--num-prompts"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, help does not say %q:\n%s", code, want, stdout)
		}
	}
}

// TestFieldsHaveFlags: whatever is said of a field is said of a flag.
func TestFieldsHaveFlags(t *testing.T) {
	// What a program sets, not its user: writers, functions, and what other fields make
	// of flags.
	own := []string{
		"Stdout", "Progress", "Terminal", "Logger", "Log", "Command", "System", "Clock", "ParseLink", "ParseNIC", "Detailed", "Exe", "Bin", "Corrupt",
		"LogLevel", "LogFormat", "StopTimeout", "Costs", "Proxy", "Node", // of a cluster's daemons
	}
	for _, c := range []struct {
		config any
		names  map[string]string
	}{
		{bench.Config{}, mooncakeNames},
		{simulation.Config{}, simNames},
		{simulation.Sweep{}, simNames},
		{simulation.Simulation{}, simNames},
		{rail.Config{}, railNames(benching)},
		{rail.FailoverConfig{}, railNames(benching | failingOver)},
		{rail.CheckConfig{}, railNames(benching | checking)},
		{rail.ServerConfig{}, railNames(benchTarget)},
		{nics.Config{}, nicsNames},
		{nics.MooncakeConfig{}, nicsNames},
	} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.config)) {
			_, named := c.names[f.Name]
			within := slices.ContainsFunc(slices.Collect(maps.Keys(c.names)), func(name string) bool { return strings.HasPrefix(name, f.Name+".") })
			if f.IsExported() && !named && !within && !f.Anonymous && !slices.Contains(own, f.Name) {
				t.Errorf("%T.%s has no flag", c.config, f.Name)
			}
		}
	}
}
