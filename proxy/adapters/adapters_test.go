package adapters

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/proxy/openai"
)

func newList(loras ...openai.LoRA) (*List, http.Handler) { return logged(io.Discard, loras...) }

func logged(to io.Writer, loras ...openai.LoRA) (*List, http.Handler) {
	var l *List
	l = New(loras, func() openai.Model {
		return openai.Model{Name: "org/main", Aliases: []string{"main"}, Adapters: l.Names()}
	}, slog.New(slog.NewTextHandler(to, nil)))
	mux := http.NewServeMux()
	l.Serve(mux)
	return l, mux
}

// TestEndpoints: both tools' endpoints load and unload, say so as the tool does, and
// refuse what cannot be.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	l, h := newList(openai.LoRA{Name: "sql", Path: "/adapters/sql"})
	for _, c := range []struct {
		path, body string
		status     int
		want       string
		names      string
	}{
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"32"}`, 200, "Success: LoRA adapter 'chat' added successfully.", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"64"}`, 400, "loaded already", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"64","load_inplace":true}`, 200, "added", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"x"}`, 400, "lora_path", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_path":"8"}`, 400, "lora_name", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"main","lora_path":"8"}`, 400, "the model has that name: give the adapter another", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"org/main","lora_path":"8"}`, 400, "the model has that name: give the adapter another", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"` + strings.Repeat("x", 257) + `","lora_path":"8"}`, 400, "use a name of", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"x","lora_path":"0"}`, 400, "lora_path: 0: a number is the adapter's rank: use 1 to 4096", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"x","lora_path":"-5"}`, 400, "use 1 to 4096", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"x","lora_path":"1.5"}`, 400, "use 1 to 4096", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"x","lora_path":100000}`, 400, "use 1 to 4096", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"x","lora_path":[1]}`, 400, "neither a string nor a number", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":64,"load_inplace":true}`, 200, "added", "sql chat"},
		{"/v1/load_lora_adapter", `[`, 400, "no JSON object", "sql chat"},
		{"/v1/load_lora_adapter", `{"lora_name":"` + strings.Repeat("x", maxBody) + `"}`, 400, "too large", "sql chat"},
		{"/v1/unload_lora_adapter", `{"lora_name":"sql"}`, 200, "Success: LoRA adapter 'sql' removed successfully.", "chat"},
		{"/v1/unload_lora_adapter", `{"lora_name":"sql"}`, 404, "there is no such adapter", "chat"},
		{"/load_lora_adapter", `{"lora_name":"sql","lora_path":"/p","pinned":true}`, 200, `{"success":true,"error_message":"","loaded_adapters":{"chat":"64","sql":"/p"}}`, "chat sql"},
		{"/load_lora_adapter", `{"lora_name":"sql","lora_path":"/p"}`, 400, `{"success":false,"error_message":"lora_name: \"sql\": it has been loaded already`, "chat sql"},
		{"/unload_lora_adapter", `{"lora_name":"chat"}`, 200, `{"success":true,"error_message":"","loaded_adapters":{"sql":"/p"}}`, "sql"},
		{"/unload_lora_adapter", `{"lora_name":"chat"}`, 400, `"success":false`, "sql"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body)))
		body := c.body[:min(len(c.body), 60)]
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s, want %d and %q", c.path, body, w.Code, w.Body, c.status, c.want)
		}
		if got := strings.Join(l.Names(), " "); got != c.names {
			t.Errorf("%s %s: %q are served, want %q", c.path, body, got, c.names)
		}
	}
}

// TestRank: a path that is a number is a rank, and what was taken of the list stays as it is.
func TestRank(t *testing.T) {
	t.Parallel()
	if maxRank != engine.MaxRank || defaultRank != engine.DefaultRank { // which no package of the proxy knows
		t.Errorf("ranks are up to %d, %d by default; nodes have %d and %d", maxRank, defaultRank, engine.MaxRank, engine.DefaultRank)
	}
	l, h := newList(openai.LoRA{Name: "a", Path: "8"}, openai.LoRA{Name: "b", Path: "/p/8"}, openai.LoRA{Name: "c", Path: "99999"}, openai.LoRA{Name: "most", Path: "4096"})
	for name, want := range map[string]uint32{"most": maxRank, "a": 8, "b": 0, "c": 0, "d": 0, "": 0} {
		if got := l.Rank(name); got != want {
			t.Errorf("%q has rank %d, want %d", name, got, want)
		}
	}
	all, names := l.All(), l.Names()
	for _, body := range []string{`{"lora_name":"d","lora_path":"1"}`, `{"lora_name":"a","lora_path":"9","load_inplace":true}`} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/load_lora_adapter", strings.NewReader(body)))
	}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/unload_lora_adapter", strings.NewReader(`{"lora_name":"b"}`)))
	if got := l.Names(); !slices.Equal(got, []string{"a", "c", "most", "d"}) || l.Rank("a") != 9 {
		t.Errorf("%q are served, a of rank %d", got, l.Rank("a"))
	}
	if all[0].Path != "8" || len(all) != 4 || !slices.Equal(names, []string{"a", "b", "c", "most"}) {
		t.Errorf("what was taken has changed: %v, %q", all, names)
	}
}

// TestBounds: what is loaded stays bounded, however often somebody loads.
func TestBounds(t *testing.T) {
	t.Parallel()
	var full []openai.LoRA
	for i := range maxAdapters {
		full = append(full, openai.LoRA{Name: fmt.Sprint(i), Path: "8"})
	}
	l, h := newList(full...)
	load := func(name, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/load_lora_adapter", strings.NewReader(fmt.Sprintf(`{"lora_name":%q,"lora_path":%q,"load_inplace":true}`, name, path))))
		return w
	}
	if w := load("more", "8"); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "unload one") || len(l.All()) != maxAdapters {
		t.Errorf("one too many: %d %s", w.Code, w.Body)
	}
	if w := load("7", "16"); w.Code != http.StatusOK || l.Rank("7") != 16 {
		t.Errorf("in place of another: %d %s", w.Code, w.Body)
	}
	if w := load("7", strings.Repeat("x", maxPath+1)); w.Code != http.StatusBadRequest {
		t.Errorf("a long path: %d %s", w.Code, w.Body)
	}
}

// TestLogged: what is loaded and unloaded is in the log, with the rank that nodes take, and what was refused is not.
func TestLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	_, h := logged(&log)
	for _, c := range []struct{ path, body string }{
		{"/v1/load_lora_adapter", `{"lora_name":"sql","lora_path":"/p/sql"}`},
		{"/load_lora_adapter", `{"lora_name":"chat","lora_path":64}`},
		{"/load_lora_adapter", `{"lora_name":"bad","lora_path":0}`},
		{"/unload_lora_adapter", `{"lora_name":"sql"}`},
	} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body)))
	}
	for want, n := range map[string]int{"name=sql rank=16": 1, "name=chat rank=64": 1, "bad": 0, `no longer" name=sql`: 1} {
		if got := strings.Count(log.String(), want); got != n {
			t.Errorf("%q is there %d times, want %d: %s", want, got, n, &log)
		}
	}
}
