package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/client"
)

// counters are the proxy's own totals, by metric name.
type counters map[string]float64

// The counters that the sums over the answers' breakdowns must agree with.
const (
	kvBytesTotal   = "kvferry:kv_bytes_total"
	kvCheckedTotal = "kvferry:kv_blocks_checked_total"
	kvBadTotal     = "kvferry:kv_blocks_bad_total"
)

// readCounters reads the totals from /metrics. A server that has none of them is
// not kvferry's and yields nil without an error.
func readCounters(ctx context.Context, c *client.Client) (counters, error) {
	body, err := c.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return parseCounters(body), nil
}

// parseCounters sums the samples of the KV counters over their labels in
// Prometheus' text format.
func parseCounters(text []byte) counters {
	var totals counters
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
				totals = counters{}
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
func (c *Cell) crossCheck(ctx context.Context, asker *client.Client, before counters) {
	ctx, cancel := context.WithTimeoutCause(ctx, countersSettle, fmt.Errorf("after %v", countersSettle))
	defer cancel()
	m := c.Metrics
	if m.Failed > 0 {
		return // a failed request brought no breakdown
	}
	err := client.Poll(ctx, func() error {
		after, err := readCounters(ctx, asker)
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
