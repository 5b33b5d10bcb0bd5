package wire

import "net/http"

// pieceBytes is what Pieces writes at a time, in bytes.
const pieceBytes = 32 << 10

// Pieces writes n pieces between head and tail, as JSON. A list of two million ids is not made
// into one text first: w has 32 KiB of it at a time.
func Pieces(w http.ResponseWriter, n int, head string, piece func(b []byte, i int) []byte, tail string) {
	w.Header().Set("Content-Type", "application/json")
	b := append(make([]byte, 0, min(pieceBytes+64, len(head)+16*n+len(tail))), head...)
	for i := range n {
		if len(b) >= pieceBytes {
			if _, err := w.Write(b); err != nil {
				return
			}
			b = b[:0]
		}
		b = piece(b, i)
	}
	_, _ = w.Write(append(b, tail...))
}
