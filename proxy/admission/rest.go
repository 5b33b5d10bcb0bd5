package admission

import (
	"io"
	"net/http"
	"time"
)

// A rest is what a client has still to send of a body that is not taken.
type rest struct{ io.ReadCloser }

// mostSkipped is how much is read of a rest, in bytes.
const mostSkipped = 64 << 20

// Decline has [Skip] read what is still to come of a request's body, once the client has its
// answer, and the connection closed then. Whoever sends all before it reads the answer would
// otherwise learn of a broken pipe, and try again.
func Decline(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	if r.Header.Get("Expect") == "" { // else it sends nothing unless it is told to go on
		_ = http.NewResponseController(w).EnableFullDuplex() // recorders of tests have no connection
		r.Body = rest{r.Body}
	}
}

// Skip reads a declined body for so long at most, and keeps nothing. It is called when the answer
// is written, for every request.
func Skip(w http.ResponseWriter, r *http.Request, within time.Duration) {
	if body, ok := r.Body.(rest); ok {
		conn := http.NewResponseController(w)
		_ = conn.Flush()
		_ = conn.SetReadDeadline(time.Now().Add(within))
		_, _ = io.CopyN(io.Discard, body, mostSkipped) // the client may go when it has read the answer
	}
}
