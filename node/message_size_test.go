package node

import (
	"context"
	"encoding/binary"
	"math"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/proto"
)

// longestSubmit is as much as a proxy can have to say to a node of that model.
func longestSubmit(modelLen, blockTokens int) *proto.Submit {
	const most = math.MaxUint32
	s := &proto.Submit{
		Id: math.MaxUint64, RequestId: strings.Repeat("x", 256), Leg: proto.Leg_LEG_DECODE, Handoff: handoff.Layerwise.Name, MaxTokens: most,
		DeadlineMs: most, AgeUs: most, Prior: most, IgnoreEos: true, Variant: math.MaxUint64, FirstWord: most, Words: most, Adapter: strings.Repeat("l", 256), Prompt: make([]byte, 4*modelLen),
		Kv: &proto.KVRef{
			NodeId: strings.Repeat("n", 256), GrpcAddr: strings.Repeat("a", 256), TransferId: math.MaxUint64, Tokens: most, FirstToken: most,
			Segment: &proto.Segment{Name: strings.Repeat("s", 256), Length: math.MaxUint64, Location: "cpu:0"},
		},
	}
	for range 64 {
		s.Kv.Segment.Rails = append(s.Kv.Segment.Rails, &proto.RailAddr{Rail: strings.Repeat("r", 64), Addr: strings.Repeat("a", 512), Key: math.MaxUint64, Rank: -1})
	}
	for range modelLen/blockTokens + 1 {
		s.Kv.Blocks = append(s.Kv.Blocks, &proto.Block{Index: most, Id: most, Generation: most, Digest: math.MaxUint64, HiddenDigest: math.MaxUint64})
	}
	return s
}

// TestLongestMessages: what nodes and proxies can have to say is not refused, for any
// length of model.
func TestLongestMessages(t *testing.T) {
	for _, m := range []struct{ length, block int }{{1, 16}, {15, 16}, {10_000, 16}, {10_000, 1}, {131_072, 32}, {proto.MaxModelLen, 16}} {
		s := longestSubmit(m.length, m.block)
		limit := proto.SubmitSize(uint32(m.length), uint32(m.block))
		if n := protobuf.Size(&proto.ToNode{Kind: &proto.ToNode_Submit{Submit: s}}); n > limit {
			t.Errorf("model of %d tokens, blocks of %d: a Submit of %d bytes, at most %d are taken", m.length, m.block, n, limit)
		}
		if n := protobuf.Size(&proto.FromNode{Reserved: []*proto.Reserved{{Id: math.MaxUint64, Kv: s.Kv}}}); n > limit {
			t.Errorf("model of %d tokens, blocks of %d: a Reserved of %d bytes, at most %d are taken", m.length, m.block, n, limit)
		}
	}
	beat := &proto.KeepAliveRequest{Lease: math.MaxUint64, Load: &proto.Load{}}
	for range 256 {
		beat.Rails = append(beat.Rails, &proto.RailLoad{
			Rail: strings.Repeat("r", 64), BytesWritten: math.MaxUint64, BytesRead: math.MaxUint64, BytesResent: math.MaxUint64, Errors: math.MaxUint64,
			Downs: math.MaxUint64, Paths: math.MaxUint32, PathsUp: math.MaxUint32, BytesInFlight: math.MaxUint64, Rate: math.MaxUint64,
		})
	}
	if n := protobuf.Size(beat); n > proto.MessageSize {
		t.Errorf("a heartbeat of 256 rails has %d bytes, at most %d are taken", n, proto.MessageSize)
	}
}

// TestLongSubmit: a Submit of 60 MB is refused by its length, and who sent it loses its
// stream. The node serves others. When its prompt was looked at only once all was there,
// the node grew from 19 to 373 MB.
func TestLongSubmit(t *testing.T) {
	s := startNodes(t, handoff.Layerwise.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	conn, err := grpc.NewClient(s.nodes["prefill-0"].daemon.GRPCAddr(), dialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	stream, err := proto.NewWorkerClient(conn).Serve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	long := &proto.Submit{Id: 1, Leg: proto.Leg_LEG_PREFILL, Prompt: make([]byte, 60<<20), MaxTokens: 1}
	_ = stream.Send(&proto.ToNode{Kind: &proto.ToNode_Submit{Submit: long}}) // Recv has the reason
	for err == nil {
		var m *proto.FromNode
		if m, err = stream.Recv(); len(m.GetFailed()) > 0 {
			t.Fatalf("the node has read all of it: %v", m.Failed)
		}
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("the stream ends with %v", err)
	}
	if text, code := s.text(1, 100, 5); code != http.StatusOK {
		t.Errorf("afterwards: %d %s", code, text)
	}
}

// TestSubmitBeyondModel: a prompt that is longer than the model is refused before anything
// is made of it, and so is a table with more blocks than hold one.
func TestSubmitBeyondModel(t *testing.T) {
	s := startNodes(t, handoff.Layerwise.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	x := s.stranger(t, "prefill-0")
	defer x.leave()
	p := x.w.cfg.Profile
	x.ask(proto.Leg_LEG_PREFILL, handoff.Pull.Name, make([]kvcache.Token, p.MaxModelLen+1), 1)
	m := clocktest.Receive(t, x.said, "a refusal")
	if len(m.Failed) != 1 || m.Failed[0].Code != proto.FailCode_FAIL_TOO_LARGE || !m.Failed[0].Retryable || !strings.Contains(m.Failed[0].Message, "(max_model_len)") {
		t.Errorf("a prompt of %d tokens: the node says %v", p.MaxModelLen+1, m)
	}
	kv := &proto.KVRef{NodeId: "x", TransferId: 1}
	for i := range p.MaxModelLen/p.KVGeometry.BlockTokens + 2 {
		kv.Blocks = append(kv.Blocks, &proto.Block{Index: uint32(i)})
	}
	x.next++
	err := x.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Submit{Submit: &proto.Submit{
		Id: x.next, Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Layerwise.Name, Prompt: binary.LittleEndian.AppendUint32(nil, 1), MaxTokens: 1, Kv: kv,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	m = clocktest.Receive(t, x.said, "a refusal")
	if len(m.Failed) != 1 || m.Failed[0].Code != proto.FailCode_FAIL_TRANSFER || !m.Failed[0].Retryable || !strings.Contains(m.Failed[0].Message, "(max_model_len)") {
		t.Errorf("%d blocks: the node says %v", len(kv.Blocks), m)
	}
}

// TestWrongNode: a leg that was meant for a node whose port this one has now may be tried on
// another one.
func TestWrongNode(t *testing.T) {
	s := startNodes(t, handoff.Pull.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	x := s.stranger(t, "decode-0")
	defer x.leave()
	x.ask(proto.Leg_LEG_PREFILL, handoff.Pull.Name, tokensOf(1, 16), 1)
	m := clocktest.Receive(t, x.said, "a refusal")
	if len(m.Failed) != 1 || m.Failed[0].Code != proto.FailCode_FAIL_INTERNAL || !m.Failed[0].Retryable || !strings.Contains(m.Failed[0].Message, "does not go to decode-0") {
		t.Errorf("the node says %v", m)
	}
}

// TestSplit: what collects while a proxy does not read goes out in messages that it
// takes, in order, with nothing lost. As one message it would have broken the stream, and
// every request on it would have been placed again.
func TestSplit(t *testing.T) {
	t.Parallel()
	const requests, steps = 100, 1000 // 100,000 tokens
	all := &proto.FromNode{Load: &proto.Load{Seq: 7}, LastSubmit: 9}
	for step := range steps {
		for id := range requests {
			all.Ids, all.Tokens, all.Positions = append(all.Ids, uint64(id)), append(all.Tokens, uint32(id*step)), append(all.Positions, uint32(step))
		}
	}
	kv := longestSubmit(10_000, 16).Kv
	for id := range uint64(requests) {
		all.Reserved = append(all.Reserved, &proto.Reserved{Id: id, Kv: kv})
		all.Prefilled = append(all.Prefilled, &proto.Prefilled{Id: id, Kv: kv})
		all.Finished = append(all.Finished, &proto.Finished{Id: id})
		all.Failed = append(all.Failed, &proto.Failed{Id: id, Message: strings.Repeat("x", 5000)})
	}
	limit := proto.FromNodeSize(&proto.NodeInfo{MaxModelLen: 10_000, BlockTokens: 16})
	got := &proto.FromNode{}
	messages := 0
	err := split(all, func(m *proto.FromNode) error {
		if n := protobuf.Size(m); n > limit {
			t.Errorf("message %d has %d bytes, at most %d are taken", messages, n, limit)
		}
		if got.Load != nil || len(m.Ids) > 0 && len(got.Reserved)+len(m.Reserved) > 0 {
			t.Errorf("message %d comes after what should come last", messages)
		}
		messages++
		protobuf.Merge(got, m)
		return nil
	})
	if err != nil || !protobuf.Equal(got, all) {
		t.Errorf("%d messages do not make what was to be said: %v", messages, err)
	}
	if messages < 10 {
		t.Errorf("%d messages", messages)
	}
}
