package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"kvferry/connector"
	"kvferry/kvtransfer"
	"kvferry/proto"
)

// A producer is a node whose transfers this one consumes. A stream to it is opened
// with the first question and kept.
//
// What it is asked or told is kept until it has answered: gRPC says that a message
// was handed to a connection, not that anybody read it, and a release that is lost
// holds the producer's blocks for its HoldTimeout. So a stream that breaks is opened
// again, and what was not answered goes first. The producer takes everything twice
// without harm.
//
//	ask ──▶ queue ──▶ stream ──▶ producer
//	          ▲         │ breaks     │
//	          └─────────┴─ waiting, releases ◀── answers take out of these
type producer struct {
	addr   string
	notify chan struct{} // cap 1: the sender has something to do

	mu       sync.Mutex
	queue    []*proto.PeerRequest // for the stream
	waiting  map[uint64]*question // by transfer
	releases []release            // not answered, oldest first
}

// A question is a request of ours that has asked for a transfer's tensors.
type question struct {
	id     uint64 // the request's
	broken int    // streams that broke under it
}

// A release has not been answered.
type release struct {
	transfer uint64
	moot     time.Duration // the producer has let go by itself by then
}

// maxBroken is how many streams may break under a question, behind which a whole
// engine waits under v0, before it is answered with Gone.
const maxBroken = 2

var (
	errGone    = fmt.Errorf("%w: unknown or expired there", connector.ErrWithdrawn)
	errLeaving = errors.New("the node is stopping")
)

func produce(transfer uint64) *proto.PeerRequest {
	return &proto.PeerRequest{Kind: &proto.PeerRequest_Produce{Produce: &proto.Produce{TransferId: transfer}}}
}

func releaseOf(transfer uint64) *proto.PeerRequest {
	return &proto.PeerRequest{Kind: &proto.PeerRequest_Release{Release: &proto.Release{TransferId: transfer}}}
}

// produce asks for the tensors of a transfer, for a request of ours. It is called by the
// loop, as release is.
func (p *peers) produce(d kvtransfer.Descriptor, id uint64) {
	p.tell(d.Addr, func(s *producer) {
		s.waiting[d.Transfer] = &question{id: id}
		s.queue = append(s.queue, produce(d.Transfer))
	}, func() { p.w.post(connector.Gone{ID: id, Err: errLeaving}) })
}

// release says that a transfer is not needed any more.
func (p *peers) release(d kvtransfer.Descriptor) {
	p.tell(d.Addr, func(s *producer) {
		now := p.w.clk.Now()
		s.expire(now)
		delete(s.waiting, d.Transfer)
		s.releases = append(s.releases, release{d.Transfer, now + p.w.cfg.HoldTimeout})
		s.queue = append(s.queue, releaseOf(d.Transfer))
	}, func() {})
}

// tell has something added to what a producer is sent; or calls leaving if this node is,
// which happens only after a drain that took too long.
func (p *peers) tell(addr string, add func(*producer), leaving func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.leaving:
		leaving()
		return
	default:
	}
	addr = cmp.Or(p.via, addr)
	s := p.out[addr]
	if s == nil {
		s = &producer{addr: addr, notify: make(chan struct{}, 1), waiting: make(map[uint64]*question)}
		p.out[addr] = s
		p.wg.Go(func() { p.hold(s) })
	}
	s.mu.Lock()
	add(s)
	s.mu.Unlock()
	wake(s.notify)
}

// expire drops releases that are moot, and returns how many. The caller holds s.mu.
func (s *producer) expire(now time.Duration) int {
	n := 0
	for n < len(s.releases) && s.releases[n].moot <= now {
		n++
	}
	s.releases = s.releases[n:]
	return n
}

// forget drops the question of a request that has ended.
func (s *producer) forget(transfer, id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.waiting[transfer]; q != nil && q.id == id {
		delete(s.waiting, transfer)
	}
}

// hold keeps a stream to a producer as long as there is something that it has not
// answered, and when there is nothing until the stream breaks.
func (p *peers) hold(s *producer) {
	wait := proto.RedialMin
	for {
		began := p.w.clk.Now()
		opened, err := p.talk(s)
		if !p.again(s, opened, err) {
			return
		}
		if p.w.clk.Now()-began > proto.RedialMax {
			wait = proto.RedialMin
		}
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
		}
		wait = min(2*wait, proto.RedialMax)
	}
}

// again is told that the stream has ended, and whether it had begun. It reports
// whether another one is needed, and queues for it what was not answered; if none
// is, the next question makes a new producer.
func (p *peers) again(s *producer, opened bool, err error) bool {
	p.mu.Lock()
	s.mu.Lock()
	ending := p.ctx.Err() != nil
	for transfer, q := range s.waiting {
		q.broken++
		if ending || !opened || q.broken == maxBroken {
			delete(s.waiting, transfer)
			p.w.post(connector.Gone{ID: q.id, Err: err})
		}
	}
	moot, left := s.expire(p.w.clk.Now()), len(s.waiting)+len(s.releases)
	again := !ending && left > 0
	s.queue = nil
	if again {
		for _, r := range s.releases {
			s.queue = append(s.queue, releaseOf(r.transfer))
		}
		for _, transfer := range slices.Sorted(maps.Keys(s.waiting)) {
			s.queue = append(s.queue, produce(transfer))
		}
		wake(s.notify)
	} else {
		delete(p.out, s.addr)
	}
	s.mu.Unlock()
	p.mu.Unlock()
	select {
	case <-p.leaving:
	case <-p.ctx.Done():
	default:
		if opened || !again {
			p.log.Warn("peer lost", "peer", s.addr, "err", err, "to_ask_again", left, "given_up", moot)
		}
	}
	return again
}

// talk opens a stream and asks over it what is queued until it ends. opened is false
// if there is nobody.
func (p *peers) talk(s *producer) (opened bool, err error) {
	conn, err := grpc.NewClient(s.addr, dialOptions()...)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	stream, err := proto.NewPeerClient(conn).Handoff(ctx)
	if err != nil {
		return false, err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.send(s, stream) })
	for {
		m, err := stream.Recv()
		if err != nil {
			return true, err
		}
		p.take(s, m)
	}
}

// send sends what is queued until the stream ends, or until the node leaves and
// everything is answered: then the producer hangs up.
func (p *peers) send(s *producer, stream proto.Peer_HandoffClient) {
	leaving := p.leaving
	for {
		select {
		case <-s.notify:
		case <-leaving:
			leaving = nil
		case <-stream.Context().Done():
			return
		}
		s.mu.Lock()
		queue := s.queue
		s.queue = nil
		over := leaving == nil && len(s.waiting)+len(s.releases) == 0
		s.mu.Unlock()
		for _, m := range queue {
			if stream.Send(m) != nil {
				return // Recv says why
			}
		}
		if over {
			_ = stream.CloseSend()
			return
		}
	}
}

// take takes an answer.
func (p *peers) take(s *producer, m *proto.PeerReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch k := m.Kind.(type) {
	case *proto.PeerReply_Produced:
		if q := s.waiting[k.Produced.GetTransferId()]; q != nil {
			p.w.post(connector.Produced{ID: q.id, Tensor: int(k.Produced.GetTensor())})
		}
	case *proto.PeerReply_Gone:
		if q := s.waiting[k.Gone.GetTransferId()]; q != nil {
			p.w.post(connector.Gone{ID: q.id, Err: errGone})
		}
	case *proto.PeerReply_Released:
		transfer := k.Released.GetTransferId()
		if i := slices.IndexFunc(s.releases, func(r release) bool { return r.transfer == transfer }); i >= 0 {
			s.releases = slices.Delete(s.releases, i, i+1)
		}
		if len(s.releases) == 0 {
			select {
			case <-p.leaving:
				wake(s.notify)
			default:
			}
		}
	}
}
