package upstream

import (
	"context"
	"net/http"

	"kvferry/proxy/openai"
)

// PassOn has an engine that answers clients answer a request that generates nothing, such as
// GET /v1/models: the first that is up, or the next where that fails. The client gets its bytes; body is
// the request's, empty for none, and more takes memory for the answer.
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
		f := &failure{request: q.Method + " " + q.URL.Path, engine: en.id, leg: "whole"}
		answer := e.send(ctx, f, en, q.Method, q.URL.RequestURI(), NewRequest(openai.Completion, q).header, body, more)
		if f.err == nil {
			if f.body, err = whole(answer.Body, maxAnswer, more); err != nil {
				f.err = plain(ctx, err)
			}
			_ = answer.Body.Close()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.err == nil || f.status > 0 && f.body != nil && !f.retryable(): // what it says is wrong with the request is an answer
			w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
			w.WriteHeader(answer.StatusCode)
			_, _ = w.Write(f.body) // a client that is gone needs no answer
			return nil
		}
		err = f.api()
	}
	return err
}
