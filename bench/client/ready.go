package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// How often a server is asked whether it is ready, and whether its counters have caught up
// with its answers: at first, and at last.
const (
	pollFirst = 25 * time.Millisecond
	pollLast  = time.Second
)

// Poll calls try until it succeeds or ctx is done, after 25 ms and then at twice the time as
// before, up to every second: a server that limits how often it is asked is not kept
// from answering. When ctx is done it returns its cause with the last reason that try gave, not the
// call that ctx cut short.
func Poll(ctx context.Context, try func() error) error {
	pause := pollFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var reason error
	for {
		err := try()
		if err == nil {
			return nil
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		select {
		case <-timer.C:
			pause = min(2*pause, pollLast)
			timer.Reset(pause)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), reason)
		}
	}
}

// Ready waits until the server is healthy, and returns the model that requests are for: the
// configuration's, or the first of /v1/models. A server needs neither /health nor /v1/models;
// one that has /health is waited for until it says 200. It fails at once where waiting does
// not help: without a key that the server wants, or without any model's name.
func (c *Client) Ready(ctx context.Context) (model string, err error) {
	if c.err != nil {
		return "", c.err
	}
	var hopeless error
	err = Poll(ctx, func() error {
		var err error
		if model, err = c.model(ctx); errors.As(err, new(*hopelessError)) {
			hopeless = err
			return nil
		}
		return err
	})
	if err = cmp.Or(hopeless, err); err != nil {
		return "", fmt.Errorf("server at %s: %w", c.targets[0].base, err)
	}
	return model, nil
}

// A hopelessError is of a server that waiting does not make ready.
type hopelessError struct{ error }

func (e *hopelessError) Unwrap() error { return e.error }

// absent reports whether an error is the answer of a server that has no such path.
func absent(err error) bool {
	status := (*StatusError)(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch status.Code {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusBadRequest:
		return true
	}
	return false
}

// needsKey is the error of a server that does not let us in; nil for others.
func (c *Client) needsKey(err error) error {
	status := (*StatusError)(nil)
	if !errors.As(err, &status) || status.Code != http.StatusUnauthorized && status.Code != http.StatusForbidden {
		return nil
	}
	what := "it refuses this API key"
	if c.cfg.APIKey == "" && c.cfg.Header.Get("Authorization") == "" {
		what = "it wants an API key, and none is given: set OPENAI_API_KEY"
	}
	return &hopelessError{fmt.Errorf("%s: %w", what, err)}
}

func (c *Client) model(ctx context.Context) (string, error) {
	if _, err := c.Get(ctx, "/health"); err != nil && !absent(err) && c.needsKey(err) == nil {
		return "", err
	}
	body, err := c.Get(ctx, "/v1/models")
	switch {
	case err == nil:
	case c.needsKey(err) != nil:
		return "", c.needsKey(err)
	case absent(err) && (c.cfg.Model != "" || c.backend.kind == generate):
		return c.cfg.Model, nil // nor does SGLang's own API want one
	case absent(err):
		return "", &hopelessError{fmt.Errorf("which model? It does not say: %w", err)}
	default:
		return "", err
	}
	if c.cfg.Model != "" {
		return c.cfg.Model, nil
	}
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &models); err != nil {
		return "", fmt.Errorf("GET /v1/models: %w", err)
	}
	if len(models.Data) == 0 || models.Data[0].ID == "" {
		return "", fmt.Errorf("GET /v1/models: no model in %.80q", body)
	}
	return models.Data[0].ID, nil
}
