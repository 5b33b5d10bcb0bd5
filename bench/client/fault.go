package client

import (
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// Values of Record.Fault: what kind of failure it was.
const (
	FaultConnect    = "no connection"
	FaultStatus     = "HTTP status"      // other than 200
	FaultTimeout    = "timeout"          // of the client
	FaultTruncated  = "truncated"        // the connection died in the answer, or the answer ended inside an event
	FaultNoEnd      = "no end"           // the answer ended, but for [DONE] and a finish reason
	FaultServer     = "error in a 200"   // the answer says that the server failed
	FaultEvent      = "error event"      // the server said so by an event of that name, which neither vLLM's nor SGLang's client reads
	FaultGarbage    = "garbage"          // it is not JSON, or not what this API has, or no events
	FaultCompressed = "compressed"       // which was not asked for, and is not read
	FaultEndless    = "endless"          // an event, a header or an answer that does not end
	FaultEmpty      = "no tokens"        // not one chunk
	FaultShort      = "short output"     // fewer tokens than asked for, and the model did not end by itself
	FaultSkipped    = "skipped"          // never sent
	FaultRequest    = "not a request"    // it could not be made
	FaultOther      = "connection broke" // before the answer
)

// Values of Record.Notes: what is unusual in a request that did not fail.
const (
	NoteStopped     = "stopped early"                       // fewer tokens than asked for: the model ended
	NoteLong        = "longer than asked for"               // the server counted more tokens, or answered several times (n)
	NoteNotStreamed = "did not stream"                      // one read brought all of four tokens or more, or one chunk more than MostInChunk
	NoteChunks      = "several tokens in chunks"            // so gaps between chunks are not inter-token latencies
	NoteNoDone      = "no [DONE]"                           // but a finish reason
	NoteOpen        = "the answer did not end after [DONE]" // within afterDone, and was ended
	NoteHalfRune    = "chunk ends inside a UTF-8 rune"
	NoteHalfEnd     = "text ends inside a UTF-8 rune"
	NoteNoAnswer    = "conversation without an answer" // the answer before is not in the prompt: nobody knew it
)

// afterDone is how long an answer may take to end once its last event is there: in the same
// packet, most of them.
const afterDone = time.Second

// said is a text of the server's for a terminal, a table and a log: one line without control
// characters, which might be orders to the terminal, and not all of a page.
func said(text string) string {
	const most = 500 // characters
	n := 0
	var b strings.Builder
	for _, word := range strings.FieldsFunc(text, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }) {
		if n > 0 {
			b.WriteByte(' ')
		}
		for _, c := range word {
			if n++; n > most {
				b.WriteString(" ...")
				return b.String()
			}
			b.WriteRune(c) // bytes that are no UTF-8 are U+FFFD
		}
		n++
	}
	return b.String()
}

// A faultError is a failure with its kind.
type faultError struct {
	kind string
	err  error
}

func (e *faultError) Error() string { return e.err.Error() }
func (e *faultError) Unwrap() error { return e.err }

// faulty says of what kind an error is.
func faulty(kind string, err error) error { return &faultError{kind, err} }

var (
	errAfterDone = errors.New("it did not end after [DONE]")
	errNoChunk   = errors.New("never received a valid chunk to calculate TTFT")
	errTruncated = errors.New("stream ended without [DONE]")
	errNoUsage   = errors.New("no usage in the stream, so the number of tokens is unknown")
)

// end says how the request ended.
func (r *Record) end(err error) {
	switch {
	case err == nil:
		r.Status = StatusOK
		return
	case errors.Is(err, errInterrupted):
		r.Status = StatusInterrupted
	default:
		r.Status, r.Fault = StatusFailed, FaultOther
		if fault := (*faultError)(nil); errors.As(err, &fault) {
			r.Fault = fault.kind
		}
	}
	r.Error = err.Error()
}

func (r *Record) note(what string) { r.Notes = append(r.Notes, what) }

// BrokeOff reports whether the answer was a 200 that ended as HTTP has it, and its events say that the
// server failed, or do not say that it has finished. It failed in every report, whatever other clients
// would count.
func (r *Record) BrokeOff() bool { return r.Fault == FaultServer || r.Fault == FaultNoEnd }

// VLLMCounts reports whether vLLM's client would count the request as successful: the
// answer was a 200 that ended as HTTP has it, all of it JSON, with at least one chunk with
// choices. Whether it has [DONE], an error inside, or fewer tokens than asked for does not
// matter there (endpoint_request_func.py of vLLM 0.11 to 0.22).
func (r *Record) VLLMCounts() bool {
	switch r.Fault {
	case "", FaultNoEnd, FaultServer, FaultShort:
		return r.Status != StatusInterrupted && r.HTTPStatus == http.StatusOK && len(r.TokenTimes) > 0
	}
	return false
}

// SGLangCounts is the same of SGLang's client and its backend of that name: a 200 that ended
// as HTTP has it, all of it JSON, with at least one line; tokens there need not be. An error
// inside fails a request of its completions backend only (serving.py of SGLang 0.5).
func (r *Record) SGLangCounts(backend string) bool {
	switch r.Fault {
	case FaultServer:
		if b, err := ParseBackend(backend); err != nil || b.kind == completions {
			return false
		}
	case "", FaultNoEnd, FaultShort, FaultEmpty:
	default:
		return false
	}
	return r.Status != StatusInterrupted && r.HTTPStatus == http.StatusOK && r.LastLine > 0
}
