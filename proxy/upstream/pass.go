package upstream

import (
	"bytes"
	"context"
	"net/http"

	"kvferry/proxy/openai"
)

// PassOn has an engine that answers clients answer a request that generates nothing, such as
// GET /v1/models: the first that is up, or the next where that fails. The client gets its bytes; body is
// the request's, nil for none, and more takes memory for the answer.
func (e *Engines) PassOn(ctx context.Context, w http.ResponseWriter, q *http.Request, body []byte, more func(bytes int64) bool) error {
	together, err := e.Serving()
	if err != nil {
		return err
	}
	e.mu.Lock()
	up := e.up(answers(together))
	err = e.nobody() // if the last has just gone
	e.mu.Unlock()
	for _, en := range up {
		answer, text, fail := e.passTo(ctx, en, q, body, more)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case fail == nil:
			w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
			w.WriteHeader(answer.StatusCode)
			_, _ = w.Write(text) // a client that is gone needs no answer
			return nil
		}
		err = fail.api()
	}
	return err
}

// passTo asks one engine. What it says is wrong with the request is an answer, what is wrong with itself a
// failure.
func (e *Engines) passTo(ctx context.Context, en *engine, q *http.Request, body []byte, more func(bytes int64) bool) (*http.Response, []byte, *failure) {
	f := &failure{request: q.Method + " " + q.URL.Path, engine: en.id, leg: "whole"}
	out, err := http.NewRequestWithContext(ctx, q.Method, en.url+q.URL.RequestURI(), bytes.NewReader(body))
	if f.err = err; err != nil {
		return nil, nil, f
	}
	out.Header = NewRequest(openai.Completion, q).header
	if body != nil {
		out.Header.Set("Content-Type", "application/json")
	}
	answer, err := e.client.Do(out)
	if f.err = plain(ctx, err); err != nil {
		return nil, nil, f
	}
	defer answer.Body.Close()
	text, err := whole(answer.Body, maxAnswer, more)
	switch status := answer.StatusCode; {
	case err != nil:
		f.err = plain(ctx, err)
	case status == http.StatusOK:
		return answer, text, nil
	case status < http.StatusBadRequest || status > maxStatus:
		f.err = &statusError{q.URL.Path, status}
	default:
		f.err, f.status, f.body = &statusError{q.URL.Path, status}, status, text
		if !f.retryable() {
			return answer, text, nil
		}
	}
	return nil, nil, f
}
