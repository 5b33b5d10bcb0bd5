package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// How often a server is asked whether it is ready, and whether its counters
// have caught up with its answers.
const pollEvery = 25 * time.Millisecond

// poll calls try until it succeeds or ctx is done. Then it returns ctx's cause
// with the last reason that try gave, not the call that ctx cut short.
func poll(ctx context.Context, try func() error) error {
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
	err = poll(ctx, func() error {
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
	if _, err := c.get(ctx, "/health"); err != nil {
		return "", err
	}
	body, err := c.get(ctx, "/v1/models")
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

// KVCounters are the proxy's own totals, by metric name.
type KVCounters map[string]float64

// The counters that the sums over the answers' breakdowns must agree with.
const (
	kvBytesTotal   = "kvferry:kv_bytes_total"
	kvCheckedTotal = "kvferry:kv_blocks_checked_total"
	kvBadTotal     = "kvferry:kv_blocks_bad_total"
)

// KVCounters reads the totals from /metrics. A server that has none of them is
// not kvferry's and yields nil without an error.
func (c *Client) KVCounters(ctx context.Context) (KVCounters, error) {
	body, err := c.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return parseCounters(body), nil
}

// parseCounters sums the samples of the KV counters over their labels in
// Prometheus' text format.
func parseCounters(text []byte) KVCounters {
	var totals KVCounters
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		end := strings.IndexAny(line, "{ ")
		if end < 0 {
			continue
		}
		name, rest := line[:end], line[end:]
		if name != kvBytesTotal && name != kvCheckedTotal && name != kvBadTotal {
			continue
		}
		if rest[0] == '{' {
			rest = rest[strings.LastIndexByte(rest, '}')+1:]
		}
		fields := strings.Fields(rest) // value, then perhaps a timestamp
		if len(fields) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			if totals == nil {
				totals = KVCounters{}
			}
			totals[name] += v
		}
	}
	return totals
}

// countersSettle bounds the wait for counters that a server updates after its
// answer has left.
const countersSettle = time.Second

// crossCheck compares what the answers said with what the proxy counted over
// the run. A retried request may have moved KV twice, so with retries the
// proxy may have counted more.
func (c *Cell) crossCheck(ctx context.Context, client *Client, before KVCounters) {
	ctx, cancel := context.WithTimeoutCause(ctx, countersSettle, fmt.Errorf("after %v", countersSettle))
	defer cancel()
	m := c.Metrics
	if m.Failed > 0 {
		return // a failed request brought no breakdown
	}
	err := poll(ctx, func() error {
		after, err := client.KVCounters(ctx)
		if err != nil {
			return err
		}
		for _, k := range []struct {
			name    string
			answers int64
		}{{kvBytesTotal, m.KVBytes}, {kvCheckedTotal, m.KVBlocksChecked}, {kvBadTotal, m.KVBlocksBad}} {
			total, ok := after[k.name]
			if !ok {
				continue
			}
			counted := int64(total - before[k.name])
			if counted < k.answers || counted > k.answers && m.Retries == 0 {
				return fmt.Errorf("%s rose by %d, the answers add up to %d", k.name, counted, k.answers)
			}
		}
		return nil
	})
	if err != nil {
		c.fault("KV accounts disagree: %v", err)
	}
}
