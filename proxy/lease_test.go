package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/attempt"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestHeardOverItsStream: a node that sends no heartbeats keeps its lease while its stream
// speaks. The leases are told of that stream, and of no other's that has its id.
func TestHeardOverItsStream(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	before, open := c.proxy.nodes.Heard("both-1", n.lease)
	if !open {
		t.Error("its stream is not open")
	}
	if status, body, err := c.post("/v1/completions", `{"prompt":"x"}`); status != http.StatusOK || err != nil {
		t.Fatalf("%d %s %v", status, body, err)
	}
	at, _ := c.proxy.nodes.Heard("both-1", n.lease)
	if at <= before {
		t.Errorf("heard at %v before a request, at %v after it", before, at)
	}
	// In steps, for a proxy that stood still would excuse all.
	ttl := c.proxy.cfg.LeaseTTL
	for now := at; now < at+ttl; now += ttl / 4 {
		c.proxy.leases.Step(now)
	}
	c.proxy.leases.Step(at + ttl - 1) // the lease was granted before that
	if err := keepAlive(c, n.lease); err != nil {
		t.Errorf("a lease after its last word: %v", err)
	}
	for _, other := range []struct {
		id    string
		lease uint64
	}{{"both-1", n.lease + 1}, {"both-2", n.lease}} {
		if at, open := c.proxy.nodes.Heard(other.id, other.lease); at != 0 || open {
			t.Errorf("%v: heard at %v, open %v", other, at, open)
		}
	}
	n.kill()
	c.waitFor("its stream to break", func() bool { _, open := c.proxy.nodes.Heard("both-1", n.lease); return !open })
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
	m := c.proxy.nodes.snapshot()[0]
	done := make(chan int, 1)
	go func() {
		status, _, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3}`)
		done <- status
	}()
	clocktest.Receive(t, held, "the request")
	c.deregister(n)
	if m.ctx.Err() != nil {
		t.Error("its stream ended under a request")
	}
	close(goOn)
	if status := clocktest.Receive(t, done, "the answer"); status != 200 {
		t.Errorf("status %d", status)
	}
	clocktest.Receive(t, m.ctx.Done(), "the end of its stream")
}

// TestLateRegistration: who registers while the proxy ends is told so.
func TestLateRegistration(t *testing.T) {
	p, err := New(Config{HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
	info := &proto.NodeInfo{
		Protocol: proto.Protocol,
		Id:       "both-1", Model: testModel, Role: proto.Role_ROLE_NONDISAGG, GrpcAddr: "127.0.0.1:1", BlockTokens: 16, MaxModelLen: 100, Vocab: testVocab,
	}
	if _, err := p.leases.Register(t.Context(), &proto.RegisterRequest{Node: info}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), attempt.Ending.Error()) {
		t.Errorf("%v, want UNAVAILABLE: %v", err, attempt.Ending)
	}
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
