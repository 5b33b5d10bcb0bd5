package upstream

import (
	"bytes"
	"context"
	"net/http"

	"kvferry/proto"
	"kvferry/proxy/openai"
)

// PassOn has an engine that answers clients answer a request that generates nothing, such as
// GET /v1/models. The client gets its bytes; body is the request's, nil for none.
func (e *Engines) PassOn(ctx context.Context, w http.ResponseWriter, q *http.Request, body []byte) error {
	en, err := e.any()
	if err != nil {
		return err
	}
	r := NewRequest(openai.Completion, q)
	out, err := http.NewRequestWithContext(ctx, q.Method, en.url+q.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	out.Header = r.header
	if body != nil {
		out.Header.Set("Content-Type", "application/json")
	}
	answer, err := e.client.Do(out)
	if err == nil {
		defer answer.Body.Close()
		body, err = whole(answer.Body)
		if status := answer.StatusCode; status != http.StatusOK && status < http.StatusBadRequest {
			err = &statusError{q.URL.Path, status}
		}
	}
	if err != nil {
		return (&failure{request: q.Method + " " + q.URL.Path, engine: en.id, leg: "whole", err: plain(ctx, err)}).api()
	}
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(body) // a client that is gone needs no answer
	return nil
}

// any is an engine that answers clients, the first that is up.
func (e *Engines) any() (*engine, error) {
	together, err := e.Serving()
	if err != nil {
		return nil, err
	}
	role := proto.Role_ROLE_NONDISAGG
	if together {
		role = proto.Role_ROLE_DECODE
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, en := range e.up(role) {
		return en, nil
	}
	return nil, e.nobody()
}
