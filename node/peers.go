package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"kvferry/connector"
	"kvferry/proto"
)

// peers is the node's side of the Peer service: it asks other nodes about
// transfers this node consumes, and answers those that consume ours. A stream to
// each producer is opened with the first question and kept.
type peers struct {
	w    *worker
	addr string // ours, as others dial it
	log  *slog.Logger
	ctx  context.Context // of the node
	wg   sync.WaitGroup

	mu      sync.Mutex
	out     map[string]*peerStream // by address, to producers
	askers  map[uint64]*asker      // of our transfers
	leaving chan struct{}          // closed when there is nothing more to ask
}

// A peerStream asks one producer.
type peerStream struct {
	addr   string
	notify chan struct{} // cap 1

	mu      sync.Mutex
	queue   []*proto.PeerRequest
	waiting map[uint64]uint64 // transfer -> our request, asked for its tensors
	err     error             // broken; another is made with the next question
}

// An asker is a consumer's stream to us.
type asker struct {
	mu     sync.Mutex
	queue  []*proto.PeerReply
	notify chan struct{} // cap 1
}

func newPeers(w *worker) *peers {
	return &peers{w: w, log: w.log, out: make(map[string]*peerStream), askers: make(map[uint64]*asker), leaving: make(chan struct{})}
}

// leave ends the streams once what was asked over them has been taken in: a
// release that is lost holds the producer's blocks for its HoldTimeout. The
// channel it returns is closed when all have ended. Call it once, when no request
// is left.
func (p *peers) leave() <-chan struct{} {
	p.mu.Lock()
	close(p.leaving)
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(ended)
	}()
	return ended
}

// ask is called by the loop.
func (p *peers) ask(l *live, a connector.Ask) {
	addr := l.remote.GetGrpcAddr()
	p.mu.Lock()
	select {
	case <-p.leaving: // only after a drain that took too long
		p.mu.Unlock()
		if !a.Release {
			p.w.post(connector.Gone{ID: a.ID, Err: errLeaving})
		}
		return
	default:
	}
	s := p.out[addr]
	if s == nil {
		s = &peerStream{addr: addr, notify: make(chan struct{}, 1), waiting: make(map[uint64]uint64)}
		p.out[addr] = s
		p.wg.Go(func() { p.hold(s) })
	}
	p.mu.Unlock()
	s.mu.Lock()
	err := s.err
	if err == nil {
		req := &proto.PeerRequest{Kind: &proto.PeerRequest_Produce{Produce: &proto.Produce{TransferId: a.Transfer}}}
		if a.Release {
			req.Kind = &proto.PeerRequest_Release{Release: &proto.Release{TransferId: a.Transfer}}
			delete(s.waiting, a.Transfer)
		} else {
			s.waiting[a.Transfer] = a.ID
		}
		s.queue = append(s.queue, req)
	}
	s.mu.Unlock()
	if err != nil && !a.Release {
		p.w.post(connector.Gone{ID: a.ID, Err: err})
		return
	}
	wake(s.notify)
}

// forget drops what is expected for a request that has ended.
func (p *peers) forget(l *live) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.askers, l.transfer)
	if s := p.out[l.remote.GetGrpcAddr()]; s != nil {
		s.mu.Lock()
		if s.waiting[l.remote.GetTransferId()] == l.id {
			delete(s.waiting, l.remote.GetTransferId())
		}
		s.mu.Unlock()
	}
}

// hold keeps one stream until it breaks; then everything asked over it is gone.
func (p *peers) hold(s *peerStream) {
	err := p.talk(s)
	if err == nil {
		err = io.EOF
	}
	p.mu.Lock()
	delete(p.out, s.addr)
	p.mu.Unlock()
	s.mu.Lock()
	s.err = err
	waiting := s.waiting
	s.waiting, s.queue = nil, nil
	s.mu.Unlock()
	for _, id := range waiting {
		p.w.post(connector.Gone{ID: id, Err: err})
	}
	select {
	case <-p.leaving:
	case <-p.ctx.Done():
	default:
		p.log.Warn("peer lost", "peer", s.addr, "err", err)
	}
}

func (p *peers) talk(s *peerStream) error {
	conn, err := grpc.NewClient(s.addr, dialOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	stream, err := proto.NewPeerClient(conn).Handoff(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for leaving := false; !leaving; {
			select {
			case <-s.notify:
			case <-p.leaving:
				leaving = true
			case <-ctx.Done():
				return
			}
			s.mu.Lock()
			queue := s.queue
			s.queue = nil
			s.mu.Unlock()
			for _, m := range queue {
				if stream.Send(m) != nil {
					return // Recv says why
				}
			}
		}
		_ = stream.CloseSend() // the producer hangs up when it has read everything
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		transfer := m.GetProduced().GetTransferId() + m.GetGone().GetTransferId() // one of them is nil
		id, ok := s.waiting[transfer]
		s.mu.Unlock()
		if !ok {
			continue
		}
		switch k := m.Kind.(type) {
		case *proto.PeerReply_Produced:
			p.w.post(connector.Produced{ID: id, Tensor: int(k.Produced.GetTensor())})
		case *proto.PeerReply_Gone:
			p.w.post(connector.Gone{ID: id, Err: errGone})
		}
	}
}

var (
	errGone    = fmt.Errorf("%w: unknown or expired there", connector.ErrWithdrawn)
	errLeaving = errors.New("the node is stopping")
)

// answer is called by the loop.
func (p *peers) answer(a connector.Answer) {
	p.mu.Lock()
	k := p.askers[a.Transfer]
	p.mu.Unlock()
	if k == nil {
		return // the consumer has left
	}
	r := &proto.PeerReply{Kind: &proto.PeerReply_Produced{Produced: &proto.Produced{TransferId: a.Transfer, Tensor: uint32(a.Tensor)}}}
	if a.Gone {
		r.Kind = &proto.PeerReply_Gone{Gone: &proto.Gone{TransferId: a.Transfer}}
	}
	k.mu.Lock()
	k.queue = append(k.queue, r)
	k.mu.Unlock()
	wake(k.notify)
}

// Handoff implements proto.PeerServer.
func (p *peers) Handoff(stream proto.Peer_HandoffServer) error {
	k := &asker{notify: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(stream.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		for {
			select {
			case <-k.notify:
			case <-ctx.Done():
				return
			}
			k.mu.Lock()
			queue := k.queue
			k.queue = nil
			k.mu.Unlock()
			for _, m := range queue {
				if stream.Send(m) != nil {
					return
				}
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	mine := make(map[uint64]bool)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for t := range mine {
			if p.askers[t] == k {
				delete(p.askers, t)
			}
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch q := m.Kind.(type) {
		case *proto.PeerRequest_Produce:
			t := q.Produce.GetTransferId()
			mine[t] = true
			p.mu.Lock()
			p.askers[t] = k
			p.mu.Unlock()
			p.w.post(connector.Produce{Transfer: t})
		case *proto.PeerRequest_Release:
			t := q.Release.GetTransferId()
			delete(mine, t)
			p.mu.Lock()
			delete(p.askers, t)
			p.mu.Unlock()
			p.w.post(connector.Release{Transfer: t})
		}
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
