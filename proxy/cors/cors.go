// Package cors lets web pages of other origins use an HTTP API, as far as it is told to
// (Cross-Origin Resource Sharing, Fetch standard): it answers preflights, and adds the
// headers without which a browser keeps an answer from the page that asked. Whoever is no
// browser sees none of it. Its policy is vLLM's: the same four lists, and the same defaults.
package cors

import (
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

// allows reports whether a page of that origin may use the API.
func (p Policy) allows(origin string) bool {
	return slices.Contains(p.Origins, "*") || slices.Contains(p.Origins, origin)
}

// Handle adds what a browser needs to the headers of the answer to r. It has answered r
// itself, and returns true, if that was a preflight.
func (p Policy) Handle(w http.ResponseWriter, r *http.Request) (answered bool) {
	origin := r.Header.Get("Origin")
	if origin == "" || len(p.Origins) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	method := r.Header.Get("Access-Control-Request-Method")
	preflight := r.Method == http.MethodOptions && method != ""
	if !p.allows(origin) {
		if preflight {
			http.Error(w, "Disallowed CORS origin", http.StatusBadRequest)
		}
		return preflight
	}
	// With credentials a browser takes no "*".
	if slices.Contains(p.Origins, "*") && !p.Credentials {
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
