package cli

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"kvferry/bench/client/clienttest"
	"kvferry/bench/document"
	"kvferry/bench/nullserver"
)

// TestServeSampling: vLLM's flags of sampling go into every request, none where none is given;
// SGLang's client always says its temperature. A server that refuses one is asked without.
func TestServeSampling(t *testing.T) {
	const load = " --num-prompts 2 --random-input-len 8 --random-output-len 4"
	for _, c := range []struct {
		args   string
		server nullserver.Config
		has    []string
		not    []string
		says   string
	}{
		{"", nullserver.Config{}, nil, []string{"temperature", "top_p", "penalty"}, ""},
		{
			"--top-p 0.9 --top-k -1 --min-p 0.1 --temperature 0 --frequency-penalty -0.5 --presence_penalty 1 --repetition-penalty 1.1",
			nullserver.Config{},
			[]string{`"top_p":0.9`, `"top_k":-1`, `"min_p":0.1`, `"temperature":0,`, `"frequency_penalty":-0.5`, `"presence_penalty":1,`, `"repetition_penalty":1.1`},
			nil, "",
		},
		{"--compat sglang --backend sglang --dataset-name random --top-p 0.5", nullserver.Config{}, []string{`"sampling_params":{"max_new_tokens":`, `"top_p":0.5`, `"temperature":0,`}, nil, ""},
		{"--top-k 5 --top-p 0.5", nullserver.Config{Strict: true}, []string{`"top_p":0.5`}, []string{"top_k"}, "the server refuses top_k, so it was not sent"},
	} {
		var seen clienttest.Bodies
		_, stdout, _ := rowsOf(t, 0, strings.Fields(c.args+" --base-url "+clienttest.Tap(t, served(t, c.server), &seen)+load)...)
		all := seen.All()
		for _, body := range all[len(all)-2:] { // after those that found out what is taken
			for _, part := range c.has {
				if !strings.Contains(body, part) {
					t.Errorf("%q: no %s in %s", c.args, part, body)
				}
			}
			for _, part := range c.not {
				if strings.Contains(body, part) {
					t.Errorf("%q: %s in %s", c.args, part, body)
				}
			}
		}
		if !strings.Contains(stdout, c.says) {
			t.Errorf("%q: not a word of %q:\n%s", c.args, c.says, stdout)
		}
	}
}

// before stands before a server, notes which paths are asked, in turn, and answers some itself.
func before(t *testing.T, server string, own map[string]http.HandlerFunc) (at string, asked func() []string) {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	var mu sync.Mutex
	var paths []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.Method+" "+r.URL.RequestURI())
		mu.Unlock()
		if h := own[r.URL.Path]; h != nil {
			h(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
}

// TestServeFlush: the prefix cache is emptied after the warm-up and before the load, at the path
// that the server has; one that has none is said to have none, and nothing is measured.
func TestServeFlush(t *testing.T) {
	yes := func(http.ResponseWriter, *http.Request) {}
	for _, c := range []struct {
		backend, args string
		path          string
		want          []string
	}{
		{"sglang-oai", "--flush-cache", "/flush_cache", []string{"POST /flush_cache?timeout=60"}},
		{"sglang-oai", "--flush-cache --flush-cache-timeout 1.5", "/flush_cache", []string{"POST /flush_cache?timeout=1.5"}},
		{"vllm", "--flush-cache", "/reset_prefix_cache", []string{"POST /reset_prefix_cache"}},
		{"openai", "--flush-cache", "/flush_cache", []string{"POST /reset_prefix_cache", "POST /flush_cache?timeout=60"}},
		{"openai", "", "/flush_cache", nil},
	} {
		at, asked := before(t, served(t, nullserver.Config{}), map[string]http.HandlerFunc{c.path: yes})
		rowsOf(t, 0, strings.Fields(c.args+" --num-warmups 2 --num-prompts 3 --random-input-len 8 --random-output-len 4 --backend "+c.backend+" --base-url "+at)...)
		var all []string
		for _, path := range asked() {
			if strings.HasPrefix(path, "POST ") {
				all = append(all, strings.Replace(path, "POST /v1/completions", "ask", 1))
			}
		}
		if want := slices.Concat([]string{"ask", "ask", "ask"}, c.want, []string{"ask", "ask", "ask"}); !slices.Equal(all, want) {
			t.Errorf("%s %s: asked %q, want %q", c.backend, c.args, all, want)
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"--flush-cache: server at http://127.0.0.1": http.NotFound,
		"HTTP 400 Bad Request: requests are running": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "requests are running", http.StatusBadRequest)
		},
	} {
		at, asked := before(t, served(t, nullserver.Config{}), map[string]http.HandlerFunc{"/flush_cache": answer, "/reset_prefix_cache": http.NotFound})
		code, _, stderr := command(t.Context(), strings.Fields("bench --num-prompts 3 --flush-cache --base-url "+at+" --out "+t.TempDir())...)
		if code != ExitFailed || !strings.Contains(stderr, name) {
			t.Errorf("exit %d, %s; want %q", code, stderr, name)
		}
		if n := strings.Count(strings.Join(asked(), " "), "/v1/completions"); n != 1 {
			t.Errorf("asked %d times, the first is to find out what is taken: %q", n, asked())
		}
	}
}

// TestServeMetricsURL: the engines behind a gateway count together; none is given the gateway's
// key.
func TestServeMetricsURL(t *testing.T) {
	gateway := served(t, nullserver.Config{Key: "secret"})
	urls := " --metrics-url"
	for range 2 {
		looked := 0.0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "" {
				t.Errorf("%s, key %q", r.URL, r.Header.Get("Authorization"))
			}
			fmt.Fprintf(w, "vllm:request_success_total %v\nvllm:prefix_cache_queries_total %v\nvllm:prefix_cache_hits_total %v\n", 3*looked, 100*looked, 25*looked)
			looked++
		}))
		defer s.Close()
		urls += " " + s.URL
	}
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), strings.Fields("bench --api-key secret --num-prompts 6 --random-input-len 8 --random-output-len 4 --base-url "+gateway+urls+" --out "+dir)...)
	table, err := os.ReadFile(filepath.Join(dir, document.TableFile))
	if err != nil || code != 0 || !strings.Contains(string(table), "vLLM's own figures (2 servers together)") || !strings.Contains(string(table), "hit rate (%)") || strings.Contains(stdout, "others use") {
		t.Errorf("exit %d, %v\n%s\n%s\n%s", code, err, stdout, stderr, table)
	}
	_, none, _ := rowsOf(t, 0, strings.Fields("--api-key secret --num-prompts 6 --random-input-len 8 --random-output-len 4 --base-url "+gateway)...)
	if !strings.Contains(none, "/metrics") {
		t.Errorf("a gateway without metrics is not said to have none:\n%s", none)
	}
}

// TestServeStranger: what is said of a server that runs is of use to who asked it: its URL as it was
// asked, and nothing of fields that only kvferry has.
func TestServeStranger(t *testing.T) {
	at := served(t, nullserver.Config{Strict: true})
	dir := t.TempDir()
	code, _, stderr := command(t.Context(), strings.Fields("bench --num-prompts 1 --random-input-len 8 --random-output-len 4 --base-url "+at+"/v1 --out "+dir)...)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	table, err := os.ReadFile(filepath.Join(dir, document.TableFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"| " + at + "/v1/completions |", "measured: the server at " + at + "/v1 (it does not say what it is)", "1 request is too few"} {
		if !strings.Contains(string(table), part) {
			t.Errorf("no %q in\n%s", part, table)
		}
	}
	if strings.Contains(string(table), "return_breakdown") {
		t.Errorf("a note of kvferry's own field:\n%s", table)
	}
	summary, err := os.ReadFile(filepath.Join(dir, document.SummaryFile))
	if err != nil || !strings.Contains(string(summary), `"return_breakdown"`) {
		t.Errorf("%v: what was refused is not in\n%s", err, summary)
	}
}

// TestServeUnfit: what waiting does not mend is said at once, with the flag that does.
func TestServeUnfit(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	moved := httptest.NewServer(http.RedirectHandler("https://api.example.com/health", http.StatusMovedPermanently))
	defer moved.Close()
	noModel, _ := before(t, served(t, nullserver.Config{}), map[string]http.HandlerFunc{"/v1/completions": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"error":{"message":"The model does not exist."}}`)
	}})
	null := served(t, nullserver.Config{})
	for args, want := range map[string]string{
		"--base-url " + secure.URL: "--ca-cert: server at " + secure.URL,

		"--base-url " + strings.Replace(secure.URL, "https:", "http:", 1):             "--base-url: server at",
		"--base-url " + strings.Replace(null, "http:", "https:", 1):                   "--base-url: server at",
		"--base-url " + moved.URL:                                                     "name https://api.example.com",
		"--base-url " + noModel + " --model m":                                        `--model: server at ` + noModel + `: "m": name one that it has (it lists null): `,
		"--base-url " + null + " --endpoint /v2/x":                                    "--endpoint: server at " + null + ": /v2/x: it has no such path",
		"--base-url " + served(t, nullserver.Config{Key: "k"}):                        "--api-key: server at",
		"--base-url " + served(t, nullserver.Config{NoModels: true, NoHealth: true}):  "--model: server at",
		"--base-url http://127.0.0.1:1 --ready-check-timeout-sec 1":                   "is that where it listens (--base-url)?",
		"--base-url " + null + ` --extra-body {"n":0}`:                                "--extra-body: n: 0: use 1",
		"--base-url " + null + " --backend sglang --top-k 3":                          "--top-k: 3: it is for OpenAI's API",
		"--backend sglang --min-p 0.5":                                                "--min-p: 0.5: it is for OpenAI's API",
		"--base-url " + null + " --top-p x":                                           "--top-p",
		"--metrics-url http://x":                                                      "--metrics-url: it is of a server that runs",
		"--base-url " + null + " --metrics-url engine:8000":                           `--metrics-url: "engine:8000": write the page's URL`,
		"--base-url " + null + " --metrics-url http://localhost:1 http://127.0.0.1:1": `--metrics-url: "http://127.0.0.1:1": it is given twice`,
		"--base-url " + null + " --metrics-url http://a:1 http://a:1/metrics":         `--metrics-url: "http://a:1/metrics": it is given twice`,
		"--base-url " + null + " --metrics-url http://127.0.0.1:1":                    `--metrics-url: "http://127.0.0.1:1/metrics": it cannot be read`,
		"--base-url " + null + " --flush-cache-timeout 5":                             "--flush-cache-timeout: it is for --flush-cache",
	} {
		code, _, stderr := command(t.Context(), append([]string{"bench", "--num-prompts", "2", "--out", filepath.Join(t.TempDir(), "out")}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, want %q:\n%s", args, code, want, stderr)
		}
	}
}

// TestServeOtherLengths: a server with a cap of its own, and one that does not end: what the report
// says of both is true of the figures above it.
func TestServeOtherLengths(t *testing.T) {
	const args = " --num-prompts 5 --random-input-len 64 --random-output-len 16"
	rows, stdout, stderr := rowsOf(t, 1, strings.Fields("--base-url "+served(t, nullserver.Config{Tokens: 7})+args)...)
	if rows[0].Metrics["successful_requests"] != 0.0 {
		t.Errorf("%v", rows[0].Metrics)
	}
	for text, wants := range map[string][]string{
		stdout: {
			"Successful requests:                     5 ", "5 of 5 requests ended short, the first is request 0: 7 tokens, 16 were asked for (finish_reason length: a cap of the server's own?)",
			"The figures in vLLM's layout are of 5 answers that its client counts as successful",
		},
		stderr: {"no request was answered in full; the first: short output: 7 tokens, want 16"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
	if strings.Contains(stdout, "every latency of this report is 0") {
		t.Errorf("it has latencies:\n%s", stdout)
	}
	if _, stdout, _ = rowsOf(t, 0, strings.Fields("--base-url "+served(t, nullserver.Config{Tokens: 40})+args)...); !strings.Contains(stdout, "5 of 5 answers were longer than asked for, the first is request 0: 40 tokens, 16 were asked for") {
		t.Errorf("nothing is said of longer answers:\n%s", stdout)
	}
}
