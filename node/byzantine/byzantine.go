// Package byzantine has nodes for tests that speak the control plane's protocol, compute nothing and
// move no bytes. A node keeps to the protocol of its hand-off; or it breaks it in one step of each
// leg, chosen by a seed: a step that is missing, doubled, swapped with the next, early, or whose
// message is wrong.
package byzantine

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/proto"
)

// All nodes of this package report these sizes.
const (
	Vocab       = 151936
	BlockTokens = 16
	Blocks      = 1000
)

// A Wire stands for the network between nodes. It records which transfers' blocks have been written.
type Wire struct {
	mu     sync.Mutex
	landed map[string]chan struct{}
}

// on returns a channel that is closed once the KV of a node's transfer has landed.
func (w *Wire) on(node string, transfer uint64) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprint(node, "/", transfer)
	if w.landed == nil {
		w.landed = make(map[string]chan struct{})
	}
	if w.landed[key] == nil {
		w.landed[key] = make(chan struct{})
	}
	return w.landed[key]
}

// write has KV land, once.
func (w *Wire) write(node string, transfer uint64) {
	c := w.on(node, transfer)
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// A Fault describes how a node breaks the protocol.
type Fault struct {
	Kind string // "" for none: see Kinds
	Seed uint64
	Once bool // in its first leg only
}

// Kinds are the ways to break the protocol.
var Kinds = []string{"missing", "doubled", "swapped", "early", "wrong", "short", "gone", "failed"}

// A Node is one node of messages alone.
type Node struct {
	proto.UnimplementedWorkerServer
	Info  *proto.NodeInfo
	Token func(sequence []uint32) uint32 // that follows

	wire  *Wire
	fault Fault

	sync.Mutex // guards what follows

	legs  int      // so far
	Broke []string // the legs that did
	// Mute: a leg waits for KV, and says that it does, without having told where that goes.
	Mute  bool
	loads uint64
}

// New returns a node, which has the wire in common with others.
func New(id string, role proto.Role, addr string, wire *Wire, fault Fault, token func([]uint32) uint32) *Node {
	hands := []string{}
	for _, h := range handofftest.Every() {
		hands = append(hands, h.Name)
	}
	return &Node{
		Info: &proto.NodeInfo{
			Protocol: proto.Protocol, Id: id, Role: role, GrpcAddr: addr, Model: "test-model", Profile: "byzantine", MaxModelLen: 1000, BlockTokens: BlockTokens, KvBlocks: Blocks, Vocab: Vocab,
			Handoffs: hands, ProfileFingerprint: "0123456789abcdef", KvGeometry: "as the others", Instance: rand.Uint64(), StepUs: 1000,
		},
		Token: token, wire: wire, fault: fault,
	}
}

// A step is one of a leg's.
type step struct {
	say   *proto.FromNode
	await <-chan struct{} // in place of a message: until it is closed
	check <-chan struct{} // likewise: the leg fails if it is not
	id    uint64          // of that leg
	write func()          // likewise
	end   bool            // likewise: the stream ends
}

func (s *step) String() string {
	switch {
	case s.await != nil:
		return "await"
	case s.check != nil:
		return "check"
	case s.write != nil:
		return "write"
	case s.end:
		return "end"
	}
	return fmt.Sprint(s.say)
}

// Serve implements proto.WorkerServer.
func (n *Node) Serve(stream grpc.BidiStreamingServer[proto.ToNode, proto.FromNode]) error {
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var mu sync.Mutex
	legs := make(map[uint64]context.CancelFunc)
	defer func() {
		for _, stop := range legs {
			stop()
		}
	}()
	send := func(m *proto.FromNode) {
		mu.Lock()
		defer mu.Unlock()
		_ = stream.Send(m) // a broken stream ends Recv below
	}
	received := make(chan *proto.ToNode)
	go func() { // ends with the stream, soon after Serve has returned
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case received <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var m *proto.ToNode
		select {
		case m = <-received:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch k := m.Kind.(type) {
		case *proto.ToNode_Submit:
			steps := n.steps(k.Submit)
			leg, stop := context.WithCancel(ctx)
			legs[k.Submit.Id] = stop
			all.Go(func() { n.follow(leg, steps, send, cancel) })
		case *proto.ToNode_Cancel:
			if stop := legs[k.Cancel.Id]; stop != nil {
				stop()
			}
			if k.Cancel.Doubt && n.fault.Kind == "" { // the others do not say
				send(&proto.FromNode{Failed: []*proto.Failed{{Id: k.Cancel.Id, Code: proto.FailCode_FAIL_SOUND, Retryable: true}}})
			}
		}
	}
}

// follow goes through a leg's steps.
func (n *Node) follow(ctx context.Context, steps []step, send func(*proto.FromNode), hangUp func()) {
	load := func(waits bool) {
		n.Lock()
		n.loads++
		m := &proto.FromNode{Load: &proto.Load{Seq: n.loads, Progress: n.loads, Waits: waits}}
		n.Unlock()
		send(m)
	}
	for _, s := range steps {
		switch {
		case s.end:
			hangUp()
		case s.write != nil:
			s.write()
		case s.check != nil:
			select {
			case <-s.check:
			default:
				send(&proto.FromNode{Failed: []*proto.Failed{{Id: s.id, Code: proto.FailCode_FAIL_CONTENT, Message: "wrong KV", Retryable: true}}})
				return
			}
		case s.await != nil:
			load(true)
			select {
			case <-s.await:
			case <-ctx.Done():
				return
			}
			load(false)
		default:
			send(s.say)
		}
	}
}

// steps are a leg's, with the node's fault in them.
func (n *Node) steps(s *proto.Submit) []step {
	steps := n.honest(s)
	n.Lock()
	defer n.Unlock()
	n.legs++
	if n.fault.Kind == "" || n.fault.Once && n.legs > 1 {
		return steps
	}
	r := rand.New(rand.NewPCG(n.fault.Seed, 7))
	before := fmt.Sprint(pointers(steps))
	steps = spoil(r, n.fault.Kind, steps, s)
	if after := fmt.Sprint(pointers(steps)); after != before {
		for _, s := range steps {
			if s.say != nil && len(s.say.Reserved) > 0 {
				break
			}
			n.Mute = n.Mute || s.await != nil
		}
		n.Broke = append(n.Broke, fmt.Sprintf("%v leg of %q: %s", s.Leg, s.Handoff, after))
	}
	return steps
}

func pointers(steps []step) (all []*step) {
	for i := range steps {
		all = append(all, &steps[i])
	}
	return all
}

// Tokens are those that follow a prompt.
func Tokens(token func([]uint32) uint32, prompt []uint32, n int) []uint32 {
	sequence := slices.Clone(prompt)
	for range n {
		sequence = append(sequence, token(sequence))
	}
	return sequence[len(prompt):]
}

// honest are the steps of a leg as the protocol has it.
func (n *Node) honest(s *proto.Submit) (steps []step) {
	prompt := proto.TokenIDs(s.Prompt)
	tokens := Tokens(n.Token, prompt, int(s.MaxTokens))
	var h handoff.Handoff
	if i := slices.IndexFunc(handofftest.Every(), func(h handoff.Handoff) bool { return h.Name == s.Handoff }); i >= 0 {
		h = handofftest.Every()[i]
	}
	kv := &proto.KVRef{NodeId: n.Info.Id, GrpcAddr: n.Info.GrpcAddr, TransferId: s.Id, Tokens: uint32(len(prompt))}
	for i := range uint32((len(prompt) + BlockTokens - 1) / BlockTokens) {
		kv.Blocks = append(kv.Blocks, &proto.Block{Index: i, Id: uint32(s.Id)%(Blocks/2) + i})
	}
	say := func(m *proto.FromNode) { steps = append(steps, step{say: m}) }
	token := func(at int) {
		say(&proto.FromNode{Ids: []uint64{s.Id}, Tokens: []uint32{tokens[at]}, Positions: []uint32{uint32(at)}})
	}
	finished := func() {
		say(&proto.FromNode{Finished: []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH}}})
	}
	switch {
	case s.Leg == proto.Leg_LEG_PREFILL && h != handoff.None:
		if h.FirstToken == handoff.PrefillLeg {
			token(0)
		}
		out := &proto.Prefilled{Id: s.Id, Breakdown: &proto.Breakdown{PrefillUs: 1}}
		if h.Offers(handoff.PrefillLeg) {
			kv.FirstToken = tokens[0]
			out.Kv = kv
			steps = append(steps, step{write: func() { n.wire.write(n.Info.Id, s.Id) }}) // into its own blocks
		} else {
			to := s.Kv
			steps = append(steps, step{write: func() { n.wire.write(to.GetNodeId(), to.GetTransferId()) }})
		}
		say(&proto.FromNode{Prefilled: []*proto.Prefilled{out}})
	case s.Leg == proto.Leg_LEG_DECODE:
		if h.Offers(handoff.DecodeLeg) {
			say(&proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: kv}}})
			steps = append(steps, step{await: n.wire.on(n.Info.Id, s.Id)})
		} else {
			steps = append(steps, step{check: n.wire.on(s.Kv.GetNodeId(), s.Kv.GetTransferId()), id: s.Id})
		}
		first := 0
		if h.FirstToken == handoff.PrefillLeg {
			first = 1
		}
		for at := first; at < len(tokens); at++ {
			token(at)
		}
		finished()
	default:
		for at := range tokens {
			token(at)
		}
		finished()
	}
	return steps
}

// spoil breaks one of the steps.
func spoil(r *rand.Rand, kind string, steps []step, s *proto.Submit) []step {
	i := r.IntN(len(steps))
	switch kind {
	case "missing":
		return slices.Delete(steps, i, i+1)
	case "doubled":
		return slices.Insert(steps, i, steps[i])
	case "swapped":
		if len(steps) > 1 {
			i = r.IntN(len(steps) - 1)
			steps[i], steps[i+1] = steps[i+1], steps[i]
		}
	case "early":
		moved := steps[i]
		return slices.Insert(slices.Delete(steps, i, i+1), r.IntN(i+1), moved)
	case "short": // what is left out but for the end
		return append(steps[:r.IntN(len(steps))], steps[len(steps)-1])
	case "gone":
		return append(steps[:i], step{end: true})
	case "failed":
		m := &proto.FromNode{Failed: []*proto.Failed{{Id: s.Id, Code: proto.FailCode(3 + r.IntN(7)), Message: "byzantine", Retryable: true}}}
		return append(steps[:i], step{say: m})
	case "wrong":
		var said []int
		for i := range steps {
			if steps[i].say != nil {
				said = append(said, i)
			}
		}
		wrong(r, steps[said[r.IntN(len(said))]].say)
	}
	return steps
}

// wrong changes a message into one that its node cannot say.
func wrong(r *rand.Rand, m *proto.FromNode) {
	id := func(of uint64) uint64 { return []uint64{0, of + 1<<20, math.MaxUint64}[r.IntN(3)] }
	offer := func(kv *proto.KVRef) {
		switch r.IntN(10) {
		case 0:
			kv.NodeId += "'s neighbour"
		case 1:
			kv.GrpcAddr = "127.0.0.1:1"
		case 2:
			kv.Tokens *= 2
		case 3:
			kv.Tokens = math.MaxUint32
		case 4:
			kv.Blocks = append(kv.Blocks, kv.Blocks...)
		case 5:
			kv.Blocks = kv.Blocks[:len(kv.Blocks)-1]
		case 6:
			kv.Blocks[len(kv.Blocks)-1].Index += 1 << r.IntN(31)
		case 7:
			kv.Blocks[0].Id = Blocks + r.Uint32()>>1
		case 8:
			kv.Blocks = append(kv.Blocks, make([]*proto.Block, 1<<r.IntN(14))...)
			for i := range kv.Blocks {
				if kv.Blocks[i] == nil {
					kv.Blocks[i] = &proto.Block{Index: uint32(i), Id: uint32(i)}
				}
			}
		case 9:
			if len(kv.Blocks) > 1 {
				kv.Blocks[1].Id = kv.Blocks[0].Id
			} else {
				kv.Blocks = nil
			}
		}
	}
	switch {
	case len(m.Ids) > 0:
		switch r.IntN(6) {
		case 0:
			m.Ids[0] = id(m.Ids[0])
		case 1:
			m.Tokens[0] = Vocab + r.Uint32()>>1
		case 2:
			m.Tokens[0] = math.MaxUint32
		case 3:
			m.Positions[0] += 1 << r.IntN(31)
		case 4:
			m.Tokens = append(m.Tokens, m.Tokens[0])
		case 5: // a thousand of it
			for range 1000 {
				m.Ids, m.Tokens, m.Positions = append(m.Ids, m.Ids[0]), append(m.Tokens, m.Tokens[0]), append(m.Positions, m.Positions[len(m.Positions)-1]+1)
			}
		}
	case len(m.Reserved) > 0:
		switch r.IntN(3) {
		case 0:
			m.Reserved[0].Id = id(m.Reserved[0].Id)
		case 1:
			m.Reserved[0].Kv = nil
		default:
			offer(m.Reserved[0].Kv)
		}
	case len(m.Prefilled) > 0:
		p := m.Prefilled[0]
		switch n := r.IntN(5); {
		case n == 0:
			p.Id = id(p.Id)
		case n == 1 || p.Kv == nil: // another report in its place
			m.Prefilled, m.Finished = nil, []*proto.Finished{{Id: p.Id}}
		case n == 2:
			p.Kv.FirstToken = (p.Kv.FirstToken + 1 + r.Uint32N(Vocab-1)) % Vocab
		case n == 3:
			p.Kv.FirstToken = math.MaxUint32
		default:
			offer(p.Kv)
		}
	case len(m.Finished) > 0:
		if f := m.Finished[0]; r.IntN(2) == 0 {
			f.Id = id(f.Id)
		} else {
			m.Finished, m.Prefilled = nil, []*proto.Prefilled{{Id: f.Id}}
		}
	}
}
