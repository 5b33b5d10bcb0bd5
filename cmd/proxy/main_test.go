package main

import (
	"context"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--handoff x --mode y", `Handoff: "x": want one of v0, pull, layerwise`},
		{"--handoff x --mode y", `Mode: "y": want one of auto`},
		{"--http nowhere", "HTTPAddr"},
		{"--max-queue 0", "--max-queue"},
		{"--max-retries 0", "--max-retries"},
		{"--lease-ttl 0s", "--lease-ttl"},
		{"--lease-ttl -1s", "LeaseTTL"},
		{"--log-level z", "--log-level"},
		{"--nope", "--nope"},
		{"more", "more"},
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(tc.args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.args, err, tc.want)
		}
	}
}

// TestStops runs the whole daemon to an orderly end.
func TestStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := command()
	cmd.SetArgs([]string{"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-level", "error"})
	if err := cmd.ExecuteContext(ctx); err != nil {
		t.Error(err)
	}
}
