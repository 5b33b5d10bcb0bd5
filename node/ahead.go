package node

import (
	"fmt"

	"kvferry/connector"
	"kvferry/kvtransfer"
	"kvferry/proto"
)

// direct tells a leg that came ahead where its KV goes. It runs on the stream's goroutine, as
// submit does: the way to a peer that is new takes a while to open.
func (w *worker) direct(s *session, m *proto.Direct) {
	v, ok := s.undirected.LoadAndDelete(m.GetId())
	if !ok {
		return
	}
	l := v.(*live)
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
