package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// How often a server is asked whether it is ready, and whether its counters
// have caught up with its answers.
const pollEvery = 25 * time.Millisecond

// Poll calls try, every 25 ms, until it succeeds or ctx is done. Then it returns ctx's cause
// with the last reason that try gave, not the call that ctx cut short.
func Poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
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
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), reason)
		}
	}
}

// Ready waits until the server is healthy and has a model, whose id it returns.
func (c *Client) Ready(ctx context.Context) (model string, err error) {
	err = Poll(ctx, func() error {
		var err error
		model, err = c.model(ctx)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("server at %s: %w", c.url, err)
	}
	return model, nil
}

func (c *Client) model(ctx context.Context) (string, error) {
	if _, err := c.Get(ctx, "/health"); err != nil {
		return "", err
	}
	body, err := c.Get(ctx, "/v1/models")
	if err != nil {
		return "", err
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
