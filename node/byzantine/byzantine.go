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
	"time"

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
	Kind  string // "" for none: see Kinds
	Seed  uint64
	Once  bool // one time only
	After int  // the times that it could have broken it and did not
}

// Kinds are the ways to break the protocol.
var Kinds = []string{"missing", "doubled", "swapped", "early", "wrong", "short", "gone", "failed"}

// A Node is one node of messages alone.
type Node struct {
	proto.UnimplementedWorkerServer
	Info  *proto.NodeInfo
	Token func(sequence []uint32) uint32 // that follows
	Pace  time.Duration                  // how long it takes for a token of a leg that may migrate

	wire  *Wire
	fault Fault

	sync.Mutex // guards what follows

	plans int      // so far
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
	write func()          // likewise
	told  bool            // likewise: until the node is told more of the leg
	end   bool            // likewise: the stream ends
}

// A leg holds the part of a request that a node carries.
type leg struct {
	submit *proto.Submit
	answer []uint32
	at     int                // position in the answer of the token that it says next
	over   bool               // it has said Finished
	told   chan *proto.ToNode // Direct, Migrate, Resume or Continue
}

func (s *step) String() string {
	switch {
	case s.await != nil:
		return "await"
	case s.check != nil:
		return "check"
	case s.write != nil:
		return "write"
	case s.told:
		return "told"
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
	type carried struct {
		*leg
		context.Context
		stop context.CancelFunc
	}
	legs := make(map[uint64]carried)
	defer func() {
		for _, l := range legs {
			l.stop()
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
	send(n.load(false))
	for {
		var m *proto.ToNode
		select {
		case m = <-received:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch k := m.Kind.(type) {
		case *proto.ToNode_Submit:
			l := carried{leg: &leg{submit: k.Submit, told: make(chan *proto.ToNode)}}
			l.Context, l.stop = context.WithCancel(ctx)
			legs[k.Submit.Id] = l
			steps := n.plan(l.leg, n.honest(l.leg))
			all.Go(func() {
				defer l.stop()
				n.follow(l, l.leg, steps, send, cancel)
			})
		case *proto.ToNode_Cancel:
			if l, known := legs[k.Cancel.Id]; known {
				l.stop()
			}
			if k.Cancel.Doubt && n.fault.Kind == "" { // the others do not say
				send(&proto.FromNode{Failed: []*proto.Failed{{Id: k.Cancel.Id, Code: proto.FailCode_FAIL_SOUND, Retryable: true}}})
			}
		default:
			if l, known := legs[m.Leg]; known {
				select {
				case l.told <- m:
				case <-l.Done():
				}
			}
		}
	}
}

// load returns a message that says that the node gets on, or that it waits for another one.
func (n *Node) load(waits bool) *proto.FromNode {
	n.Lock()
	defer n.Unlock()
	n.loads++
	return &proto.FromNode{Load: &proto.Load{Seq: n.loads, Progress: n.loads, Waits: waits, Room: 100, KvBlocksTotal: Blocks}}
}

// heldFor bounds the time for which a prefill node waits for the destination of its KV.
const heldFor = time.Second

// follow goes through a leg's steps.
func (n *Node) follow(ctx context.Context, l *leg, steps []step, send func(*proto.FromNode), hangUp func()) {
	failed := func(code proto.FailCode, message string) {
		send(&proto.FromNode{Failed: []*proto.Failed{{Id: l.submit.Id, Code: code, Message: message, Retryable: true}}})
	}
	for {
		if len(steps) == 0 {
			select {
			case m := <-l.told:
				steps = n.heard(l, m, steps)
				continue
			case <-ctx.Done():
				return
			}
		}
		s := steps[0]
		var ready <-chan time.Time
		wait := s.await
		switch prefills := l.submit.Leg == proto.Leg_LEG_PREFILL; {
		case s.told && prefills && l.submit.Kv != nil: // it was told meanwhile
		case s.told && prefills:
			wait, ready = make(chan struct{}), time.After(heldFor)
		case s.told:
			wait = make(chan struct{})
		case s.say != nil && len(s.say.Ids) > 0 && l.submit.Movable:
			ready = time.After(n.Pace)
		}
		if wait != nil {
			send(n.load(true))
		}
		if wait != nil || ready != nil {
			var m *proto.ToNode
			select {
			case m = <-l.told:
			case <-wait:
			case <-ready:
				if s.told {
					failed(proto.FailCode_FAIL_UNDIRECTED, "no destination")
					return
				}
			case <-ctx.Done():
				return
			}
			if wait != nil {
				send(n.load(false))
			}
			if m != nil {
				steps = n.heard(l, m, steps)
				continue
			}
		}
		steps = steps[1:]
		switch {
		case s.end:
			hangUp()
		case s.write != nil:
			s.write()
		case s.check != nil:
			select {
			case <-s.check:
			default:
				failed(proto.FailCode_FAIL_CONTENT, "wrong KV")
				return
			}
		case s.say != nil:
			l.over = l.over || len(s.say.Finished) > 0
			if len(s.say.Ids) > 0 {
				l.at = min(l.at+1, len(l.answer))
			}
			send(s.say)
		}
	}
}

// heard returns the steps of a leg that are left when the node has been told something of it.
func (n *Node) heard(l *leg, m *proto.ToNode, left []step) []step {
	switch k := m.Kind.(type) {
	case *proto.ToNode_Direct:
		l.submit.Kv = k.Direct.Kv
	case *proto.ToNode_Continue:
		l.at = len(k.Continue.Tokens) / 4
		return n.plan(l, append([]step{{check: n.wire.on(n.Info.Id, l.submit.Id)}}, n.rest(l)...))
	case *proto.ToNode_Migrate:
		to, known := k.Migrate.Kv, int(k.Migrate.Known)-len(l.submit.Prompt)/4
		moved := &proto.Migrated{Id: l.submit.Id, TransferId: to.TransferId}
		say := step{say: &proto.FromNode{Migrated: []*proto.Migrated{moved}}}
		if l.over || l.at+1 >= len(l.answer) {
			moved.Message = "it is nearly over"
			return n.plan(l, append([]step{say}, left...))
		}
		l.at++
		moved.Tokens = proto.TokenBytes(l.answer[known:l.at])
		return n.plan(l, []step{{write: func() { n.wire.write(to.NodeId, to.TransferId) }}, say})
	case *proto.ToNode_Resume:
		if !l.over {
			return n.plan(l, n.rest(l))
		}
	}
	return left
}

// plan returns the steps of a leg with the node's fault in them.
func (n *Node) plan(l *leg, steps []step) []step {
	n.Lock()
	defer n.Unlock()
	n.plans++
	if n.fault.Kind == "" || len(steps) == 0 || n.plans <= n.fault.After || n.fault.Once && n.plans > n.fault.After+1 {
		return steps
	}
	r := rand.New(rand.NewPCG(n.fault.Seed, 7))
	before := fmt.Sprint(pointers(steps))
	steps = spoil(r, n.fault.Kind, steps, l.submit)
	if after := fmt.Sprint(pointers(steps)); after != before {
		for _, s := range steps {
			if s.say != nil && len(s.say.Reserved) > 0 {
				break
			}
			n.Mute = n.Mute || s.await != nil
		}
		n.Broke = append(n.Broke, fmt.Sprintf("%v leg of %q: %s", l.submit.Leg, l.submit.Handoff, after))
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
func (n *Node) honest(l *leg) (steps []step) {
	s := l.submit
	prompt := proto.TokenIDs(s.Prompt)
	l.answer = Tokens(n.Token, prompt, int(s.MaxTokens))
	var h handoff.Handoff
	if i := slices.IndexFunc(handofftest.Every(), func(h handoff.Handoff) bool { return h.Name == s.Handoff }); i >= 0 {
		h = handofftest.Every()[i]
	}
	tokens := len(prompt) + int(s.Reserve)
	kv := &proto.KVRef{NodeId: n.Info.Id, GrpcAddr: n.Info.GrpcAddr, TransferId: s.Id, Tokens: uint32(tokens)}
	for i := range uint32((tokens + BlockTokens - 1) / BlockTokens) {
		kv.Blocks = append(kv.Blocks, &proto.Block{Index: i, Id: uint32(s.Id)%(Blocks/2) + i})
	}
	say := func(m *proto.FromNode) { steps = append(steps, step{say: m}) }
	switch {
	case s.Leg == proto.Leg_LEG_PREFILL && h != handoff.None:
		if s.Ahead {
			steps = append(steps, step{told: true})
		}
		if h.FirstToken == handoff.PrefillLeg {
			steps = append(steps, l.token(0))
		}
		out := &proto.Prefilled{Id: s.Id, Breakdown: &proto.Breakdown{PrefillUs: 1}}
		if h.Offers(handoff.PrefillLeg) {
			kv.FirstToken = l.answer[0]
			out.Kv = kv
			steps = append(steps, step{write: func() { n.wire.write(n.Info.Id, s.Id) }}) // into its own blocks
		} else {
			steps = append(steps, step{write: func() { n.wire.write(s.Kv.GetNodeId(), s.Kv.GetTransferId()) }})
		}
		say(&proto.FromNode{Prefilled: []*proto.Prefilled{out}})
		return steps
	case s.Handoff == handoff.Migration.Name:
		say(&proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: kv}}})
		return append(steps, step{told: true})
	case s.Leg == proto.Leg_LEG_DECODE:
		if h.Offers(handoff.DecodeLeg) {
			say(&proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: kv}}})
			steps = append(steps, step{await: n.wire.on(n.Info.Id, s.Id)})
		} else {
			steps = append(steps, step{check: n.wire.on(s.Kv.GetNodeId(), s.Kv.GetTransferId())})
		}
		if h.FirstToken == handoff.PrefillLeg {
			l.at = 1
		}
	}
	return append(steps, n.rest(l)...)
}

// token is the step that says a token of the answer.
func (l *leg) token(at int) step {
	return step{say: &proto.FromNode{Ids: []uint64{l.submit.Id}, Tokens: []uint32{l.answer[at]}, Positions: []uint32{uint32(at)}}}
}

// rest are the steps of a leg that generates from where it is.
func (n *Node) rest(l *leg) (steps []step) {
	for at := l.at; at < len(l.answer); at++ {
		steps = append(steps, l.token(at))
	}
	return append(steps, step{say: &proto.FromNode{Finished: []*proto.Finished{{Id: l.submit.Id, Reason: proto.FinishReason_FINISH_LENGTH}}}})
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
	case len(m.Migrated) > 0:
		g := m.Migrated[0]
		switch r.IntN(6) {
		case 0:
			g.Id = id(g.Id)
		case 1:
			g.TransferId = id(g.TransferId)
		case 2:
			g.Tokens = proto.TokenBytes([]uint32{Vocab + r.Uint32()>>1})
		case 3:
			g.Tokens = append(g.Tokens, make([]byte, 4<<(10+r.IntN(8)))...) // more than any answer has
		case 4:
			g.Tokens = nil
		case 5:
			m.Migrated = append(m.Migrated, g)
		}
	case len(m.Finished) > 0:
		if f := m.Finished[0]; r.IntN(2) == 0 {
			f.Id = id(f.Id)
		} else {
			m.Finished, m.Prefilled = nil, []*proto.Prefilled{{Id: f.Id}}
		}
	}
}
