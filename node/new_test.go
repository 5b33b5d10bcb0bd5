package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/proto"
)

// TestNewFails: a node that cannot be built says what is in its way, and leaves nothing
// behind: what it had opened by then can be opened again.
func TestNewFails(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	taken := lis.Addr().String()
	free, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	rail := free.Addr().String()
	free.Close()
	good := func() Config {
		return Config{
			ID: "decode-0", Role: proto.Role_ROLE_DECODE, Proxy: "127.0.0.1:1", Rails: []string{rail},
			Profile: smallProfile(t), KVBlocks: 4, Logger: slog.New(slog.DiscardHandler),
		}
	}
	for want, spoil := range map[string]func(*Config){
		"KVLocation":             func(c *Config) { c.KVLocation = "cpu:1000" },
		"GRPCAddr":               func(c *Config) { c.GRPCAddr = taken },
		taken:                    func(c *Config) { c.Rails = []string{rail, taken} },
		"max_num_batched_tokens": func(c *Config) { c.Profile.MaxBatchedTokens = c.Profile.MaxModelLen - 1 },
		"ID: none given":         func(c *Config) { c.ID = "" },
		"no more huge pages": func(c *Config) {
			c.Allocate = func(int) ([]byte, func() error, error) { return nil, nil, errors.New("no more huge pages") }
		},
		"executor: no GPU": func(c *Config) {
			c.NewExecutor = func(*kvcache.Slab, clock.Clock) (engine.Executor, error) {
				return (*counting)(nil), errors.New("no GPU")
			}
		},
	} {
		cfg := good()
		spoil(&cfg)
		n, err := New(cfg)
		if err == nil || n != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
		if n != nil {
			n.Close()
		}
	}
	cfg := good()
	held := 0
	cfg.Allocate = func(size int) ([]byte, func() error, error) {
		held += size
		return make([]byte, size), func() error { held -= size; return nil }, nil
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := 4 * cfg.Profile.KVGeometry.SlotBytes(); held != want {
		t.Errorf("the pool has %d bytes of its allocator's, want %d", held, want)
	}
	n.Close()
	n.Close() // does nothing
	if held != 0 {
		t.Errorf("%d bytes were not given back", held)
	}
}

// TestStopWhileWarming: a node that is stopped while it takes memory for its pool ends,
// and has not served.
func TestStopWhileWarming(t *testing.T) {
	var log clocktest.Log
	n, err := New(Config{
		ID: "decode-0", Role: proto.Role_ROLE_DECODE, Proxy: "127.0.0.1:1", Rails: []string{DefaultRail},
		Profile: smallProfile(t), KVBlocks: 4, WarmBytes: 1 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := n.Run(ctx); err != nil {
		t.Error(err)
	}
	if got := log.String(); strings.Contains(got, "serving") || !strings.Contains(got, "msg=stopped") {
		t.Error(got)
	}
}
