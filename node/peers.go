package node

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"kvferry/connector"
	"kvferry/proto"
)

// peers is the node's side of the Peer service: it asks other nodes about
// transfers this node consumes, and answers those that consume ours.
type peers struct {
	proto.UnimplementedPeerServer

	w    *worker
	addr string // ours, as others dial it
	via  string // tests: dialled in place of every address
	log  *slog.Logger
	ctx  context.Context // of the node
	wg   sync.WaitGroup

	mu      sync.Mutex
	out     map[string]*producer // by address
	askers  map[uint64]*asker    // of our transfers
	leaving chan struct{}        // closed when there is nothing more to ask
}

// An asker is a consumer's stream to us.
type asker struct {
	mu     sync.Mutex
	queue  []*proto.PeerReply
	notify chan struct{} // cap 1
}

func newPeers(w *worker) *peers {
	return &peers{w: w, log: w.log, out: make(map[string]*producer), askers: make(map[uint64]*asker), leaving: make(chan struct{})}
}

// leave ends the streams once everything asked over them has been answered. The
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

// forget drops what is expected for a request that has ended.
func (p *peers) forget(l *live) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.askers, l.granted)
	if s := p.out[cmp.Or(p.via, l.remote.Addr)]; s != nil {
		s.forget(l.remote.Transfer, l.id)
	}
}

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
	k.reply(r)
}

func (k *asker) reply(r *proto.PeerReply) {
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
			p.w.kv.Renew(t) // who asks is there
			p.w.post(connector.Produce{Transfer: t})
		case *proto.PeerRequest_Release:
			t := q.Release.GetTransferId()
			delete(mine, t)
			p.mu.Lock()
			delete(p.askers, t)
			p.mu.Unlock()
			p.w.post(connector.Release{Transfer: t})
			k.reply(&proto.PeerReply{Kind: &proto.PeerReply_Released{Released: &proto.Released{TransferId: t}}})
		}
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
