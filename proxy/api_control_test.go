package proxy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/cors"
)

// ask makes a request with a method and headers, "Name: value".
func (c *testCluster) ask(method, path, body string, headers ...string) (*http.Response, string) {
	c.t.Helper()
	r, err := http.NewRequest(method, c.url(path), strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := c.client.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp, readAll(c.t, resp)
}

// TestNames: a model has the proxy's names, and adapters are models of their own.
func TestNames(t *testing.T) {
	logs := &clocktest.Log{}
	c := newTestCluster(t, Config{Logger: slog.New(slog.NewTextHandler(logs, nil)), ServedNames: []string{"org/main", "other"}, LoRAs: []LoRA{{Name: "sql", Path: "/adapters/sql"}, {Name: "chat", Path: "hub/chat"}}})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	if !strings.Contains(logs.String(), "first=org/main others=other") {
		t.Errorf("which name is the first is not said: %s", logs)
	}
	_, body := c.get("/v1/models")
	var list struct {
		Object string
		Data   []struct {
			ID, Object, Root string
			Parent           *string
			MaxModelLen      *int `json:"max_model_len"`
			Rank             int
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Object != "list" || len(list.Data) != 4 {
		t.Fatalf("%s: %v", body, err)
	}
	for i, want := range []struct{ id, root, parent string }{{"org/main", testModel, ""}, {"other", testModel, ""}, {"sql", "/adapters/sql", "org/main"}, {"chat", "hub/chat", "org/main"}} {
		m := list.Data[i]
		if m.ID != want.id || m.Root != want.root || m.Object != "model" || (m.Parent == nil) != (want.parent == "") || m.Parent != nil && *m.Parent != want.parent || (m.MaxModelLen == nil) != (want.parent != "") || (m.Rank == 16) != (want.parent != "") {
			t.Errorf("model %d: %+v, want %+v", i, m, want)
		}
		status, one := c.get("/v1/models/" + m.ID)
		if status != 200 || !strings.Contains(body, strings.TrimSpace(one)[:40]) || !strings.Contains(one, `"id":"`+m.ID+`"`) {
			t.Errorf("%s: %d %s", m.ID, status, one)
		}
	}
	if status, body := c.get("/v1/models/gpt-9"); status != 404 || !strings.Contains(body, "model_not_found") {
		t.Errorf("%d %s", status, body)
	}
	for _, tc := range []struct{ asked, answered, adapter string }{
		{`"model":"org/main",`, "org/main", ""}, {`"model":"other",`, "org/main", ""}, {"", "org/main", ""}, {`"model":"sql",`, "sql", "sql"}, {`"lora_path":"chat",`, "chat", "chat"},
	} {
		status, body, _ := c.post("/v1/completions", `{`+tc.asked+`"prompt":"x","max_tokens":1}`)
		if s := clocktest.Receive(t, n.submits, "the submit"); status != 200 || !strings.Contains(body, `"model":"`+tc.answered+`"`) || s.Adapter != tc.adapter {
			t.Errorf("%s: %d %s, adapter %q", tc.asked, status, body, s.Adapter)
		}
	}
	status, body, _ := c.post("/v1/completions", `{"model":"`+testModel+`","prompt":"x"}`)
	if message, _, _ := errorOf(t, body); status != 404 || !strings.Contains(message, `"org/main" or "other" or "sql" or "chat"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := c.post("/v1/completions", `{"prompt":"x","lora_path":"org/main"}`); status != 400 || !strings.Contains(body, `ask for`) {
		t.Errorf("%d %s", status, body)
	}
	for _, tc := range []struct {
		path, body string
		status     int
		rank       uint32 // of chat, asked for afterwards; 0: it is not served
	}{
		{"/v1/unload_lora_adapter", `{"lora_name":"chat"}`, 200, 0},
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"64"}`, 200, 64},
		{"/v1/load_lora_adapter", `{"lora_name":"org/main","lora_path":"64"}`, 400, 64},
		{"/unload_lora_adapter", `{"lora_name":"chat"}`, 200, 0},
		{"/load_lora_adapter", `{"lora_name":"chat","lora_path":"8"}`, 200, 8},
	} {
		if status, body, _ := c.post(tc.path, tc.body); status != tc.status {
			t.Errorf("%s %s: %d %s", tc.path, tc.body, status, body)
		}
		status, body, _ := c.post("/v1/completions", `{"model":"chat","prompt":"x","max_tokens":1}`)
		if _, models := c.get("/v1/models"); strings.Contains(models, `"chat"`) != (tc.rank > 0) || (status == 200) != (tc.rank > 0) || tc.rank == 0 && (status != 404 || !strings.Contains(body, "model_not_found")) {
			t.Errorf("after %s %s: %d %s; %s", tc.path, tc.body, status, body, models)
		} else if tc.rank > 0 {
			if s := clocktest.Receive(t, n.submits, "the submit"); s.Adapter != "chat" || s.AdapterRank != tc.rank {
				t.Errorf("after %s %s: adapter %q of rank %d", tc.path, tc.body, s.Adapter, s.AdapterRank)
			}
		}
	}
	if _, body := c.get("/metrics"); !strings.Contains(body, `model_name="org/main"`) || strings.Contains(body, testModel) {
		t.Errorf("metrics do not call the model by its served name:\n%s", body)
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		if status, body := c.get(path); status != 200 || !strings.Contains(body, `"model_path":"test-model"`) || !strings.Contains(body, `"is_generation":true`) || !strings.Contains(body, `"served_model_name":"org/main"`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if err := (Config{ServedNames: []string{"a", "a"}}).Validate(); err == nil || !strings.Contains(err.Error(), "two models have that name") {
		t.Error(err)
	}
	if err := (Config{ServedNames: []string{"a"}, LoRAs: []LoRA{{Name: "a", Path: "p"}, {Name: "", Path: "q"}}}).Validate(); err == nil || strings.Count(err.Error(), "LoRAs") != 2 {
		t.Error(err)
	}
}

// TestFlush: an answer means that every node has emptied its cache, and placement knows.
func TestFlush(t *testing.T) {
	c := newTestCluster(t, Config{Placement: placement.PrefixAware})
	if resp, body := c.ask("POST", "/flush_cache", ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a node: %d %s", resp.StatusCode, body)
	}
	nodes := []*fakeNode{c.addNode("node-1", proto.Role_ROLE_NONDISAGG, nil), c.addNode("node-2", proto.Role_ROLE_NONDISAGG, nil)}
	for i, ask := range [][2]string{{"POST", "/flush_cache"}, {"GET", "/flush_cache?timeout=5"}, {"POST", "/reset_prefix_cache"}} {
		resp, body := c.ask(ask[0], ask[1], "")
		if resp.StatusCode != 200 || strings.HasPrefix(body, "Cache flushed.\n") == (i == 2) || i < 2 && !strings.Contains(body, "2 nodes") {
			t.Errorf("%v: %d %s", ask, resp.StatusCode, body)
		}
		for _, n := range nodes {
			if got := n.flushed.Load(); got != int64(i+1) {
				t.Errorf("%v: %s was flushed %d times, want %d", ask, n.info.Id, got, i+1)
			}
		}
	}
	// Placement has forgotten too: the prompt that one node had goes to whichever is next.
	prompt, role := make([]kvcache.Token, 64), proto.Role_ROLE_NONDISAGG
	before, err := c.proxy.nodes.policy(role)
	if err != nil {
		t.Fatal(err)
	}
	before.Place(placement.Request{Tokens: 64, Prefix: c.proxy.nodes.prefix(choice{role: role}, kvcache.Hash{}, prompt)}, []placement.Candidate{{ID: "node-1", Blocks: 100}})
	if resp, _ := c.ask("POST", "/flush_cache", ""); resp.StatusCode != 200 {
		t.Fatal(resp.StatusCode)
	}
	if after, _ := c.proxy.nodes.policy(role); after == before {
		t.Error("placement believes what it did before the flush")
	}
	if model, sql := c.proxy.nodes.prefix(choice{role: role}, kvcache.Hash{}, prompt), c.proxy.nodes.prefix(choice{role: role}, kvcache.Root("sql", ""), prompt); len(model) != 4 || len(sql) != 4 || model[0] == sql[0] {
		t.Errorf("placement takes an adapter's prefix for the model's: %v, %v", model, sql)
	}
}

// TestFlushFails: a node that is lost before it has answered is named, and nobody waits for it.
func TestFlushFails(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	n.deafToFlush.Store(true)
	go func() {
		clocktest.Receive(t, n.flushes, "the flush")
		n.kill()
	}()
	resp, body := c.ask("POST", "/flush_cache", "")
	if message, _, _ := errorOf(t, body); resp.StatusCode < 500 || !strings.Contains(message, "both-1") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestProfiles: a client gets a real profile of this process.
func TestProfiles(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	if resp, body := c.ask("POST", "/stop_profile", ""); resp.StatusCode != 409 || !strings.Contains(body, "/start_profile") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, body := c.ask("POST", "/start_profile", `{"num_steps":3}`); resp.StatusCode != 200 || !strings.Contains(body, "proxy") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, body := c.ask("POST", "/start_profile", ""); resp.StatusCode != 409 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	resp, body := c.ask("POST", "/stop_profile", "")
	zipped, err := gzip.NewReader(strings.NewReader(body))
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d, %d bytes: %v", resp.StatusCode, len(body), err)
	}
	if data, err := io.ReadAll(zipped); err != nil || !bytes.Contains(data, []byte("samples")) || !bytes.Contains(data, []byte("cpu")) {
		t.Errorf("%d bytes of a profile: %v", len(data), err)
	}
}

// TestMethods: a path that is there says which methods it has, and HEAD is GET without a body.
func TestMethods(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	for _, tc := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"OPTIONS", "/v1/completions", 204, "POST, OPTIONS"},
		{"OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"},
		{"OPTIONS", "/flush_cache", 204, "GET, HEAD, POST, OPTIONS"},
		{"OPTIONS", "/nowhere", 404, ""},
		{"HEAD", "/v1/models", 200, ""},
		{"HEAD", "/health", 200, ""},
		{"HEAD", "/v1/completions", 405, "POST, OPTIONS"},
		{"DELETE", "/v1/models/test-model", 405, "GET, HEAD, OPTIONS"},
		{"GET", "/generate", 405, "POST, OPTIONS"},
		{"GET", "/v1/embeddings", 404, ""},
		{"GET", "/health_generate", 200, ""},
	} {
		resp, body := c.ask(tc.method, tc.path, "")
		if resp.StatusCode != tc.status || resp.Header.Get("Allow") != tc.allow {
			t.Errorf("%s %s: %d %v", tc.method, tc.path, resp.StatusCode, resp.Header)
		}
		if tc.status >= 400 && tc.method != "HEAD" {
			errorOf(t, body)
		}
	}
}

// TestCORS: pages of other origins may use the API unless they are told not to, streams
// included.
func TestCORS(t *testing.T) {
	for _, tc := range []struct {
		policy cors.Policy
		allow  string
	}{
		{cors.Policy{}, "*"},
		{cors.Policy{Origins: []string{}}, ""},
		{cors.Policy{Origins: []string{"https://a.example"}}, "https://a.example"},
		{cors.Policy{Origins: []string{"https://b.example"}}, ""},
	} {
		c := newTestCluster(t, Config{CORS: tc.policy})
		c.addPair()
		const origin = "Origin: https://a.example"
		for _, body := range []string{`{"prompt":"x","max_tokens":2}`, `{"prompt":"x","max_tokens":2,"stream":true}`, `{"prompt":""}`} {
			resp, answer := c.ask("POST", "/v1/completions", body, origin)
			if got := resp.Header.Get("Access-Control-Allow-Origin"); got != tc.allow || (resp.StatusCode == 200) == (body == `{"prompt":""}`) {
				t.Errorf("%v, %s: %d %q %s", tc.policy, body, resp.StatusCode, got, answer)
			}
		}
		resp, _ := c.ask("OPTIONS", "/v1/chat/completions", "", origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type")
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != tc.allow || resp.StatusCode != 204 && (tc.allow != "" || len(tc.policy.Origins) == 0) {
			t.Errorf("%v: preflight %d %v", tc.policy, resp.StatusCode, resp.Header)
		}
	}
}

// TestPackedBodies: compressed bodies are read, within the bounds of others.
func TestPackedBodies(t *testing.T) {
	c := newTestCluster(t, Config{MaxBodyBytes: 1 << 16})
	c.addPair()
	pack := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	good := `{"prompt":"hi there","max_tokens":3}`
	_, plain := c.ask("POST", "/v1/completions", good, "X-Request-Id: req-1")
	bomb := pack(`{"prompt":"` + strings.Repeat("x", 10<<20) + `"}`)
	for _, tc := range []struct {
		name, encoding, body string
		status               int
		contains             string
	}{
		{"gzip", "gzip", pack(good), 200, ""},
		{"identity", "identity", good, 200, ""},
		{"a bomb", "gzip", bomb, 413, "--max-body"},
		{"not gzip", "gzip", good, 400, "gzip: invalid header"},
		{"cut", "gzip", pack(good)[:30], 400, "within its gzip data"},
		{"another", "br", good, 415, "use gzip or deflate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, body := c.ask("POST", "/v1/completions", tc.body, "Content-Encoding: "+tc.encoding, "X-Request-Id: req-1")
			if resp.StatusCode != tc.status || !strings.Contains(body, tc.contains) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if tc.status == 200 && golden(body) != golden(plain) {
				t.Errorf("%s, want %s", body, plain)
			}
		})
	}
	if len(bomb) > 1<<16 {
		t.Errorf("the bomb has %d bytes: it is refused for that", len(bomb))
	}
	// Their memory is given back: all bodies together have 256 MiB, and these would be 300.
	for range 600 {
		if resp, _ := c.ask("POST", "/v1/completions", bomb, "Content-Encoding: gzip"); resp.StatusCode != 413 {
			t.Fatal(resp.StatusCode)
		}
	}
}
