package node

import (
	"fmt"
	"slices"

	"kvferry/connector"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
)

// This file is a request that generates on one node and goes on on another: what the proxy says of
// it, and what is said to it. Package connector knows what is done.

// A migrationKey is what the moves of a leg that leaves are known by; those that brought its KV
// have a legKey.
type migrationKey legKey

// of runs f on the loop for the leg that the proxy has under an ID, if there is one.
func (w *worker) of(s *session, sid uint64, f func(*live) connector.Event) {
	w.run(func() connector.Event {
		if l := w.live[s.requests[sid]]; l != nil {
			return f(l)
		}
		return nil
	})
}

// migrate begins to copy a leg's KV to another node. It runs on the stream's goroutine, as submit
// does.
func (w *worker) migrate(s *session, m *proto.Migrate) {
	remote := descriptorOf(m.GetKv())
	err := w.checkBlocks(m.GetKv())
	var out *kvtransfer.Transfer
	if err == nil {
		out, err = w.kv.Open(remote, kvtransfer.Options{Tag: fmt.Sprintf("migration %d", m.GetId()), Key: migrationKey{s, m.GetId()}})
	}
	w.run(func() connector.Event {
		l := w.live[s.requests[m.GetId()]]
		switch {
		case err != nil && l != nil:
			w.Migrated(&connector.Migrated{ID: l.id, Transfer: remote.Transfer, Err: fmt.Errorf("%w: kv.segment: %w", connector.ErrOffer, err)})
			return nil
		case l == nil || l.out != nil && l.out.Moves() > 0: // the core refuses the second
			if out != nil {
				out.Close(false)
			}
			if l == nil {
				return nil
			}
		default:
			w.outOver(l)
			l.out = out
		}
		return connector.Migrate{ID: l.id, Remote: remoteOf(remote, 0), Known: int(m.GetKnown())}
	})
}

// Migrated implements connector.Driver. It tells the proxy whether the KV has been copied.
func (w *worker) Migrated(m *connector.Migrated) {
	l := w.live[m.ID]
	if l == nil {
		return
	}
	out := &proto.Migrated{Id: l.sid, TransferId: m.Transfer, Breakdown: breakdown(m.Breakdown), CachedTokens: uint32(m.Cached)}
	if m.Err != nil {
		out.Message = m.Err.Error()
		w.log.Warn("request not moved", "request", l.name, "err", m.Err)
	}
	out.Tokens = proto.TokenBytes(m.Tokens)
	l.went = m.Err == nil
	message := w.message(l.sess)
	message.Migrated = append(message.Migrated, out)
}

// resume has a leg go on here, and the rails blamed if what they moved was wrong.
func (w *worker) resume(s *session, m *proto.Resume) {
	w.of(s, m.GetId(), func(l *live) connector.Event {
		l.went = false
		bad := 0
		if m.GetBadKv() {
			bad, _ = w.changed(migrationKey{s, l.sid}, m.GetReason())
		}
		return connector.Resume{ID: l.id, Doubt: bad > 0}
	})
}

// Halt ends the moves of a leg to the node that was to take it over.
func (w *worker) Halt(id uint64) {
	if l := w.live[id]; l != nil && l.out != nil {
		l.out.Cancel()
	}
}

// outOver ends the transfer of a leg to another node, whose moves have ended.
func (w *worker) outOver(l *live) {
	if l.out != nil {
		l.out.Close(l.went && w.checks.landing)
		l.out, l.went = nil, false
	}
}

// goOn has a leg that came here go on: what is in its blocks is checked against all of its tokens.
func (w *worker) goOn(s *session, m *proto.Continue) {
	tokens, err := decodePrompt(m.GetTokens(), w.cfg.Profile.Vocab)
	w.of(s, m.GetId(), func(l *live) connector.Event {
		if !l.handoff.Running || l.came {
			return nil
		}
		l.came = true
		if n := len(tokens) - 1; err == nil && n > l.reserve { // before anything is made of them
			err = fmt.Errorf("%d tokens beyond the prompt: blocks were reserved for %d", n, l.reserve)
		}
		if err != nil {
			w.fail(l, l.id, fmt.Errorf("%w: continue: %w", connector.ErrOffer, err))
			return nil
		}
		w.exec.Forget(l.id)
		known := slices.Concat(l.prompt, tokens[:len(tokens)-1])
		w.exec.Admit(l.id, l.adapter, l.salt, known, l.use)
		return connector.Continue{ID: l.id, Tokens: []kvcache.Token(tokens)}
	})
}
