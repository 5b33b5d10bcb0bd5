package proxy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	protobuf "google.golang.org/protobuf/proto"

	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

const (
	testModel       = "test-model"
	testVocab       = 151936
	testMaxModelLen = 1000
)

// helloChat is what a chat of one "hi" is in tokens.
var helloChat = func() []uint32 {
	ids, err := testTokenizer.EncodeChat([]openai.ChatMessage{{Role: "user", Content: "hi"}})
	if err != nil {
		panic(err)
	}
	return ids
}()

var testTokenizer = openai.NewTokenizer(testVocab)

// fakeToken is the generation of fake nodes: like an engine's, a word that is a function of
// the whole sequence so far.
func fakeToken(seq []uint32) uint32 {
	h := uint64(14695981039346656037)
	for _, t := range seq {
		h = (h ^ uint64(t)) * 1099511628211
	}
	first, n := testTokenizer.Words()
	return first + uint32((h^h>>29)%uint64(n))
}

func fakeTokens(prompt []uint32, n int) []uint32 {
	seq := append([]uint32(nil), prompt...)
	for range n {
		seq = append(seq, fakeToken(seq))
	}
	return seq[len(prompt):]
}

// fakeVariant is fakeTokens of one of a prompt's answers; that of variant 0 is fakeTokens.
func fakeVariant(prompt []uint32, variant uint64, n int) []uint32 {
	if variant == 0 {
		return fakeTokens(prompt, n)
	}
	return fakeTokens(append([]uint32{uint32(variant), uint32(variant >> 32)}, prompt...), n)
}

// fakeNode is a Worker that answers at once and computes nothing, or what its
// script says.
type fakeNode struct {
	proto.UnimplementedWorkerServer

	info    *proto.NodeInfo
	server  *grpc.Server
	served  sync.WaitGroup
	submits chan *proto.Submit // everything received, for tests to wait on
	cancels chan *proto.Cancel
	verdict atomic.Int32 // on KV that came out wrong: 0 for SOUND, below for none
	flushes chan *proto.Flush
	directs chan *proto.Direct
	moves   chan *proto.ToNode // Migrate, Resume, Continue
	lease   uint64
	room    atomic.Uint32 // sequences and blocks that it says are free; 0: it tells no load

	script  atomic.Pointer[script]
	hangUp  atomic.Bool   // end the stream after the next message
	says    atomic.Uint64 // the instance that streams begin with
	streams atomic.Int64  // so far

	muted atomic.Bool            // it keeps its loads to itself
	tell  atomic.Pointer[func()] // tells its load, with what it has received

	loads       atomic.Uint64
	flushed     atomic.Int64 // times
	deafToFlush atomic.Bool  // does not answer
}

// script is called for each submit in place of answer; it runs on the stream's
// receiving goroutine.
type script func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode))

func (n *fakeNode) behave(s script) { n.script.Store(&s) }

func (n *fakeNode) Serve(stream grpc.BidiStreamingServer[proto.ToNode, proto.FromNode]) error {
	header := metadata.MD{} // none, as nodes of before it say
	if says := n.says.Load(); says != 0 {
		header = proto.InstanceHeader(says)
	}
	n.streams.Add(1)
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	var mu sync.Mutex
	send := func(m *proto.FromNode) {
		mu.Lock()
		defer mu.Unlock()
		_ = stream.Send(m) // a broken stream ends Recv below
	}
	var last atomic.Uint64 // of the Submits
	tell := func() {
		if room := n.room.Load(); room > 0 && !n.muted.Load() {
			send(&proto.FromNode{Load: &proto.Load{Seq: n.loads.Add(1), Room: room, KvBlocksTotal: room}, LastSubmit: last.Load()})
		}
	}
	n.tell.Store(&tell)
	tell()
	ahead := make(map[uint64]*proto.Submit)
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch k := m.Kind.(type) {
		case *proto.ToNode_Submit:
			(*n.script.Load())(n, k.Submit, send)
			if k.Submit.Ahead {
				ahead[k.Submit.Id] = k.Submit
			}
			n.submits <- k.Submit
			last.Store(k.Submit.Id)
			tell()
		case *proto.ToNode_Direct:
			if s := ahead[k.Direct.Id]; s != nil { // as if it had come with it
				s = protobuf.CloneOf(s)
				s.Ahead, s.Kv = false, k.Direct.Kv
				(*n.script.Load())(n, s, send)
			}
			n.directs <- k.Direct
		case *proto.ToNode_Migrate, *proto.ToNode_Resume, *proto.ToNode_Continue:
			n.moves <- m
		case *proto.ToNode_Cancel:
			n.cancels <- k.Cancel
			if code := proto.FailCode(n.verdict.Load()); k.Cancel.Doubt && code >= 0 {
				send(failMessage(k.Cancel.Id, cmp.Or(code, proto.FailCode_FAIL_SOUND), true))
			}
		case *proto.ToNode_Flush:
			n.flushed.Add(1)
			n.flushes <- k.Flush
			if !n.deafToFlush.Load() {
				send(&proto.FromNode{Flushed: k.Flush.Seq})
			}
		}
		if n.hangUp.CompareAndSwap(true, false) {
			return errors.New("scripted end of the stream")
		}
	}
}

// answer does what a node should, in as few messages as can be.
func (n *fakeNode) answer(s *proto.Submit, send func(*proto.FromNode)) {
	prompt := promptOf(s)
	kv := n.kv(s)
	out := fakeVariant(prompt, s.Variant, int(s.MaxTokens))
	first := uint32(0) // token of a decode leg
	if handofftest.PrefillSpeaks(s.Handoff) {
		first = 1
	}
	switch {
	case s.Ahead: // the Direct comes
	case s.Leg == proto.Leg_LEG_PREFILL && handofftest.DecodeFirst(s.Handoff):
		send(tokenMessage(s.Id, 0, out...))
		send(&proto.FromNode{Prefilled: []*proto.Prefilled{{Id: s.Id, Breakdown: prefillBreakdown(), CachedTokens: 1}}})
	case s.Leg == proto.Leg_LEG_PREFILL && s.Handoff != "":
		m := tokenMessage(s.Id, 0, out...)
		m.Prefilled = []*proto.Prefilled{{Id: s.Id, Kv: kv, Breakdown: prefillBreakdown(), CachedTokens: 1}}
		send(m)
	case s.Leg == proto.Leg_LEG_DECODE && handofftest.DecodeFirst(s.Handoff):
		send(&proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: kv}}})
		m := tokenMessage(s.Id, first, out[first:]...)
		m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH, Breakdown: decodeBreakdown()}}
		send(m)
	case s.Leg == proto.Leg_LEG_DECODE:
		m := tokenMessage(s.Id, first, out[first:]...)
		m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH, Breakdown: decodeBreakdown()}}
		send(m)
	default:
		m := tokenMessage(s.Id, 0, out...)
		m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH, Breakdown: decodeBreakdown()}}
		send(m)
	}
}

// kv names blocks for a submit's prompt, with the token that follows it.
func (n *fakeNode) kv(s *proto.Submit) *proto.KVRef {
	prompt := promptOf(s)
	kv := &proto.KVRef{NodeId: n.info.Id, GrpcAddr: n.info.GrpcAddr, TransferId: s.Id, Tokens: uint32(len(prompt)) + s.Reserve}
	if s.Leg == proto.Leg_LEG_PREFILL {
		kv.FirstToken = fakeVariant(prompt, s.Variant, 1)[0]
	}
	for i := range (kv.Tokens + n.info.BlockTokens - 1) / n.info.BlockTokens {
		kv.Blocks = append(kv.Blocks, &proto.Block{Index: i, Id: i})
	}
	return kv
}

// promptOf is a submit's prompt. Bytes beyond a multiple of four show as a
// token of their own that is in no vocabulary.
func promptOf(s *proto.Submit) []uint32 {
	var ids []uint32
	b := s.Prompt
	for ; len(b) >= 4; b = b[4:] {
		ids = append(ids, binary.LittleEndian.Uint32(b))
	}
	if len(b) > 0 {
		ids = append(ids, math.MaxUint32)
	}
	return ids
}

func prefillBreakdown() *proto.Breakdown {
	return &proto.Breakdown{QueueUs: 10, PrefillUs: 200, PostUs: 3}
}

func decodeBreakdown() *proto.Breakdown {
	return &proto.Breakdown{QueueUs: 1, WireUs: 40, LandUs: 5, FirstDecodeUs: 60, KvBytes: 1 << 20, KvBlocksChecked: 7}
}

func tokenMessage(id uint64, first uint32, tokens ...uint32) *proto.FromNode {
	m := &proto.FromNode{}
	for i, t := range tokens {
		m.Ids, m.Tokens, m.Positions = append(m.Ids, id), append(m.Tokens, t), append(m.Positions, first+uint32(i))
	}
	return m
}

func failMessage(id uint64, code proto.FailCode, retryable bool) *proto.FromNode {
	return &proto.FromNode{Failed: []*proto.Failed{{Id: id, Code: code, Message: "scripted", Retryable: retryable}}}
}

// like is the info of another node, as n's but for its id and what change does.
func (n *fakeNode) like(id string, change func(*proto.NodeInfo)) *proto.NodeInfo {
	info := protobuf.CloneOf(n.info)
	info.Id = id
	change(info)
	return info
}

// kill ends the node as a crash would: streams break, nothing is said.
func (n *fakeNode) kill() { n.server.Stop() }

// testCluster is a proxy with fake nodes. Its end checks that every goroutine
// is gone.
type testCluster struct {
	t      testing.TB
	proxy  *Proxy
	client *http.Client
	conn   *grpc.ClientConn
	reg    proto.RegistryClient // where nodes register
	stop   context.CancelFunc   // drain
	done   chan error
	nodes  []*fakeNode
}

// counted are tests that look for goroutines that are left when they have ended all of their clusters:
// those of one come and go while another ends.
var counted sync.Map

// newTestCluster starts a proxy; tune may change it before it serves.
func newTestCluster(t testing.TB, cfg Config, tune ...func(*Proxy)) *testCluster {
	t.Helper()
	if _, others := counted.LoadOrStore(t, true); !others {
		before := runtime.NumGoroutine()
		t.Cleanup(func() {
			clocktest.Goroutines(t, before)
			counted.Delete(t)
		})
	}
	cfg.HTTPAddr, cfg.GRPCAddr = "127.0.0.1:0", "127.0.0.1:0"
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = time.Minute // fake nodes send no heartbeats
	}
	if cfg.EOS == (eos.Lengths{}) {
		cfg.EOS = eos.None // most tests are about other things
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tune {
		f(p)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &testCluster{t: t, proxy: p, client: &http.Client{Transport: &http.Transport{DisableCompression: true}}, stop: stop, done: make(chan error, 1)}
	go func() { c.done <- p.Run(ctx) }()
	if p.leases != nil {
		if c.conn, err = grpc.NewClient(p.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			t.Fatal(err)
		}
		c.reg = proto.NewRegistryClient(c.conn)
	}
	t.Cleanup(func() {
		c.client.CloseIdleConnections()
		stop()
		if err := clocktest.Receive(t, c.done, "Run's return"); err != nil {
			t.Errorf("Run: %v", err)
		}
		if c.conn != nil {
			c.conn.Close()
		}
		for _, n := range c.nodes {
			n.kill()
			n.served.Wait()
		}
		c.client.CloseIdleConnections()
	})
	return c
}

// addNode starts and registers a node and waits until the proxy has it; a nil
// script is answer.
func (c *testCluster) addNode(id string, role proto.Role, s script) *fakeNode {
	c.t.Helper()
	n := c.newNode(id, role, s)
	c.register(n)
	return n
}

// newNode starts a node and does not register it.
func (c *testCluster) newNode(id string, role proto.Role, s script) *fakeNode {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	n := &fakeNode{
		info: &proto.NodeInfo{
			Protocol: proto.Protocol, Id: id, Role: role, GrpcAddr: l.Addr().String(), Model: testModel, Profile: "fake",
			MaxModelLen: testMaxModelLen, BlockTokens: 16, KvBlocks: 1000, Instance: rand.Uint64(),
			Handoffs: handoff.Names(),
			Vocab:    testVocab, ProfileFingerprint: "0123456789abcdef", KvGeometry: "as the others",
		},
		server:  grpc.NewServer(),
		submits: make(chan *proto.Submit, 1<<16),
		cancels: make(chan *proto.Cancel, 1<<16),
		flushes: make(chan *proto.Flush, 1<<10),
		directs: make(chan *proto.Direct, 1<<10),
		moves:   make(chan *proto.ToNode, 1<<10),
	}
	if s == nil {
		s = (*fakeNode).answer
	}
	n.behave(s)
	proto.RegisterWorkerServer(n.server, n)
	n.served.Go(func() { _ = n.server.Serve(l) })
	c.nodes = append(c.nodes, n)
	return n
}

// lease registers a node.
func (c *testCluster) lease(n *fakeNode) error {
	reply, err := c.reg.Register(context.Background(), &proto.RegisterRequest{Node: n.info})
	n.lease = reply.GetLease()
	return err
}

// register registers a node and waits until it is up.
func (c *testCluster) register(n *fakeNode) {
	c.t.Helper()
	if err := c.lease(n); err != nil {
		c.t.Fatal(err)
	}
	c.waitFor("node "+n.info.Id+" to be up", func() bool {
		for _, m := range c.proxy.nodes.snapshot() {
			if _, _, ok := m.usable(); ok && m.incarnation == n.lease {
				return true
			}
		}
		return false
	})
}

// deregister ends a node's lease and waits until the proxy has taken it out.
func (c *testCluster) deregister(n *fakeNode) {
	c.t.Helper()
	if _, err := c.reg.Deregister(context.Background(), &proto.DeregisterRequest{Lease: n.lease}); err != nil {
		c.t.Fatal(err)
	}
	c.waitFor("node "+n.info.Id+" to be gone", func() bool {
		return !slices.ContainsFunc(c.proxy.nodes.snapshot(), func(m *member) bool { return m.incarnation == n.lease })
	})
}

// waitFor waits for a change in the cluster that makes cond true.
func (c *testCluster) waitFor(what string, cond func() bool) {
	c.t.Helper()
	limit := time.After(clocktest.Patience)
	for {
		changed := c.proxy.nodes.Changed()
		if cond() {
			return
		}
		select {
		case <-changed:
		case <-limit:
			c.t.Fatalf("waited %v for %s", clocktest.Patience, what)
		}
	}
}

// addPair adds prefill and decode nodes.
func (c *testCluster) addPair() (p, d *fakeNode) {
	return c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil), c.addNode("decode-1", proto.Role_ROLE_DECODE, nil)
}

func (c *testCluster) url(path string) string { return "http://" + c.proxy.HTTPAddr() + path }

func (c *testCluster) request(ctx context.Context, path, body string) *http.Request {
	c.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url(path), strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "req-1")
	return r
}

// post returns the status, the body, and the error that cut the body short.
func (c *testCluster) post(path, body string) (int, string, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	resp, err := c.client.Do(c.request(ctx, path, body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func (c *testCluster) get(path string) (int, string) {
	c.t.Helper()
	resp, err := c.client.Get(c.url(path))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
