package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// What there is to say of an error is said in so many bytes, and within this time after its status: a
// round trip or two around the earth, for what does not come with it. The rest is not waited for.
const (
	maxErrorText = 64 << 10
	errorText    = 2 * time.Second
)

var errErrorText = errors.New("the text of an error that does not end")

// A StatusError is an HTTP answer other than 200.
type StatusError struct {
	Code    int
	Message string // the server's own words
	// Location is where it sends us, of a 3xx; nobody follows.
	Location string
}

func (e *StatusError) Error() string {
	if e.Location != "" {
		return fmt.Sprintf("HTTP %d %s: it redirects to %s", e.Code, http.StatusText(e.Code), e.Location)
	}
	hint := ""
	if e.Code == http.StatusBadRequest && strings.Contains(e.Message, "out of vocabulary") { // vLLM's word for a token id
		hint = " (--tokenizer names the model's: prompts are made of its tokens then)"
	}
	return fmt.Sprintf("HTTP %d %s: %s%s", e.Code, http.StatusText(e.Code), e.Message, hint)
}

// statusError is that of a status with what came of its text.
func statusError(status int, location, coding string, text []byte) *StatusError {
	message := said(reason(text))
	if coding != "" {
		message = fmt.Sprintf("(its text is compressed: Content-Encoding: %s)", said(coding))
	}
	return &StatusError{Code: status, Message: message, Location: location}
}

// reason is the server's, in the text of an error: an OpenAI error object, FastAPI's, or all of the text.
func reason(text []byte) string {
	var c chunk
	if json.Unmarshal(text, &c) == nil {
		if why := c.fault(); why != "" {
			return why
		}
		if c.Message != "" { // vLLM before 0.9 has no envelope
			return c.Message
		}
		var detail struct{ Detail json.RawMessage } // FastAPI's
		if json.Unmarshal(text, &detail) == nil && len(detail.Detail) > 0 {
			return string(detail.Detail)
		}
	}
	return string(bytes.TrimSpace(text))
}

// readStatus is the error of an answer. What was read of its text, when that ends or end is called,
// is what there is to say.
func readStatus(resp *http.Response, end func()) *StatusError {
	defer time.AfterFunc(errorText, end).Stop()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	return statusError(resp.StatusCode, elsewhere(resp), coding(resp), text)
}

// elsewhere is where a 3xx sends us, as it says; "" of other answers.
func elsewhere(resp *http.Response) string {
	if resp.StatusCode/100 != 3 {
		return ""
	}
	return resp.Header.Get("Location")
}

// coding is how the body of an answer is compressed, "" if it is not.
func coding(resp *http.Response) string {
	name := strings.TrimSpace(resp.Header.Get("Content-Encoding"))
	if strings.EqualFold(name, "identity") {
		return ""
	}
	return name
}

// compressed is the fault of an answer that is. This client asks for none: who compresses a stream
// holds back its tokens, whose times are to be measured.
func compressed(coding string) error {
	return faulty(FaultCompressed, fmt.Errorf("the answer is compressed (Content-Encoding: %s), which this client neither asks for nor reads: have the server, or the gateway before it, send it as it is", said(coding)))
}
