package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"kvferry/internal/config"
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

// tries bounds the calls of a function by Again: an error that comes three times is the server's way.
const tries = 3

// Again calls try until it succeeds or fails as it would again, three times at most, and returns its last
// error. A broken connection or answer, and a status 500, need not come again.
func Again(ctx context.Context, try func() error) (err error) {
	n := 0
	stopped := Poll(ctx, func() error {
		if n++; n > 1 && ctx.Err() != nil {
			return err
		}
		if err = try(); n < tries && transient(err) {
			return err
		}
		return nil
	})
	return cmp.Or(err, stopped)
}

// transient reports whether a failed request may succeed when it is sent again at once.
func transient(err error) bool {
	var status *StatusError
	var fault *faultError
	var dial *net.OpError
	switch {
	case err == nil || errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &status):
		return status.Code == http.StatusInternalServerError
	case errors.As(err, &fault):
		return slices.Contains([]string{FaultTruncated, FaultNoEnd, FaultServer, FaultEvent, FaultEmpty}, fault.kind)
	}
	return closes(err) && !(errors.As(err, &dial) && dial.Op == "dial")
}

// Ready waits until the server is healthy, and returns the model that requests are for: the
// configuration's, or the first of /v1/models. A server needs neither /health nor /v1/models;
// one that has /health is waited for until it says 200. It fails at once, with a
// [config.Fault], where waiting does not help: without a key that the server wants, without
// any model's name, with a certificate that is not to be believed, at a URL that is another's.
func (c *Client) Ready(ctx context.Context) (model string, err error) {
	if c.err != nil {
		return "", c.err
	}
	var fault error
	err = Poll(ctx, func() error {
		var err error
		if model, err = c.model(ctx); errors.As(err, new(*config.Fault)) {
			fault = err
			return nil
		}
		return cmp.Or(err, c.others(ctx))
	})
	if err = cmp.Or(fault, err); err != nil {
		return "", c.located(err)
	}
	return model, nil
}

// others asks the workers but the first whether they are there, and healthy.
func (c *Client) others(ctx context.Context) error {
	for i := 1; i < len(c.targets); i++ {
		if _, err := c.ask(ctx, http.MethodGet, i, "/health", nil); err != nil && !absent(err) && c.needsKey(err) == nil {
			return fmt.Errorf("worker %s: %w", c.targets[i].base, err)
		}
	}
	return nil
}

// absent reports whether an error is the answer of a server that has no such path.
func absent(err error) bool {
	status := (*StatusError)(nil)
	if !errors.As(err, &status) || errors.As(err, new(*config.Fault)) {
		return false
	}
	switch status.Code {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusBadRequest:
		return true
	}
	return status.Code/100 == 3 // to another path: a page for people
}

func (c *Client) model(ctx context.Context) (string, error) {
	if _, err := c.first(ctx, "/health"); err != nil && !absent(err) && c.needsKey(err) == nil {
		return "", err
	}
	body, err := c.first(ctx, "/v1/models")
	switch {
	case err == nil:
	case c.needsKey(err) != nil:
		return "", c.needsKey(err)
	case absent(err) && (c.cfg.Model != "" || c.backend.kind == generate):
		return c.cfg.Model, nil // nor does SGLang's own API want one
	case absent(err):
		return "", unfit("Model", "which one? It does not say: name it: %w", err)
	default:
		return "", err
	}
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	err = json.Unmarshal(body, &models)
	if c.cfg.Model != "" {
		c.models = c.models[:0]
		for _, m := range models.Data {
			c.models = append(c.models, m.ID)
		}
		return c.cfg.Model, nil
	}
	if err != nil {
		return "", unfit("URL", "GET /v1/models is no list of models; is it the API's address? If it is, name the model (--model): %w: %.80q", err, body)
	}
	if len(models.Data) == 0 || models.Data[0].ID == "" {
		return "", fmt.Errorf("GET /v1/models: no model in %.80q: name one (--model)", body)
	}
	return models.Data[0].ID, nil
}

// first is Get of one of the first questions: who answers it, and how?
func (c *Client) first(ctx context.Context, path string) ([]byte, error) {
	body, err := c.Get(ctx, path)
	if err == nil {
		return body, nil
	}
	return body, cmp.Or(c.redirected(path, err), c.misspoken(ctx, err), err)
}
