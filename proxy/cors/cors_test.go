package cors

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHandle(t *testing.T) {
	all := Policy{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
	one := Policy{Origins: []string{"https://a.example"}, Methods: []string{"POST"}, Headers: []string{"X-Key"}, Credentials: true}
	both := all
	both.Credentials = true
	for _, c := range []struct {
		name                            string
		policy                          Policy
		method, origin, asks, askHeader string
		answered                        bool
		status                          int
		allow                           string
	}{
		{"no browser", all, "POST", "", "", "", false, 200, ""},
		{"a page", all, "POST", "https://a.example", "", "", false, 200, "*"},
		{"nobody is allowed", Policy{}, "POST", "https://a.example", "", "", false, 200, ""},
		{"preflight", all, "OPTIONS", "https://a.example", "POST", "content-type,x-mine", true, 204, "*"},
		{"preflight, of one", one, "OPTIONS", "https://a.example", "POST", "content-type, x-key", true, 204, "https://a.example"},
		{"another origin", one, "OPTIONS", "https://b.example", "POST", "", true, 400, ""},
		{"another method", one, "OPTIONS", "https://a.example", "DELETE", "", true, 400, "https://a.example"},
		{"another header", one, "OPTIONS", "https://a.example", "POST", "x-other", true, 400, "https://a.example"},
		{"another origin's request", one, "POST", "https://b.example", "", "", false, 200, ""},
		{"everybody with cookies", both, "GET", "https://a.example", "", "", false, 200, "https://a.example"},
		{"OPTIONS that is no preflight", all, "OPTIONS", "https://a.example", "", "", false, 200, "*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "/v1/completions", nil)
			for name, value := range map[string]string{"Origin": c.origin, "Access-Control-Request-Method": c.asks, "Access-Control-Request-Headers": c.askHeader} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			w := httptest.NewRecorder()
			answered := c.policy.Handle(w, r)
			if answered != c.answered || w.Code != c.status || w.Header().Get("Access-Control-Allow-Origin") != c.allow {
				t.Errorf("answered %v, %d, %v", answered, w.Code, w.Header())
			}
			if (w.Header().Get("Access-Control-Allow-Credentials") == "true") != (c.allow != "" && c.policy.Credentials) {
				t.Errorf("credentials: %v", w.Header())
			}
			if c.status == http.StatusNoContent && (w.Header().Get("Access-Control-Allow-Methods") != c.asks || w.Header().Get("Access-Control-Allow-Headers") != c.askHeader) {
				t.Errorf("preflight: %v", w.Header())
			}
		})
	}
}

// TestControl: a page of another origin may generate and read, and control the server only if the policy names its
// origin, whatever kind of request the browser makes of it.
func TestControl(t *testing.T) {
	all := Policy{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
	named := all
	named.Origins = []string{"*", "https://a.example"}
	page := map[string]string{"Origin": "https://a.example", "Sec-Fetch-Site": "cross-site"}
	old := map[string]string{"Origin": "https://a.example"}
	image := map[string]string{"Sec-Fetch-Site": "cross-site"}
	preflight := map[string]string{"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
	for _, path := range []string{"/flush_cache", "/reset_prefix_cache", "/start_profile", "/v1/load_lora_adapter", "/unload_lora_adapter", "/made/later"} {
		for _, c := range []struct {
			name, method string
			header       map[string]string
			policy       Policy
			refused      bool
		}{
			{"a page", "POST", page, all, true},
			{"a page of an old browser", "POST", old, all, true},
			{"a page, where none may", "POST", page, Policy{}, true},
			{"a preflight", "OPTIONS", preflight, all, true},
			{"a named page", "POST", page, named, false},
			{"no browser", "POST", nil, all, false},
			{"the server's own page", "POST", map[string]string{"Origin": "http://example.com", "Sec-Fetch-Site": "same-origin"}, all, false},
			{"an image", "GET", image, all, path == "/flush_cache" || path == "/start_profile"},
		} {
			r := httptest.NewRequest(c.method, path, nil)
			for name, value := range c.header {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			if refused := c.policy.Handle(w, r) && w.Code == http.StatusForbidden; refused != c.refused {
				t.Errorf("%s, %s: refused %v, %d", path, c.name, refused, w.Code)
			}
		}
	}
	for _, path := range inference {
		r := httptest.NewRequest("POST", path, nil)
		r.Header.Set("Origin", "https://a.example")
		if w := httptest.NewRecorder(); all.Handle(w, r) || w.Header().Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %d, %v", path, w.Code, w.Header())
		}
	}
}
