package node

import (
	"fmt"
	"sync"

	"kvferry/connector"
	"kvferry/kvtransfer"
	"kvferry/proto"
)

// undirected are the legs of a session that came ahead and have not been told where their KV
// goes, by the proxy's ID. Only for these is a Direct looked at.
type undirected struct {
	mu   sync.Mutex
	legs map[uint64]*live
}

func (u *undirected) add(l *live) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.legs == nil {
		u.legs = make(map[uint64]*live)
	}
	u.legs[l.sid] = l
}

// take returns the leg of an ID, once; nil if there is none, or it has ended.
func (u *undirected) take(sid uint64) *live {
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.legs[sid]
	delete(u.legs, sid)
	return l
}

// drop forgets a leg that has ended.
func (u *undirected) drop(l *live) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.legs[l.sid] == l {
		delete(u.legs, l.sid)
	}
}

// direct tells a leg that came ahead where its KV goes. It runs on the stream's goroutine, as
// submit does: the way to a peer that is new takes a while to open.
func (w *worker) direct(s *session, m *proto.Direct) {
	l := s.undirected.take(m.GetId())
	if l == nil {
		return
	}
	remote := descriptorOf(m.GetKv())
	err := w.checkBlocks(m.GetKv())
	var moves *kvtransfer.Transfer
	if err == nil {
		moves, err = w.kv.Open(remote, kvtransfer.Options{Tag: l.name, Key: legKey{s, l.sid}})
	}
	w.run(func() connector.Event {
		switch {
		case w.live[l.id] != l:
			if moves != nil {
				moves.Close(false)
			}
			return nil
		case err != nil:
			w.fail(l, l.id, fmt.Errorf("%w: kv.segment: %w", connector.ErrOffer, err))
			return nil
		}
		l.remote, l.moves = remote, moves
		return connector.Direct{ID: l.id, Remote: remoteOf(remote, 0)}
	})
}
