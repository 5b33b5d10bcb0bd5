package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// A stranger is another client of a node: a session like the proxy's, and an engine
// that can use the keys it is told.
type stranger struct {
	t      *testing.T
	w      *worker
	engine *transport.Engine
	mem    []byte // the local side of its transfers
	stream grpc.BidiStreamingClient[proto.ToNode, proto.FromNode]
	next   uint64
	said   chan *proto.FromNode
	leave  func() // before the node ends
}

func (s *nodes) stranger(t *testing.T, node string) *stranger {
	t.Helper()
	n := s.nodes[node].daemon
	conn, err := grpc.NewClient(n.GRPCAddr(), dialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	x := &stranger{t: t, w: n.w, mem: make([]byte, 1<<20), said: make(chan *proto.FromNode, 1024)}
	if x.stream, err = proto.NewWorkerClient(conn).Serve(ctx); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			m, err := x.stream.Recv()
			if err != nil {
				return
			}
			if len(m.Reserved)+len(m.Prefilled)+len(m.Finished)+len(m.Failed)+len(m.Tokens) > 0 {
				x.said <- m
			}
		}
	})
	opened, err := rails.OpenAll(n.cfg.Rails, rails.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if x.engine, err = transport.New(transport.Config{Rails: opened, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.engine.RegisterLocal("stranger", x.mem, "cpu:0"); err != nil {
		t.Fatal(err)
	}
	x.leave = func() {
		leave()
		reading.Wait()
		conn.Close()
		if err := x.engine.Close(); err != nil {
			t.Error(err)
		}
	}
	return x
}

// ask submits a leg of a request and returns its number.
func (x *stranger) ask(leg proto.Leg, hand string, prompt []kvcache.Token, tokens uint32) uint64 {
	x.t.Helper()
	return x.submit(&proto.Submit{Leg: leg, Handoff: hand, MaxTokens: tokens}, prompt)
}

func (x *stranger) submit(m *proto.Submit, prompt []kvcache.Token) uint64 {
	x.t.Helper()
	x.next++
	m.Id, m.RequestId = x.next, "stranger's"
	for _, t := range prompt {
		m.Prompt = binary.LittleEndian.AppendUint32(m.Prompt, t)
	}
	if err := x.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Submit{Submit: m}}); err != nil {
		x.t.Fatal(err)
	}
	return x.next
}

// offer waits until the node has told of a leg's blocks.
func (x *stranger) offer() *proto.KVRef {
	x.t.Helper()
	m := clocktest.Receive(x.t, x.said, "an offer")
	switch {
	case len(m.Reserved) == 1:
		return m.Reserved[0].Kv
	case len(m.Prefilled) == 1:
		return m.Prefilled[0].Kv
	}
	x.t.Fatalf("the node says %v", m)
	return nil
}

func (x *stranger) open(kv *proto.KVRef) *transport.Target {
	x.t.Helper()
	t, err := x.engine.Open(segmentFromProto(kv.Segment))
	if err != nil {
		x.t.Fatal(err)
	}
	return t
}

// do carries one request out.
func (x *stranger) do(t *transport.Target, op transport.Op, local []byte, at int64) error {
	x.t.Helper()
	b := x.engine.Submit(t, []transport.Request{{Op: op, Local: local, Offset: at}}, transport.BatchOptions{Timeout: clocktest.Patience})
	<-b.Done()
	return b.Err()
}

// signal sends a message and nothing else.
func (x *stranger) signal(t *transport.Target, message []byte) error {
	x.t.Helper()
	b := x.engine.Submit(t, nil, transport.BatchOptions{Message: message, Timeout: clocktest.Patience})
	<-b.Done()
	return b.Err()
}

func tokensOf(seed, n int) []kvcache.Token {
	ts := make([]kvcache.Token, n)
	for i := range ts {
		ts[i] = kvcache.Token((seed*104729 + i*7919) % 1000)
	}
	return ts
}

// onSockets are the kinds of rails that hold peers to windows.
var onSockets = []string{DefaultRail, "cma"}

func withRail(t *testing.T, rail string) func(*Config) {
	t.Helper()
	if opened, err := rails.OpenAll([]string{rail}, rails.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Skipf("SKIPPED: %v", err)
	} else {
		for _, r := range opened {
			r.Close()
		}
	}
	return func(c *Config) { c.Rails = []string{rail} }
}

// TestForeignRead: with the key of a one-block prompt nothing of another client's
// prompt can be read, nor can anything be written.
func TestForeignRead(t *testing.T) {
	for _, rail := range onSockets {
		for _, hand := range []string{handoff.V0.Name, handoff.Pull.Name} {
			t.Run(rail+"/"+hand, func(t *testing.T) {
				s := startNodes(t, hand, withRail(t, rail), "prefill-0", "decode-0")
				defer s.end()
				mine, theirs := s.stranger(t, "prefill-0"), s.stranger(t, "prefill-0")
				defer mine.leave()
				defer theirs.leave()
				prompt, other := tokensOf(1, 16), tokensOf(2, 64)
				mine.ask(proto.Leg_LEG_PREFILL, hand, prompt, 1)
				own := mine.offer()
				theirs.ask(proto.Leg_LEG_PREFILL, hand, other, 1)
				foreign := theirs.offer()
				g := mine.w.cfg.Profile.KVGeometry
				if len(own.Blocks) != 1 || len(foreign.Blocks) != 4 {
					t.Fatalf("%d and %d blocks", len(own.Blocks), len(foreign.Blocks))
				}
				target := mine.open(own)
				read := func(b *proto.Block, content *kvcache.Content, n int) (bool, error) {
					local := mine.mem[:n]
					clear(local)
					err := mine.do(target, transport.Read, local, g.BlockOffset(kvcache.BlockID(b.Id)))
					good := 0
					for l := range g.Layers {
						layer := local[l*g.LayerBytes() : (l+1)*g.LayerBytes()]
						want := bytes.Clone(layer)
						if content.Fill(want, int(b.Index), l); bytes.Equal(layer, want) {
							good++
						}
					}
					return good > 0, err
				}
				if got, err := read(own.Blocks[0], kvcache.NewContent(g, "", "", prompt), g.BlockBytes()); !got || err != nil {
					t.Errorf("its own block: read %v, %v", got, err)
				}
				leaked := 0
				for _, b := range foreign.Blocks {
					got, err := read(b, kvcache.NewContent(g, "", "", other), g.BlockBytes())
					if got {
						leaked++
					}
					if !errors.Is(err, transport.ErrBounds) {
						t.Errorf("block %d of another client: %v", b.Index, err)
					}
				}
				t.Logf("%d of %d blocks of another client's prompt were read", leaked, len(foreign.Blocks))
				if leaked > 0 {
					t.Error("another client's prompt can be read")
				}
				// The hidden states are part of what v0 offers, and of nothing else.
				err := mine.do(target, transport.Read, mine.mem[:g.HiddenBytes()], g.HiddenOffset(kvcache.BlockID(own.Blocks[0].Id)))
				if (err == nil) != (hand == handoff.V0.Name) || err != nil && !errors.Is(err, transport.ErrBounds) {
					t.Errorf("its own hidden states: %v", err)
				}
				for _, b := range append(own.Blocks, foreign.Blocks...) {
					if err := mine.do(target, transport.Write, mine.mem[:100], g.BlockOffset(kvcache.BlockID(b.Id))); !errors.Is(err, transport.ErrAccess) {
						t.Errorf("a write to block %d: %v", b.Id, err)
					}
				}
				if text, status := s.text(1, 100, 5); status != http.StatusOK {
					t.Errorf("a request beside it: %d %s", status, text)
				}
			})
		}
	}
}

// TestForeignWrite: with the key of one layerwise reservation, no write into another
// request's blocks goes through while the node is busy, and no request notices.
func TestForeignWrite(t *testing.T) {
	for _, rail := range onSockets {
		t.Run(rail, func(t *testing.T) {
			const requests, attempts = 8, 1000
			set := withRail(t, rail)
			s := startNodes(t, handoff.Layerwise.Name, func(c *Config) {
				set(c)
				c.KVBlocks = 64
				c.Profile.Disagg.DecodeStepMS = 5
			}, "prefill-0", "decode-0")
			defer s.end()
			want := make([]string, requests)
			for i := range want {
				want[i], _ = s.text(i, 60+i, 20)
			}
			x := s.stranger(t, "decode-0")
			defer x.leave()
			x.ask(proto.Leg_LEG_DECODE, handoff.Layerwise.Name, tokensOf(1, 16), 5)
			own := x.offer()
			target := x.open(own)
			g := x.w.cfg.Profile.KVGeometry
			for i := range x.mem {
				x.mem[i] = 0xee
			}
			if err := x.do(target, transport.Write, x.mem[:g.BlockBytes()], g.BlockOffset(kvcache.BlockID(own.Blocks[0].Id))); err != nil {
				t.Fatalf("its own block: %v", err)
			}
			var load sync.WaitGroup
			var mu sync.Mutex
			well := 0
			for i := range requests {
				load.Go(func() {
					got, status := s.text(i, 60+i, 20)
					mu.Lock()
					defer mu.Unlock()
					if status == http.StatusOK && got == want[i] {
						well++
					} else {
						t.Errorf("request %d: %d %q, want %q", i, status, got, want[i])
					}
				})
			}
			done := make(chan struct{})
			go func() {
				load.Wait()
				close(done)
			}()
			through, refused := x.flood(target, kvcache.BlockID(own.Blocks[0].Id), attempts, done)
			t.Logf("%d writes into blocks of others went through, %d were refused; %d of %d requests ended well, %d blocks were found bad", through, refused, well, requests, s.bad())
			if through > 0 || well != requests || s.bad() != 0 {
				t.Error("others' blocks can be written to")
			}
			if err := x.do(target, transport.Read, x.mem[:100], g.BlockOffset(kvcache.BlockID(own.Blocks[0].Id))); !errors.Is(err, transport.ErrAccess) {
				t.Errorf("a read: %v", err)
			}
		})
	}
}

// flood writes into all blocks but one, over and over, until done is closed and it has tried
// often enough. It counts the writes that went through, and those that were refused.
func (x *stranger) flood(target *transport.Target, but kvcache.BlockID, attempts int, done <-chan struct{}) (through, refused int) {
	g := x.w.cfg.Profile.KVGeometry
	end := func(b *transport.Batch) {
		<-b.Done()
		switch {
		case b.Err() == nil:
			through++
		case errors.Is(b.Err(), transport.ErrBounds):
			refused++
		default:
			x.t.Error(b.Err())
		}
	}
	var flight []*transport.Batch
	for busy := true; busy || through+refused < attempts; {
		for id := range kvcache.BlockID(64) {
			if id == but {
				continue
			}
			at := g.LayerOffset(id, int(id)%g.Layers)
			flight = append(flight, x.engine.Submit(target, []transport.Request{{Local: x.mem[:64], Offset: at}}, transport.BatchOptions{Timeout: clocktest.Patience}))
			if len(flight) > 16 {
				end(flight[0])
				flight = flight[1:]
			}
		}
		select {
		case <-done:
			busy = false
		default:
		}
	}
	for _, b := range flight {
		end(b)
	}
	return through, refused
}

// TestForeignImmediate: who may write for one transfer cannot say of another's that
// its parts are there, nor what its first token is.
func TestForeignImmediate(t *testing.T) {
	s := startNodes(t, handoff.Layerwise.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	x, victim := s.stranger(t, "decode-0"), s.stranger(t, "decode-0")
	defer x.leave()
	defer victim.leave()
	x.ask(proto.Leg_LEG_DECODE, handoff.Layerwise.Name, tokensOf(1, 16), 5)
	own := x.open(x.offer())
	prompt := tokensOf(2, 32)
	victim.ask(proto.Leg_LEG_DECODE, handoff.Layerwise.Name, prompt, 2)
	kv := victim.offer()
	g := x.w.cfg.Profile.KVGeometry
	imm := func(layer int, token uint32) []byte {
		n := kvtransfer.Notice{Transfer: kv.TransferId, Layer: layer, Value: token}
		return n.Encode()
	}
	for l := range g.Layers {
		if err := x.signal(own, imm(l, 7)); err != nil {
			t.Error(err)
		}
	}
	// Whoever the blocks were offered to writes them, and is believed.
	content, target := kvcache.NewContent(g, "", "", prompt), victim.open(kv)
	for l := range g.Layers {
		for _, b := range kv.Blocks {
			local := victim.mem[:g.LayerBytes()]
			content.Fill(local, int(b.Index), l)
			if err := victim.do(target, transport.Write, local, g.LayerOffset(kvcache.BlockID(b.Id), l)); err != nil {
				t.Fatal(err)
			}
		}
		if err := victim.signal(target, imm(l, 3)); err != nil {
			t.Fatal(err)
		}
	}
	for finished := false; !finished; {
		m := clocktest.Receive(t, victim.said, "the end of the request")
		if len(m.Failed) > 0 {
			t.Fatalf("an immediate of a stranger counted: %v", m.Failed)
		}
		finished = len(m.Finished) > 0
	}
}
