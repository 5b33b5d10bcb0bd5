package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// events splits a stream into its events' data.
func events(t testing.TB, body string) []string {
	t.Helper()
	var out []string
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok {
			t.Fatalf("event %q has no data", e)
		}
		out = append(out, data)
	}
	return out
}

// streamText is the text of a complete stream, which must be in order:
// choices, then [DONE].
func streamText(t testing.TB, body string) string {
	t.Helper()
	evs := events(t, body)
	if evs[len(evs)-1] != "[DONE]" {
		t.Fatalf("no [DONE] at the end of %q", body)
	}
	var text strings.Builder
	for _, e := range evs[:len(evs)-1] {
		var c struct {
			Choices []struct {
				Text  string                   `json:"text"`
				Delta struct{ Content string } `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(e), &c); err != nil {
			t.Fatalf("event %s: %v", e, err)
		}
		for _, ch := range c.Choices {
			text.WriteString(ch.Text + ch.Delta.Content)
		}
	}
	return text.String()
}

// errorOf is the error in a body, which must be in OpenAI's form.
func errorOf(t testing.TB, body string) (message, param, code string) {
	t.Helper()
	var e struct {
		Error *struct {
			Message, Type string
			Param, Code   *string
		}
	}
	d := json.NewDecoder(bytes.NewReader([]byte(body)))
	if err := d.Decode(&e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("no error in %q (%v)", body, err)
	}
	if e.Error.Param != nil {
		param = *e.Error.Param
	}
	if e.Error.Code != nil {
		code = *e.Error.Code
	}
	return e.Error.Message, param, code
}

// cutShort reports whether a body ended as a broken connection ends it.
func cutShort(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }

// readEvents reads a stream up to and with its nth event.
func readEvents(t testing.TB, resp *http.Response, n int) string {
	t.Helper()
	var b strings.Builder
	one := make([]byte, 1)
	for strings.Count(b.String(), "\n\n") < n {
		if _, err := io.ReadFull(resp.Body, one); err != nil {
			t.Fatalf("after %q: %v", b.String(), err)
		}
		b.Write(one)
	}
	return b.String()
}

func readRest(resp *http.Response) (string, error) {
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func readAll(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := readRest(resp)
	if err != nil {
		t.Fatalf("after %q: %v", b, err)
	}
	return b
}
