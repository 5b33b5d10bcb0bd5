package wire

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"kvferry/proxy/openai"
)

// Error answers in OpenAI's form, whole: it sets the length, so that a connection can
// be kept.
func Error(w http.ResponseWriter, e *openai.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	b := e.AppendJSON(nil)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(b) // a client that is gone needs no error
}

// JSON answers with v.
func JSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the values are ours and always encode
}

// Text answers with a text.
func Text(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // a client that is gone needs no answer
}

// Nothing is for what no pattern of the mux matches: another method of a path that is
// there, OPTIONS among them, or a path that is not.
func Nothing(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := mux.Handler(probe); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	e := &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found"}
	e.Message = fmt.Sprintf("no such endpoint: %s %s", r.Method, openai.Abbreviate(r.URL.Path))
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		e.Status, e.Code = http.StatusMethodNotAllowed, "method_not_allowed"
		e.Message = fmt.Sprintf("%s %s: use %s", r.Method, openai.Abbreviate(r.URL.Path), strings.Join(allowed, " or "))
	}
	Error(w, e)
}

// RequestID is the client's X-Request-Id if it is fit for logs (printable ASCII without
// blanks, 256 bytes at most), else a new one of 128 random bits.
func RequestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id != "" && len(id) <= 256 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return id
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
