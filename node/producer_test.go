package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// A cut says where a connection to a producer breaks: in place of the n-th message
// to it, which it never gets although it was sent, or of the n-th from it, when it
// has done what it was told and nobody knows. With neither nobody answers at all.
type cut struct{ asked, answered int }

// A gate lies between the Peer service of a node and those who ask it, and cuts the
// connections that come, one after another, as it is told. Those that come after
// that go through.
type gate struct {
	lis  net.Listener
	to   string
	cuts []cut
	done atomic.Int64 // cuts that were made
	over chan struct{}
	wg   sync.WaitGroup
}

func newGate(t testing.TB, to string, cuts []cut) *gate {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{lis: lis, to: to, cuts: cuts, over: make(chan struct{})}
	g.wg.Go(g.accept)
	return g
}

func (g *gate) close() {
	g.lis.Close()
	close(g.over)
	g.wg.Wait()
}

func (g *gate) accept() {
	for i := 0; ; i++ {
		c, err := g.lis.Accept()
		if err != nil {
			return
		}
		through, x := i >= len(g.cuts), cut{}
		if !through {
			x = g.cuts[i]
		}
		if !through && x == (cut{}) {
			c.Close()
			g.done.Add(1)
			continue
		}
		to, err := net.Dial("tcp", g.to)
		if err != nil {
			c.Close() // the node has ended
			continue
		}
		ended := make(chan bool, 2) // true of a cut
		g.wg.Go(func() { ended <- pump(to, c, preface, x.asked) })
		g.wg.Go(func() { ended <- pump(c, to, 0, x.answered) })
		g.wg.Go(func() {
			select {
			case cut := <-ended:
				if cut {
					g.done.Add(1)
				}
			case <-g.over:
			}
			c.Close()
			to.Close()
		})
	}
}

// preface is the length of what an HTTP/2 client sends before its first frame.
const preface = 24

// pump copies HTTP/2 frames until the connection ends, or in place of the n-th DATA
// frame, in which gRPC sends one message; then it returns true.
func pump(to io.Writer, from io.Reader, before int64, n int) bool {
	if _, err := io.CopyN(to, from, before); err != nil {
		return false
	}
	var head [9]byte // length, type, flags, stream
	for {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return false
		}
		if data := head[3] == 0; data {
			if n--; n == 0 {
				return true
			}
		}
		if _, err := to.Write(head[:]); err != nil {
			return false
		}
		if _, err := io.CopyN(to, from, int64(binary.BigEndian.Uint32(head[:4])>>8)); err != nil {
			return false
		}
	}
}

// TestBrokenPeer breaks the stream over which decode nodes ask and tell prefill nodes
// at its worst moments. No request notices, none is computed again, and the prefill
// node's blocks are free long before its HoldTimeout of a minute.
func TestBrokenPeer(t *testing.T) {
	t.Parallel()
	both := []string{handoff.V0.Name, handoff.Pull.Name}
	for _, x := range []struct {
		name     string
		handoffs []string
		cuts     []cut
	}{
		{"never read", both, []cut{{asked: 1}}},
		{"read and not answered", both, []cut{{answered: 1}}},
		{"among others", both, []cut{{asked: 5}}},
		// Of v0 a request that asks is not kept that long.
		{"again and again", both[1:], []cut{{asked: 1}, {}, {answered: 1}, {}, {}, {asked: 3}}},
	} {
		for _, hand := range x.handoffs {
			t.Run(x.name+"/"+hand, func(t *testing.T) {
				t.Parallel() // mostly waits
				s := startNodes(t, hand, nil, "prefill-0", "decode-0")
				defer s.end()
				want, _ := s.text(1, 100, 5)
				prefill := s.nodes["prefill-0"].daemon
				g := newGate(t, prefill.GRPCAddr(), x.cuts)
				defer g.close()
				decode := s.nodes["decode-0"].daemon
				s.onLoop(decode.w, func() { decode.w.peer.via = g.lis.Addr().String() })
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						if got, status := s.text(1, 100, 5); status != http.StatusOK || got != want {
							t.Errorf("%d %q, want %q", status, got, want)
						}
					})
				}
				all.Wait()
				s.until(fmt.Sprintf("all of %d cuts", len(x.cuts)), func() bool { return int(g.done.Load()) == len(x.cuts) })
				s.until("the blocks to be free", func() bool {
					for _, n := range s.proxy.daemon.Nodes() {
						if n.Load.KvBlocksUsed > 0 {
							return false
						}
					}
					return true
				})
				for _, n := range s.proxy.daemon.Nodes() {
					if n.Load.KvTransfersFailed > 0 {
						t.Errorf("%s: %d transfers failed", n.Info.Id, n.Load.KvTransfersFailed)
					}
				}
			})
		}
	}
}

// A rawNode is a node as its peers see it.
type rawNode struct {
	t    testing.TB
	node *Node
	conn *grpc.ClientConn
	work grpc.BidiStreamingClient[proto.ToNode, proto.FromNode]
	peer grpc.BidiStreamingClient[proto.PeerRequest, proto.PeerReply]
}

func (s *nodes) raw(name string) *rawNode {
	s.t.Helper()
	n := s.nodes[name].daemon
	conn, err := grpc.NewClient(n.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	s.t.Cleanup(cancel)
	r := &rawNode{t: s.t, node: n, conn: conn}
	if r.work, err = proto.NewWorkerClient(conn).Serve(ctx); err != nil {
		s.t.Fatal(err)
	}
	if r.peer, err = proto.NewPeerClient(conn).Handoff(ctx); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// offer has the node compute a prompt, and returns the transfer it then offers.
func (r *rawNode) offer(id uint64) uint64 {
	r.t.Helper()
	err := r.work.Send(&proto.ToNode{Kind: &proto.ToNode_Submit{Submit: &proto.Submit{
		Id: id, Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Pull.Name, Prompt: make([]byte, 4*40), MaxTokens: 1,
	}}})
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		m, err := r.work.Recv()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, p := range m.Prefilled {
			return p.Kv.TransferId
		}
	}
}

// release releases a transfer and waits for the answer.
func (r *rawNode) release(transfer uint64) {
	r.t.Helper()
	if err := r.peer.Send(releaseOf(transfer)); err != nil {
		r.t.Fatal(err)
	}
	m, err := r.peer.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	if m.GetReleased().GetTransferId() != transfer {
		r.t.Fatalf("answer to the release of %d: %v", transfer, m)
	}
}

func (s *nodes) used(w *worker) (blocks int) {
	s.onLoop(w, func() { blocks = w.pool.Used() })
	return blocks
}

// TestRelease: a release is answered, whatever it is of, and ends that one's hold.
// A node that starts again where another one was does not take the other one's
// transfers for its own.
func TestRelease(t *testing.T) {
	s := startNodes(t, handoff.Pull.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	r := s.raw("prefill-0")
	first, second := r.offer(1), r.offer(2)
	w := r.node.w
	held := s.used(w)
	r.release(second)
	s.until("its blocks to be free", func() bool { return s.used(w) == held/2 })
	r.release(second)
	r.release(12345)
	if got := s.used(w); got != held/2 {
		t.Errorf("%d of %d blocks are held after releases of what is not: want half", got, held)
	}

	cfg := r.node.cfg
	cfg.GRPCAddr = r.node.GRPCAddr()
	if err := r.work.CloseSend(); err != nil { // ends its requests
		t.Fatal(err)
	}
	s.nodes["prefill-0"].end(t)
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.nodes["prefill-0"] = run(n)
	r = s.raw("prefill-0")
	r.offer(1)
	r.offer(2)
	held = s.used(n.w)
	r.release(first)
	r.release(second)
	if got := s.used(n.w); got != held {
		t.Errorf("%d of %d blocks are held after a release of what a predecessor held", got, held)
	}
	r.work.CloseSend()
}

// TestHoldLapses: blocks that nobody comes for are free when HoldTimeout is over, and who
// asks for them then is told that they are gone.
func TestHoldLapses(t *testing.T) {
	s := startNodes(t, handoff.Pull.Name, func(c *Config) { c.HoldTimeout = 50 * time.Millisecond }, "prefill-0", "decode-0")
	defer s.end()
	r := s.raw("prefill-0")
	transfer := r.offer(1)
	s.until("its blocks to be free", func() bool { return s.used(r.node.w) == 0 })
	s.onLoop(r.node.w, func() {
		if got := r.node.w.core.Totals(); got.Failed != 1 || got.Transfers != 0 {
			t.Errorf("%+v: want one transfer that failed", got)
		}
	})
	if err := r.peer.Send(produce(transfer)); err != nil {
		t.Fatal(err)
	}
	m, err := r.peer.Recv()
	if err != nil || m.GetGone().GetTransferId() != transfer {
		t.Errorf("asked for its tensors the node says %v, %v", m, err)
	}
	r.release(transfer)
	if err := r.work.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// TestLostPeer: a request whose producer nobody can ask any more fails long before its
// deadline, as does one under which two streams break, and the log tells. The producer is
// told of the release as soon as it can be reached.
func TestLostPeer(t *testing.T) {
	t.Parallel()
	for name, cuts := range map[string][]cut{
		"not there":    {{}},
		"broken twice": {{asked: 1}, {asked: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly waits
			logs := &clocktest.Log{}
			s := startNodes(t, handoff.V0.Name, func(c *Config) {
				if c.Role == proto.Role_ROLE_DECODE {
					c.Logger = slog.New(slog.NewTextHandler(logs, nil))
				}
			}, "prefill-0", "decode-0")
			defer s.end()
			prefill, decode := s.stranger(t, "prefill-0"), s.stranger(t, "decode-0")
			defer prefill.leave()
			defer decode.leave()
			prompt := tokensOf(1, 40)
			prefill.ask(proto.Leg_LEG_PREFILL, handoff.V0.Name, prompt, 1)
			kv := prefill.offer()
			g := newGate(t, kv.GrpcAddr, cuts)
			defer g.close()
			kv.GrpcAddr = g.lis.Addr().String()
			decode.submit(&proto.Submit{Leg: proto.Leg_LEG_DECODE, Handoff: handoff.V0.Name, MaxTokens: 3, Kv: kv}, prompt)
			m := clocktest.Receive(t, decode.said, "the failure")
			if len(m.Failed) != 1 || m.Failed[0].Code != proto.FailCode_FAIL_TRANSFER || !m.Failed[0].Retryable || !strings.Contains(m.Failed[0].Message, "prefill-0") {
				t.Errorf("the node says %v, want that the transfer failed", m)
			}
			s.until("the producer's blocks to be free", func() bool { return s.used(prefill.w) == 0 })
			if got := int(g.done.Load()); got != len(cuts) {
				t.Errorf("%d connections were cut, want %d", got, len(cuts))
			}
			if text := logs.String(); !strings.Contains(text, "peer lost") || !strings.Contains(text, kv.GrpcAddr) {
				t.Errorf("the log does not tell:\n%s", text)
			}
		})
	}
}
