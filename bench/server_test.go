package bench

import (
	"sync/atomic"
	"testing"
)

// fakeCluster hands out a server that is already there.
type fakeCluster struct {
	url      string
	closeErr error
	closed   *atomic.Int32
	asked    bool // the server says what it is
}

func (c fakeCluster) URL() string { return c.url }

func (c fakeCluster) Link() *Link {
	if c.asked {
		return nil
	}
	return &Link{Clock: "real", Compute: "modelled", Transfer: "measured", Label: "compute modelled, transfer measured"}
}

func (c fakeCluster) Close() error {
	if c.closed != nil {
		c.closed.Add(1)
	}
	return c.closeErr
}

func TestParseCounters(t *testing.T) {
	got := parseCounters([]byte("# HELP kvferry:kv_bytes_total x\n" +
		"kvferry:kv_bytes_total{model_name=\"a b}\",role=\"decode\"} 1.5e+03\n" +
		"kvferry:kv_bytes_total{model_name=\"b\"} 20 1700000000000\n" +
		"kvferry:kv_bytes_total_created 7\n" +
		"kvferry:kv_blocks_bad_total 0\nkvferry:kv_blocks_checked_total x\nkvferry:kv_blocks_checked_total{\nvllm:x 1\n"))
	if len(got) != 2 || got[kvBytesTotal] != 1520 || got[kvBadTotal] != 0 {
		t.Fatalf("counters = %v", got)
	}
	if parseCounters([]byte("vllm:num_requests_running 1\n")) != nil {
		t.Fatal("a server without KV counters must yield nil")
	}
}
