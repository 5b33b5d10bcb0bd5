package cluster

import (
	"context"
	"net/http"
	"syscall"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/node"
)

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestLogLost: daemons whose log cannot be written serve all the same.
func TestLogLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cl, err := Start(ctx, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{}), LogLevel: "debug", Log: fullDisk{}, Node: node.Config{KVBlocks: 64}})
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{Cluster: cl, t: t, http: &http.Client{}, logs: &clocktest.Log{}}
	c.poll("the nodes to join", func() bool {
		return c.metric(`kvferry:nodes{role="prefill"}`) == 1 && c.metric(`kvferry:nodes{role="decode"}`) == 1
	})
	for range 3 {
		c.do(call{Prompt: prompt(0, 64), MaxTokens: 4}).expect(t, 4)
	}
	c.http.CloseIdleConnections()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
