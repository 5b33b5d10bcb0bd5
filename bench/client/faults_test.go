package client

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"kvferry/bench/client/clienttest"
	"kvferry/kvcache"
	"kvferry/load"
)

// A wrong is a server that does something wrong, and what is made of it.
type wrong struct {
	name    string
	backend string
	serve   func(w http.ResponseWriter)
	fault   string
	says    []string // parts of the error
	notes   []string
	vllm    bool // vLLM's client would count it as successful
	sglang  bool // and SGLang's, with the same backend
}

const (
	token  = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n"
	last   = "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"length\"}]}\n\n"
	stop   = "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\n"
	six    = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":6}}\n\n"
	five   = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5}}\n\n"
	doneAt = "data: [DONE]\n\n"
)

// says is a server that writes this in pieces.
func says(pieces ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range pieces {
			fmt.Fprint(w, p)
			w.(http.Flusher).Flush()
		}
	}
}

// dies is one that writes this, and then its connection is gone.
func dies(pieces ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		says(pieces...)(w)
		panic(http.ErrAbortHandler)
	}
}

// unending writes text over and over until the client is gone.
func unending(w http.ResponseWriter, text string) {
	for http.NewResponseController(w).Flush() == nil {
		fmt.Fprint(w, text)
		<-time.NewTimer(100 * time.Millisecond).C
	}
}

var wrongs = []wrong{
	{name: "nothing wrong", serve: says(token, token, token, token, token, last, six, doneAt), vllm: true, sglang: true},
	{name: "truncated after 3 tokens", serve: says(token, token, token), fault: FaultNoEnd, says: []string{"without [DONE]", "after 3 chunks"}, vllm: true, sglang: true},
	{name: "truncated inside an event", serve: says("data: {\"choices\":[{\"te"), fault: FaultTruncated, says: []string{"without [DONE]", "inside an event"}},
	{name: "connection aborted", serve: dies(token, token), fault: FaultTruncated, says: []string{"without [DONE]", "after 2 chunks", "EOF"}},
	{name: "connection aborted after its end", serve: dies(token, token, token, token, token, last, six, doneAt), vllm: true, sglang: true},
	{name: "dies before its answer", serve: dies(), fault: FaultEmpty},
	{name: "open after [DONE]", serve: func(w http.ResponseWriter) {
		says(token, token, token, token, token, last, six, doneAt)(w)
		for range 3 * int(afterDone/(100*time.Millisecond)) { // until the client is gone, or not
			<-time.NewTimer(100 * time.Millisecond).C
			fmt.Fprint(w, "\n")
			w.(http.Flusher).Flush()
		}
	}, notes: []string{NoteOpen}, vllm: true, sglang: true},
	{name: "no [DONE]", serve: says(token, token, token, token, token, last, six), notes: []string{NoteNoDone}, vllm: true, sglang: true},
	{name: "more tokens than there are", serve: says(token, token, token, token, token, last, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":4611686018427387904}}\n\n", doneAt), fault: FaultGarbage, says: []string{"usage:", "4611686018427387904"}},
	{name: "a billion tokens", serve: says(token, token, token, token, token, last, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":1000000000}}\n\n", doneAt), fault: FaultGarbage, says: []string{"usage:", "1000000000"}},
	{name: "a prompt of a billion tokens", serve: says(token, token, token, token, token, last, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1000000000,\"completion_tokens\":6}}\n\n", doneAt), fault: FaultGarbage, says: []string{"usage:", "1000000000"}},
	{name: "a billion tokens in a chunk", serve: says(strings.Replace(token, "]}", "],\"usage\":{\"completion_tokens\":1000000000}}", 1), token, token, token, token, last, six, doneAt), vllm: true, sglang: true},
	{name: "a choice before the first", serve: says("data: {\"choices\":[{\"index\":-1,\"text\":\"x\"}]}\n\n", last, six, doneAt), fault: FaultGarbage, says: []string{"index is -1"}},
	{name: "a choice at no place", serve: says("data: {\"choices\":[{\"index\":9223372036854775807,\"text\":\"x\"}]}\n\n", last, six, doneAt), fault: FaultGarbage, says: []string{"index is 9223372036854775807"}},
	{name: "more KV than there is", serve: says(token, token, token, token, token, last, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":6},\"breakdown\":{\"kv_bytes\":9223372036854775807}}\n\n", doneAt), fault: FaultGarbage, says: []string{"kv_bytes"}},
	{name: "a time before the request", serve: says(token, "data: {\"choices\":[],\"timings\":{\"prompt_ms\":-1}}\n\n"), fault: FaultGarbage, says: []string{"a time of -0.001 s"}},
	{name: "a time without end", backend: "sglang", serve: says("data: {\"text\":\"x\",\"meta_info\":{\"completion_tokens\":6,\"e2e_latency\":1e308}}\n\n", doneAt), fault: FaultGarbage, says: []string{"a time of 1e+308 s"}},
	{name: "fewer than none", serve: says(token, token, token, token, token, last, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":-6}}\n\n", doneAt), fault: FaultGarbage, says: []string{"usage:", "-6 of the answer"}},
	{name: "short output", serve: says(token, token, token, token, last, five, doneAt), fault: FaultShort, says: []string{"short output: 5 tokens, want 6"}, vllm: true, sglang: true},
	{name: "stopped early", serve: says(token, token, token, token, stop, five, doneAt), notes: []string{NoteStopped}, vllm: true, sglang: true},
	{name: "too long", serve: says(token, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\n", doneAt), notes: []string{NoteLong, NoteChunks}, vllm: true, sglang: true},
	{name: "no tokens", serve: says(doneAt), fault: FaultEmpty, says: []string{"never received a valid chunk"}, sglang: true},
	{name: "an error in mid-stream", serve: says(token, "data: {\"error\":{\"message\":\"decode node d0 is lost\",\"code\":502}}\n\n"), fault: FaultServer, says: []string{"decode node d0 is lost"}, vllm: true},
	{name: "an error instead of tokens", serve: says("data: {\"object\":\"error\",\"message\":\"no room\"}\n\n", doneAt), fault: FaultServer, says: []string{"no room"}},
	{name: "an error in SGLang's stream", backend: "sglang", serve: says("data: {\"error\":{\"message\":\"aborted\"}}\n\n", doneAt), fault: FaultServer, says: []string{"aborted"}, sglang: true},
	{name: "an event named error", serve: says(token, "event: error\ndata: upstream timed out\n\n"), fault: FaultEvent, says: []string{"server: upstream timed out"}},
	{name: "an object in one", serve: says(token, "event: error\ndata: {\"type\":\"overloaded\",\"code\":529}\n\n"), fault: FaultEvent, says: []string{`server: {"type":"overloaded","code":529}`}},
	{name: "a message in one", serve: says(token, "event: error\ndata: {\"error\":{\"message\":\"no room\"}}\n\n"), fault: FaultEvent, says: []string{"server: no room"}},
	{name: "nothing in one", serve: says("event: error\ndata:\n\n"), fault: FaultEvent, says: []string{"an event named error"}},
	{name: "compressed", serve: func(w http.ResponseWriter) {
		w.Header().Set("Content-Encoding", "gzip")
		says("\x1f\x8b\x08\x00\x00", "\x00\x00")(w)
	}, fault: FaultCompressed, says: []string{"compressed (Content-Encoding: gzip)"}},
	{name: "not compressed", serve: func(w http.ResponseWriter) {
		w.Header().Set("Content-Encoding", "identity")
		says(token, token, token, token, token, last, six, doneAt)(w)
	}, vllm: true, sglang: true},
	{name: "a compressed error", serve: func(w http.ResponseWriter) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, "\x1f\x8b\x08\x00\x00")
	}, fault: FaultStatus, says: []string{"HTTP 502", "Content-Encoding: gzip"}},
	{name: "an error that does not end", serve: func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"detail":"no key"}`)
		unending(w, " ")
	}, fault: FaultStatus, says: []string{"HTTP 401 Unauthorized: ", "no key"}},
	{name: "a large error that does not end", serve: func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusInternalServerError)
		unending(w, strings.Repeat("no room ", 20_000))
	}, fault: FaultStatus, says: []string{"HTTP 500", "no room no room", "..."}},
	{name: "an error in one piece", serve: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"error":"out of memory"}`)
	}, fault: FaultServer, says: []string{"out of memory"}},
	{name: "garbage", serve: says("data: <html>oops\n\n"), fault: FaultGarbage, says: []string{"not JSON", "oops"}},
	{name: "a page", serve: func(w http.ResponseWriter) { fmt.Fprint(w, "<html>\n<body>welcome</body>\n</html>\n") }, fault: FaultGarbage, says: []string{"no stream of events"}},
	{name: "garbage in one piece", serve: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "{}}")
	}, fault: FaultGarbage, says: []string{"not JSON"}},
	{name: "events after [DONE]", serve: says(token, doneAt+token), fault: FaultGarbage, says: []string{"after [DONE]"}},
	{name: "an endless line", serve: func(w http.ResponseWriter) {
		for range 80 {
			fmt.Fprint(w, strings.Repeat("data", 1<<14))
		}
	}, fault: FaultEndless, says: []string{"event of more than"}},
	{name: "a rune in two pieces", serve: says("data: {\"choices\":[{\"text\":\"\xe2\x82", "\xac\"}]}\n\n", token, token, token, token, last, six, doneAt), vllm: true, sglang: true},
	{name: "a rune in two chunks", serve: says("data: {\"choices\":[{\"text\":\"\xe2\x82\"}]}\n\n", "data: {\"choices\":[{\"text\":\"\xac\"}]}\n\n", token, token, token, last, six, doneAt), notes: []string{NoteHalfRune}, vllm: true, sglang: true},
	{name: "half a rune at the end", serve: says(token, token, token, token, token, "data: {\"choices\":[{\"text\":\"\xf0\x9f\x98\",\"finish_reason\":\"length\"}]}\n\n", six, doneAt), notes: []string{NoteHalfRune, NoteHalfEnd}, vllm: true, sglang: true},
	{name: "in one chunk", serve: says(last, six, doneAt), notes: []string{NoteChunks}, vllm: true, sglang: true},
	{name: "too much in one chunk", serve: says(last, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":40}}\n\n", doneAt), notes: []string{NoteLong, NoteNotStreamed}, vllm: true, sglang: true},
	{name: "in one read", serve: says(strings.Repeat(token, 5) + last + six + doneAt), notes: []string{NoteNotStreamed}, vllm: true, sglang: true},
	{name: "in one piece", serve: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"text":"xxxxxx","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":6}}`)
	}, notes: []string{NoteNotStreamed}, vllm: true, sglang: true},
	{name: "an OpenAI error", serve: func(w http.ResponseWriter) {
		http.Error(w, `{"error":{"message":"prompt has 3 tokens, max_model_len is 2","type":"invalid_request_error","code":400}}`, http.StatusBadRequest)
	}, fault: FaultStatus, says: []string{"HTTP 400 Bad Request", "max_model_len is 2"}},
	{name: "another model's token", serve: func(w http.ResponseWriter) {
		http.Error(w, `{"error":{"message":"Token id 31999 is out of vocabulary","type":"BadRequestError","code":400}}`, http.StatusBadRequest)
	}, fault: FaultStatus, says: []string{"Token id 31999 is out of vocabulary (--tokenizer names the model's"}},
	{name: "an error of FastAPI", serve: func(w http.ResponseWriter) {
		http.Error(w, `{"detail":[{"loc":["body"],"msg":"field required"}]}`, http.StatusUnprocessableEntity)
	}, fault: FaultStatus, says: []string{"HTTP 422", "field required"}},
	{name: "orders to a terminal", serve: func(w http.ResponseWriter) {
		http.Error(w, "\x1b[31mno\n\r\u009b2J room"+strings.Repeat(" and so on", 10_000), http.StatusBadGateway)
	}, fault: FaultStatus, says: []string{"HTTP 502 Bad Gateway: [31mno 2J room and so on and", " ..."}},
	{name: "a plain error", serve: func(w http.ResponseWriter) { http.Error(w, "upstream died", http.StatusBadGateway) }, fault: FaultStatus, says: []string{"HTTP 502", "upstream died"}},
	{name: "another place", serve: func(w http.ResponseWriter) {
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	}, fault: FaultStatus, says: []string{"HTTP 307 Temporary Redirect: it redirects to http://127.0.0.1:1/"}},
}

// TestFaults: whatever a server does wrong is said in the record, and counted; by the
// client's own connections and by net/http's, which https has.
func TestFaults(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		for _, c := range wrongs {
			t.Run(scheme+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				f := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.serve(w) }))
				cfg := Config{Backend: c.backend}
				if scheme == "https" {
					f.StartTLS()
					cfg.CAFile = certificate(t, f)
				} else {
					f.Start()
				}
				defer f.Close()
				cfg.URL = f.URL
				checkWrong(t, c, single(t, cfg, load.Request{Prompt: []kvcache.Token{1, 2, 3}, MaxTokens: 6}))
			})
		}
	}
}

// certificate is a file with that of a TLS server.
func certificate(t *testing.T, f *httptest.Server) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// single is the record of one request.
func single(t *testing.T, cfg Config, asked load.Request) Record {
	t.Helper()
	c := New(cfg)
	defer c.Close()
	records, _, err := collect(t.Context(), c, list(asked))
	if err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	return records[0]
}

func checkWrong(t *testing.T, c wrong, r Record) {
	t.Helper()
	if c.name == "dies before its answer" {
		// net/http calls it an EOF, before which its server may have sent a header or not.
		if r.Fault == "" || len(r.TokenTimes) != 0 {
			t.Errorf("%+v", r)
		}
		return
	}
	if r.Finish > 60 { // seconds: half of the timeout
		t.Errorf("it was over after %.0f s", r.Finish)
	}
	if !slices.Contains(c.notes, NoteNotStreamed) { // what is written fast may be read at once
		r.Notes = slices.DeleteFunc(r.Notes, func(n string) bool { return n == NoteNotStreamed })
	}
	if len(r.Error) > 2000 || strings.ContainsFunc(r.Error, unicode.IsControl) {
		t.Errorf("an error of %d bytes, or with control characters: %.200q", len(r.Error), r.Error)
	}
	for _, part := range c.says {
		if !strings.Contains(r.Error, part) {
			t.Errorf("error %q does not say %q", r.Error, part)
		}
	}
	if r.Fault != c.fault || !slices.Equal(r.Notes, c.notes) && c.fault == "" || r.VLLMCounts() != c.vllm || r.SGLangCounts(c.backend) != c.sglang || r.Silent != (c.fault == FaultEmpty) {
		t.Errorf("fault %q, notes %q, counted by vLLM: %t, by SGLang: %t; want %q, %q, %t, %t\n%s", r.Fault, r.Notes, r.VLLMCounts(), r.SGLangCounts(c.backend), c.fault, c.notes, c.vllm, c.sglang, r.Error)
	}
	m := measure([]Record{r}, 1)
	if failed := c.fault != ""; failed != (m.Failed == 1) || failed == (m.Successful == 1) || failed != (m.Faults[c.fault] == 1) {
		t.Errorf("counted as %d ok, %d failed, faults %v", m.Successful, m.Failed, m.Faults)
	}
	for _, note := range c.notes {
		if m.Notes[note] != 1 {
			t.Errorf("notes counted: %v", m.Notes)
		}
	}
}

// TestStall: a server that says nothing more is given up, and the record has what came. Where the machine
// is too busy for two chunks to come within the timeout, it is asked again with more time.
func TestStall(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		f := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			says(token, token)(w)
			<-r.Context().Done()
		}))
		if f.Start(); scheme == "https" {
			f.Close()
			f = httptest.NewTLSServer(f.Config.Handler)
		}
		for limit := 300 * time.Millisecond; ; limit *= 4 {
			r := single(t, Config{URL: f.URL, Timeout: limit, Insecure: true}, load.Request{Prompt: []kvcache.Token{1}, MaxTokens: 6})
			n := len(r.TokenTimes)
			if r.Fault != FaultTimeout || !strings.Contains(r.Error, fmt.Sprintf("not over within %v", limit)) || !strings.Contains(r.Error, fmt.Sprintf("after %d chunks", n)) || r.VLLMCounts() || r.SGLangCounts("") {
				t.Errorf("%s: %+v", scheme, r)
			}
			if n == 2 {
				break
			}
			if limit > time.Minute {
				t.Fatalf("%s: %d chunks within %v", scheme, n, limit)
			}
		}
		f.Close()
	}
}

// TestNobody: a server that is not there, by name and number, and one that cannot be
// believed.
func TestNobody(t *testing.T) {
	gone := clienttest.NewServer(t, &clienttest.Server{})
	gone.Close()
	strange := httptest.NewTLSServer(http.NotFoundHandler())
	defer strange.Close()
	for _, c := range []struct{ url, fault, says string }{
		{gone.URL, FaultConnect, "connection refused"},
		{strings.Replace(gone.URL, "http:", "https:", 1), FaultConnect, "connection refused"},
		{"http://no-such-host.invalid:1", FaultConnect, "no-such-host"},
		{strange.URL, FaultOther, "certificate"},
	} {
		r := single(t, Config{URL: c.url}, load.Request{Prompt: []kvcache.Token{1}, MaxTokens: 1})
		if r.Fault != c.fault || !strings.Contains(r.Error, c.says) || r.HTTPStatus != 0 {
			t.Errorf("%s: %q, %s", c.url, r.Fault, r.Error)
		}
	}
}
