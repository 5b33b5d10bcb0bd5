package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"kvferry/attempt"
	"kvferry/internal/clock"
	"kvferry/proto"
	"kvferry/proxy/ahead"
	"kvferry/proxy/health"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
	"kvferry/proxy/turn"
)

// serveWindow is the HTTP/2 window of a node's stream: an iteration of 1,000
// tokens is about 8 KiB, so this is a hundred of them unread.
const serveWindow = 1 << 20

// member is a node of the cluster: its Serve stream and the legs on it. One goroutine
// receives and hands out, one sends; handlers only append to the send queue.
type member struct {
	info        *proto.NodeInfo
	incarnation uint64 // as the membership numbers it
	log         *slog.Logger
	clock       clock.Clock
	metrics     *metrics.Engine
	changed     func() // the member became usable or unusable; called without mu

	ctx    context.Context // the membership: done when it ends, its cause saying why
	cancel context.CancelCauseFunc
	wake   chan struct{} // the sender has something to send

	path      *ahead.Path
	roundTrip func(*ahead.Path) time.Duration // as of nodes
	dial      []grpc.DialOption               // likewise
	backlog   health.Backlog                  // prompts that wait here

	mu       sync.Mutex
	up       bool // the stream is open
	leaving  bool // in good order: no new legs, the stream stays for those it has
	stalled  bool // it did not get on, and its legs were placed elsewhere
	stalls   uint64
	progress health.Progress
	heard    time.Duration // the last message
	load     *proto.Load
	rails    []*proto.RailLoad
	way      ahead.Way // legs that load does not count yet
	waiting  int       // tokens of the prompts that wait at the node, as its stream said last
	inFlight int       // legs not computed
	nextID   uint64
	legs     map[uint64]*leg
	queue    []*proto.ToNode
	misread  sync.Once             // a message of no known kind: logged
	flushSeq uint64                // of the last Flush that was sent
	flushes  map[uint64]chan error // not answered, by seq
}

func newMember(ctx context.Context, node members.Node) *member {
	m := &member{
		info:        node.Info,
		incarnation: node.Incarnation,
		wake:        make(chan struct{}, 1),
		path:        ahead.NewPath(),
		progress:    health.NewProgress(node.Info),
		load:        &proto.Load{},
		legs:        make(map[uint64]*leg),
		flushes:     make(map[uint64]chan error),
	}
	m.backlog.Declare(node.Info.PromptTokenNs)
	m.ctx, m.cancel = context.WithCancelCause(ctx)
	return m
}

// run keeps a stream open to the node until that is gone.
func (m *member) run() {
	defer m.cancel(nil)
	conn, err := grpc.NewClient(m.info.GrpcAddr, append(m.dial,
		grpc.WithTransportCredentials(m.path),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: proto.RedialMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: proto.RedialMax},
			MinConnectTimeout: proto.RedialMax,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.FromNodeSize(m.info))),
		grpc.WithInitialWindowSize(serveWindow),
		grpc.WithInitialConnWindowSize(serveWindow),
	)...)
	if err != nil {
		m.log.Warn("node cannot be dialled", "node", m.info.Id, "addr", m.info.GrpcAddr, "err", err)
		return
	}
	defer conn.Close()
	client := proto.NewWorkerClient(conn)
	for wait := proto.RedialMin; ; wait = min(2*wait, proto.RedialMax) {
		start := m.clock.Now()
		err := m.serve(client)
		stay := m.down(err)
		if m.ctx.Err() != nil || !stay {
			return
		}
		m.log.Warn("node's stream broke", "node", m.info.Id, "err", err)
		if m.clock.Now()-start > proto.RedialMax {
			wait = proto.RedialMin
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// serve opens the stream and receives from it until it breaks.
func (m *member) serve(client proto.WorkerClient) error {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	stream, err := client.Serve(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	header, err := stream.Header()
	if err != nil {
		return err
	}
	if err := proto.CheckInstance(header, m.info); err != nil {
		return err
	}
	m.mu.Lock()
	m.up = true
	m.mu.Unlock()
	m.changed()
	m.log.Info("node joined", "node", m.info.Id, "role", m.info.Role.String(), "addr", m.info.GrpcAddr)

	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sender.Go(func() { m.send(stream) })
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := m.receive(msg); err != nil {
			return err
		}
	}
}

// send empties the queue whenever there is something in it. Messages sent in
// one go leave in one write: gRPC collects what is queued before it writes.
func (m *member) send(stream grpc.BidiStreamingClient[proto.ToNode, proto.FromNode]) {
	var queue []*proto.ToNode
	for {
		select {
		case <-stream.Context().Done():
			return
		case <-m.wake:
		}
		m.mu.Lock()
		queue, m.queue = m.queue, queue[:0]
		m.mu.Unlock()
		for i, msg := range queue {
			queue[i] = nil
			if stream.Send(msg) != nil {
				return // Recv has the reason
			}
		}
	}
}

// receive hands out one iteration's message. An error means that the node is
// not to be trusted with a stream.
func (m *member) receive(msg *proto.FromNode) error {
	if len(msg.Tokens) != len(msg.Ids) || len(msg.Positions) != len(msg.Ids) {
		return fmt.Errorf("%w: %d ids, %d tokens, %d positions in a message", attempt.ErrBroken, len(msg.Ids), len(msg.Tokens), len(msg.Positions))
	}
	now := m.clock.Now()
	if n := len(msg.Ids); n > 0 {
		m.metrics.Iteration(n)
	}
	m.mu.Lock()
	if last := m.nextID; slices.ContainsFunc(msg.Ids, func(id uint64) bool { return id-1 >= last }) || strange(msg.Reserved, last) ||
		strange(msg.Prefilled, last) || strange(msg.Migrated, last) || strange(msg.Finished, last) || strange(msg.Failed, last) {
		m.mu.Unlock()
		return fmt.Errorf("%w: a message names a leg that was never submitted: the last one is %d", attempt.ErrBroken, last)
	}
	m.heard = now
	// The load comes first, so that the counts are complete for a client that
	// reads them when its request has ended, and so that a node that turns a
	// request down stays counted as draining.
	changed := false
	if msg.Load != nil {
		changed = m.setLoad(msg.Load)
		// Only the stream says which prompts these are: a heartbeat does not.
		m.waiting = int(msg.Load.WaitingTokens)
		m.way.Counted(msg.LastSubmit)
	}
	if len(msg.Ids)+len(msg.Reserved)+len(msg.Prefilled)+len(msg.Migrated)+len(msg.Finished)+len(msg.Failed) > 0 {
		m.progress.Word(now)
		if m.recoverLocked() {
			changed = true
		}
	}
	for i, id := range msg.Ids {
		if l := m.legs[id]; l != nil {
			l.due = 0
			l.inbox.addToken(arrival{leg: l, at: now, position: msg.Positions[i], token: msg.Tokens[i]})
		}
	}
	var before chan struct{}
	for i, r := range msg.Reserved {
		if l := m.legs[r.Id]; l != nil {
			m.settleOwed(l) // the prefill node's turn
			l.inbox.addReport(report{leg: l, at: now, reserved: r, turn: turn.Next(&before, i == len(msg.Reserved)-1)})
		}
	}
	before = nil
	for i, r := range msg.Prefilled {
		if l := m.legs[r.Id]; l != nil {
			m.settle(l)
			l.inbox.addReport(report{leg: l, at: now, prefilled: r, turn: turn.Next(&before, i == len(msg.Prefilled)-1)})
		}
	}
	for _, r := range msg.Migrated {
		if l := m.legs[r.Id]; l != nil {
			l.inbox.addReport(report{leg: l, at: now, migrated: r})
		}
	}
	for _, r := range msg.Finished {
		if l := m.legs[r.Id]; l != nil && l.asked {
			continue // the answer follows
		}
		if l := m.drop(r.Id); l != nil {
			l.inbox.addReport(report{leg: l, at: now, finished: r})
		}
	}
	if unknown := proto.Unknown(msg); unknown != nil {
		m.misread.Do(func() {
			m.log.Error("node's message refused", "node", m.info.Id, "version", m.info.Version, "err", unknown)
		})
		for _, id := range msg.Legs {
			m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: id, Reason: unknown.Error()}}})
			msg.Failed = append(msg.Failed, &proto.Failed{Id: id, Code: proto.FailCode_FAIL_UNSUPPORTED, Message: unknown.Error(), Retryable: true})
		}
	}
	if msg.Flushed > 0 {
		m.settleFlushes(msg.Flushed, nil)
	}
	for _, r := range msg.Failed {
		if l := m.drop(r.Id); l != nil {
			l.inbox.addReport(report{leg: l, at: now, failed: r})
		}
		if r.Code == proto.FailCode_FAIL_DRAINING {
			m.drainLocked()
		}
	}
	m.mu.Unlock()
	if changed {
		m.changed()
	}
	return nil
}

// strange reports whether one of these reports names a leg beyond the last that was submitted. A
// leg that has ended may be named: the message crosses a Cancel.
func strange[R interface{ GetId() uint64 }](reports []R, last uint64) bool {
	return slices.ContainsFunc(reports, func(r R) bool { return r.GetId()-1 >= last })
}

// settle counts a leg as no longer computing. The caller holds mu.
func (m *member) settle(l *leg) {
	l.due = 0
	if !l.computed {
		l.computed = true
		m.inFlight--
	}
	m.settleOwed(l)
}

// settleOwed counts a leg as one that the node need do nothing for now. The caller holds
// mu.
func (m *member) settleOwed(l *leg) {
	if l.owed {
		l.owed = false
		m.progress.Settle(l.tokens)
	}
}

// expect counts a leg again that the node can go on with: it has its KV. If next is set, what the
// node says of it next depends on no other node, and comes soon or the leg is lost.
func (m *member) expect(l *leg, next bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.legs[l.id] != l || l.computed {
		return
	}
	if !l.owed {
		l.owed = true
		m.progress.Owe(m.clock.Now(), l.tokens)
	}
	if next && l.due == 0 {
		l.due = m.clock.Now() + m.patience(l)
	}
}

// patience returns how long a node may take to check a leg's KV and to have it in a step, behind the
// prompts that wait there. The caller holds mu.
func (m *member) patience(l *leg) time.Duration {
	const bytes = 100e6 // a second, that a busy machine checks
	check := time.Duration(float64(l.prompt) * float64(m.info.KvTokenBytes) / bytes * 1e9)
	prompts := 0
	for _, l := range m.legs {
		prompts += l.prompt
	}
	return 2*m.progress.Limit() + check + time.Duration(min(m.waiting, prompts))*time.Duration(m.info.PromptTokenNs)*3/2
}

var errOverdue = fmt.Errorf("%w: KV that is said to be written has not landed, or the end of an answer is not said", attempt.ErrBroken)

// giveUp loses the legs of which the node has not said in time what was due.
func (m *member) giveUp(now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.legs {
		if l.due > 0 && now >= l.due {
			m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: l.id, Reason: errOverdue.Error()}}})
			m.lose(l, now, errOverdue)
		}
	}
}

// excuse has nothing held against the node up to now: the proxy did not listen.
func (m *member) excuse(now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.progress.Word(now)
	for _, l := range m.legs {
		if l.due > 0 {
			l.due = now + m.patience(l)
		}
	}
}

// drop forgets a leg and returns it, nil if it was not known: an answer that
// crossed a cancel. The caller holds mu.
func (m *member) drop(id uint64) *leg {
	l := m.legs[id]
	if l == nil {
		return nil
	}
	m.settle(l)
	delete(m.legs, id)
	if m.leaving && len(m.legs) == 0 {
		m.cancel(members.ErrLeft)
	}
	return l
}

// down records that the stream broke: every leg on it is lost. It reports
// whether the node should be dialled again.
func (m *member) down(err error) (redial bool) {
	if cause := context.Cause(m.ctx); cause != nil {
		err = cause
	}
	now := m.clock.Now()
	err = fmt.Errorf("%w: %w", attempt.Lost, err)
	m.mu.Lock()
	wasUp := m.up
	m.up = false
	for _, l := range m.legs {
		m.lose(l, now, err)
	}
	m.way, m.waiting, m.queue = ahead.Way{}, 0, nil
	m.settleFlushes(m.flushSeq, err)
	redial = !m.leaving
	m.mu.Unlock()
	if wasUp {
		m.changed()
	}
	return redial
}

// lose reports a leg as lost and forgets it. The caller holds mu.
func (m *member) lose(l *leg, now time.Duration, err error) {
	l.inbox.addReport(report{leg: l, at: now, lost: err})
	m.settle(l)
	delete(m.legs, l.id)
}

// leaveBehind gives up on a node that does not get on: its legs are lost, and it is told
// so. The node stays a member; a sign of life makes it as good as any.
func (m *member) leaveBehind(now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stalled = true
	m.stalls++
	err := fmt.Errorf("%w: the node does not get on for %v", attempt.Lost, (now - m.progress.At).Round(time.Millisecond))
	m.log.Warn("node left: it holds its lease and does not get on", "node", m.info.Id, "legs", len(m.legs), "silent", (now - m.progress.At).Round(time.Millisecond), "step_due", m.progress.Due)
	for _, l := range m.legs {
		m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: l.id, Reason: err.Error()}}})
		m.lose(l, now, err)
	}
}

// submit hands a leg to the node and sets its id.
func (m *member) submit(l *leg, s *proto.Submit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.up || m.leaving {
		return attempt.Lost
	}
	m.nextID++
	l.id, l.node, l.prompt = m.nextID, m, len(s.Prompt)/4
	s.Id = l.id
	m.legs[l.id] = l
	m.inFlight++
	m.way.Submitted(l.id, l.tokens, len(s.Prompt)/4)
	l.owed = true
	m.progress.Owe(m.clock.Now(), l.tokens)
	m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Submit{Submit: s}, Leg: l.id})
	return nil
}

// tell says something of a leg to its node. Of one that has ended, its end says all.
func (m *member) tell(l *leg, msg *proto.ToNode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.legs[l.id] == l {
		msg.Leg = l.id
		m.enqueue(msg)
	}
}

// release forgets a leg whose request is done with it.
func (m *member) release(l *leg) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(l.id)
}

// cancelLeg forgets a leg and tells the node to drop it, and whether the KV that it sent
// was found wrong. A leg that has ended or was lost is left alone.
func (m *member) cancelLeg(l *leg, reason string, badKV bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.legs[l.id] != l {
		return
	}
	m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: l.id, Reason: reason, BadKv: badKV}}})
	m.drop(l.id)
}

// enqueue appends to the send queue. The caller holds mu.
func (m *member) enqueue(msg *proto.ToNode) {
	m.queue = append(m.queue, msg)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// leave is an orderly end: the stream closes after its last leg.
func (m *member) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaving = true
	if len(m.legs) == 0 {
		m.cancel(members.ErrLeft)
	}
}

// flush has the node forget its prefixes. What comes of it is sent once: nil when the cache is
// empty.
func (m *member) flush() <-chan error {
	done := make(chan error, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.up {
		done <- fmt.Errorf("%w: its stream is not open", attempt.NoNode)
		return done
	}
	m.flushSeq++
	m.flushes[m.flushSeq] = done
	m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Flush{Flush: &proto.Flush{Seq: m.flushSeq}}})
	return done
}

// settleFlushes tells those that wait for flushes up to seq. The caller holds mu.
func (m *member) settleFlushes(seq uint64, err error) {
	for s, done := range m.flushes {
		if s <= seq {
			done <- err
			delete(m.flushes, s)
		}
	}
}
