package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/clock/clocktest"
	"kvferry/proto"
)

// TestLeaseLength: a lease is as long as the proxy is told, and as it tells the node. A
// renewal makes it as long again.
func TestLeaseLength(t *testing.T) {
	const ttl = 3 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	c := &clocktest.Stoppable{}
	c.Stop(1)
	r := newRegistry(ctx, Config{LeaseTTL: ttl, Logger: slog.New(slog.DiscardHandler)}, c, newProxyMetrics())
	defer r.members.Wait()
	defer cancel()
	reply, err := r.Register(ctx, &proto.RegisterRequest{Node: &proto.NodeInfo{
		Id: "both-1", Model: testModel, Role: proto.Role_ROLE_NONDISAGG, GrpcAddr: "127.0.0.1:1", BlockTokens: 16, MaxModelLen: 100, Vocab: testVocab,
	}})
	if err != nil || reply.TtlMs != 3000 {
		t.Fatalf("%v, %v", reply, err)
	}
	// As often as watch would, or the proxy would take it that it stood still.
	until := func(at time.Duration) {
		for now := c.Now(); now < at; now = c.Now() {
			c.Stop(min(at, now+r.terms.Every()))
			r.step(c.Now())
		}
	}
	held := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.byID["both-1"] != nil && r.byLease[reply.Lease] != nil
	}
	until(ttl)
	renewed, err := r.KeepAlive(ctx, &proto.KeepAliveRequest{Lease: reply.Lease, Load: &proto.Load{}})
	if err != nil || renewed.TtlMs != 3000 {
		t.Fatalf("%v, %v", renewed, err)
	}
	until(2*ttl - 1)
	if !held() {
		t.Error("a lease that was renewed ended early")
	}
	until(2 * ttl)
	if held() {
		t.Errorf("a lease of %v is held %v after its last renewal", ttl, ttl)
	}
	if _, err := r.KeepAlive(ctx, &proto.KeepAliveRequest{Lease: reply.Lease, Load: &proto.Load{}}); status.Code(err) != codes.NotFound {
		t.Errorf("a renewal after its end: %v", err)
	}
}

// TestLeaveClosesStream: a node that deregisters in mid-request keeps its stream until the
// request has ended, and no longer.
func TestLeaveClosesStream(t *testing.T) {
	c := newTestCluster(t, Config{})
	held, goOn := make(chan struct{}, 1), make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		held <- struct{}{}
		<-goOn
		n.answer(s, send)
	})
	m := c.proxy.registry.snapshot()[0]
	done := make(chan int, 1)
	go func() {
		status, _, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3}`)
		done <- status
	}()
	clocktest.Receive(t, held, "the request")
	if _, err := c.reg.Deregister(t.Context(), &proto.DeregisterRequest{Lease: n.lease}); err != nil {
		t.Fatal(err)
	}
	if m.ctx.Err() != nil {
		t.Error("its stream ended under a request")
	}
	close(goOn)
	if status := clocktest.Receive(t, done, "the answer"); status != 200 {
		t.Errorf("status %d", status)
	}
	clocktest.Receive(t, m.ctx.Done(), "the end of its stream")
}

// TestLongRegistration: a message is no longer than what it says can be.
func TestLongRegistration(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	info := n.like("both-2", func(i *proto.NodeInfo) { i.Rails = []string{strings.Repeat("x", 1<<20)} })
	if _, err := c.reg.Register(context.Background(), &proto.RegisterRequest{Node: info}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a registration of 1 MiB: %v", err)
	}
	info = n.like("both-3", func(i *proto.NodeInfo) { i.MaxModelLen = proto.MaxModelLen + 1 })
	if _, err := c.reg.Register(context.Background(), &proto.RegisterRequest{Node: info}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "max_model_len") {
		t.Errorf("a model of %d tokens: %v", info.MaxModelLen, err)
	}
	if status, body, err := c.post("/v1/completions", `{"prompt":"x"}`); status != http.StatusOK || err != nil {
		t.Errorf("%d %s %v", status, body, err)
	}
}
