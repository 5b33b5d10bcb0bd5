// Package cors lets web pages of other origins use an HTTP API, as far as it is told to
// (Cross-Origin Resource Sharing, Fetch standard): it answers preflights, and adds the
// headers without which a browser keeps an answer from the page that asked. Whoever is no
// browser sees none of it. Its policy is vLLM's: the same four lists, and the same defaults.
package cors

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// A Policy says who may do what. "*" in a list is everything.
type Policy struct {
	Origins     []string // such as https://chat.example; empty: none
	Methods     []string
	Headers     []string // that requests may have
	Credentials bool     // cookies and the like may come along
}

// safe are headers that every page may send (Fetch standard, 2.2.2).
var safe = []string{"Accept", "Accept-Language", "Content-Language", "Content-Type"}

// maxAge is for how many seconds a browser may keep the answer to a preflight.
const maxAge = "600"

// inference are the endpoints to which pages may POST as Policy has it. The others control the server.
var inference = []string{"/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"}

// getControls are the endpoints that control the server by GET too.
var getControls = []string{"/flush_cache", "/start_profile", "/stop_profile"}

// controls reports whether a browser asks for a page of another origin that an endpoint control the server. A page's
// image makes such requests without an Origin: then the browser says so in Sec-Fetch-Site.
func controls(r *http.Request, method string) bool {
	gets := method == http.MethodGet || method == http.MethodHead
	if gets && !slices.Contains(getControls, r.URL.Path) || !gets && slices.Contains(inference, r.URL.Path) {
		return false
	}
	change := *r
	change.Method = http.MethodPost // Check lets every GET pass
	return new(http.CrossOriginProtection).Check(&change) != nil
}

// Handle adds what a browser needs to the headers of the answer to r. It answers r itself and returns true if r is a
// preflight, or is to control the server for a page whose origin the policy does not name: a "*" does not name it. Pages
// of the server's own origin may.
func (p Policy) Handle(w http.ResponseWriter, r *http.Request) (answered bool) {
	origin := r.Header.Get("Origin")
	if controls(r, cmp.Or(r.Header.Get("Access-Control-Request-Method"), r.Method)) && !slices.Contains(p.Origins, origin) {
		http.Error(w, "web pages of other origins may not control this server: name the page's origin in --allowed-origins", http.StatusForbidden)
		return true
	}
	if origin == "" || len(p.Origins) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	method := r.Header.Get("Access-Control-Request-Method")
	preflight := r.Method == http.MethodOptions && method != ""
	all := slices.Contains(p.Origins, "*")
	if !all && !slices.Contains(p.Origins, origin) {
		if preflight {
			http.Error(w, "Disallowed CORS origin", http.StatusBadRequest)
		}
		return preflight
	}
	// With credentials a browser takes no "*".
	if all && !p.Credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
	}
	if p.Credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if !preflight {
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
		return false
	}
	h.Add("Vary", "Access-Control-Request-Method")
	h.Add("Vary", "Access-Control-Request-Headers")
	asked := r.Header.Get("Access-Control-Request-Headers")
	switch {
	case !slices.Contains(p.Methods, "*") && !slices.Contains(p.Methods, method):
		http.Error(w, "Disallowed CORS method", http.StatusBadRequest)
		return true
	case !p.headers(asked):
		http.Error(w, "Disallowed CORS headers", http.StatusBadRequest)
		return true
	}
	h.Set("Access-Control-Allow-Methods", method)
	if asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", maxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}

// headers reports whether all of a list of headers may be sent.
func (p Policy) headers(asked string) bool {
	if asked == "" || slices.Contains(p.Headers, "*") {
		return true
	}
	for name := range strings.SplitSeq(asked, ",") {
		same := func(allowed string) bool { return strings.EqualFold(allowed, strings.TrimSpace(name)) }
		if !slices.ContainsFunc(p.Headers, same) && !slices.ContainsFunc(safe, same) {
			return false
		}
	}
	return true
}
