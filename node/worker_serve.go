package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/internal/version"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
)

// A session is one proxy's Serve stream. What an iteration has to say collects
// in pending; the sender takes it whole, so a slow stream gets fewer, larger
// messages and the loop never waits for it.
type session struct {
	mu      sync.Mutex
	pending *proto.FromNode
	notify  chan struct{} // cap 1

	undirected sync.Map  // legs that came ahead and wait for a Direct: *live by the proxy's ID
	unknown    sync.Once // a message of no known kind: logged

	// The loop's.
	requests  map[uint64]uint64 // the proxy's ID -> ours
	submitted uint64            // the proxy's ID of the last request that came
	writing   bool              // locked, with something to send
}

func (s *session) lock() { s.mu.Lock() }

func (s *session) unlock() {
	s.mu.Unlock()
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// sender sends until ctx ends or the stream breaks.
func (s *session) sender(ctx context.Context, stream proto.Worker_ServeServer) error {
	spare := &proto.FromNode{}
	for {
		select {
		case <-s.notify:
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		m := s.pending
		s.pending = spare
		s.mu.Unlock()
		if len(m.Ids) > 0 || m.Load != nil || m.Flushed > 0 || len(m.Reserved)+len(m.Prefilled)+len(m.Migrated)+len(m.Finished)+len(m.Failed) > 0 {
			if err := split(m, stream.Send); err != nil {
				return err
			}
		}
		// Send has encoded it; keep the large slices.
		ids, tokens, positions := m.Ids[:0], m.Tokens[:0], m.Positions[:0]
		m.Reset()
		m.Ids, m.Tokens, m.Positions = ids, tokens, positions
		spare = m
	}
}

// Serve implements proto.WorkerServer: requests in, iterations out. When the
// stream ends, so do the requests that came over it.
func (w *worker) Serve(stream proto.Worker_ServeServer) error {
	if err := stream.SendHeader(proto.InstanceHeader(w.instance)); err != nil {
		return err
	}
	s := &session{pending: &proto.FromNode{}, notify: make(chan struct{}, 1), requests: make(map[uint64]uint64)}
	ctx, cancel := context.WithCancel(stream.Context())
	w.run(func() connector.Event {
		w.sessions[s], w.hurry = struct{}{}, true
		return nil
	})
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		defer cancel()
		sendErr = s.sender(ctx, stream)
	})
	recvErr := w.receive(ctx, s, stream)
	cancel()
	wg.Wait()
	w.run(func() connector.Event {
		for _, id := range s.requests { // all: receive has ended before this was queued
			w.post(connector.Cancel{ID: id})
		}
		delete(w.sessions, s)
		w.checkLeft()
		return nil
	})
	if errors.Is(recvErr, io.EOF) {
		recvErr = nil
	}
	return errors.Join(recvErr, sendErr)
}

func (w *worker) receive(ctx context.Context, s *session, stream proto.Worker_ServeServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch k := m.Kind.(type) {
		case *proto.ToNode_Submit:
			w.submit(s, k.Submit)
		case *proto.ToNode_Direct:
			w.direct(s, k.Direct)
		case *proto.ToNode_Migrate:
			w.migrate(s, k.Migrate)
		case *proto.ToNode_Resume:
			w.resume(s, k.Resume)
		case *proto.ToNode_Continue:
			w.goOn(s, k.Continue)
		case *proto.ToNode_Cancel:
			sid := k.Cancel.GetId()
			w.run(func() connector.Event {
				if k.Cancel.GetDoubt() {
					w.doubted(s, sid, k.Cancel.GetReason())
				}
				if k.Cancel.GetBadKv() {
					w.kv.Blame(legKey{s, sid}, fmt.Errorf("%w: %s", connector.ErrContent, k.Cancel.GetReason()))
				}
				if id, ok := s.requests[sid]; ok {
					return connector.Cancel{ID: id}
				}
				return nil
			})
		case *proto.ToNode_Flush:
			w.run(func() connector.Event {
				w.log.Info("prefix cache flushed", "prefixes", w.pool.Flush())
				w.tiers.Flush()
				w.message(s).Flushed = k.Flush.GetSeq()
				w.hurry = true
				return nil
			})
		default:
			w.unknown(s, m)
		}
	}
}

// unknown refuses a message of a kind that this build does not know: it is logged once a stream, and the leg that it
// is about fails.
func (w *worker) unknown(s *session, m *proto.ToNode) {
	err := fmt.Errorf("%w: %w", errUnsupported, cmp.Or(proto.Unknown(m), errors.New("a message without a kind")))
	s.unknown.Do(func() {
		w.log.Error("proxy's message refused", "leg", m.GetLeg(), "version", version.String(), "err", err)
	})
	w.run(func() connector.Event {
		if l := w.live[s.requests[m.GetLeg()]]; l != nil {
			w.fail(l, l.id, err)
		} else if m.GetLeg() > 0 {
			out := w.message(s)
			out.Failed = append(out.Failed, &proto.Failed{Id: m.GetLeg(), Code: proto.FailCode_FAIL_UNSUPPORTED, Message: err.Error(), Retryable: true})
		}
		return nil
	})
}

// submit checks a request, prepares what it needs and gives it to the loop. It
// runs on the stream's goroutine, so that hashing a long prompt holds up nobody
// else's iteration.
func (w *worker) submit(s *session, m *proto.Submit) {
	l := &live{id: w.nextID.Add(1), sess: s, sid: m.GetId(), name: m.GetRequestId(), remote: descriptorOf(m.GetKv())}
	ev, err := w.parse(l, m)
	if err == nil {
		l.use = w.use(&ev)
		if m.GetMovable() {
			l.use |= engine.Movable
		}
		l.adapter, l.salt = ev.Adapter, ev.Salt
		w.exec.Admit(l.id, l.adapter, l.salt, l.prompt, l.use)
		if l.use != 0 || ev.Leg == handoff.DecodeLeg || w.cfg.TokensFromKV { // else its KV is not written, nor does any land
			ev.Checks = w.checks.Checks
		}
	}
	if ev.Ahead {
		s.undirected.Store(l.sid, l)
	}
	w.run(func() connector.Event {
		refuse := func(code proto.FailCode, retry bool, text string) connector.Event {
			out := w.message(s)
			out.Failed = append(out.Failed, &proto.Failed{Id: l.sid, Code: code, Message: text, Retryable: retry})
			if err == nil {
				w.exec.Forget(l.id)
			}
			s.undirected.CompareAndDelete(l.sid, l)
			if l.moves != nil {
				l.moves.Close(false)
			}
			return nil
		}
		s.submitted = l.sid
		switch _, dup := s.requests[l.sid]; {
		case w.drain:
			return refuse(proto.FailCode_FAIL_DRAINING, true, fmt.Sprintf("node %s is draining", w.cfg.ID))
		case err != nil:
			code, retry := faultOf(err)
			return refuse(code, retry, err.Error())
		case dup:
			return refuse(proto.FailCode_FAIL_INTERNAL, true, fmt.Sprintf("id %d is in use on this stream", l.sid))
		}
		ev.ID = l.id
		ev.Deadline += w.clk.Now()
		w.live[l.id] = l
		s.requests[l.sid] = l.id
		return ev
	})
}

// use is what will be done with the KV of a leg.
func (w *worker) use(ev *connector.Submit) engine.Use {
	switch {
	case ev.Leg == handoff.DecodeLeg:
		if w.checks.Again() {
			return engine.Rechecked
		}
		return 0
	case ev.Leg == handoff.FullLeg && w.cfg.Role == proto.Role_ROLE_DECODE && w.cfg.PrefixCaching && w.checks.Checks != (connector.Checks{}):
		return engine.Rechecked // later, with a prompt that begins alike
	case ev.Leg != handoff.PrefillLeg, ev.Handoff == handoff.None && !w.cfg.PrefixCaching:
		return 0
	case ev.Handoff == handoff.None, ev.Handoff.Parts == handoff.Tensors:
		return engine.Fetched | engine.FetchedHidden // of none: later, out of the prefix cache, by whatever hand-off
	default:
		return engine.Fetched
	}
}

func (w *worker) parse(l *live, m *proto.Submit) (connector.Submit, error) {
	ev := connector.Submit{
		MaxTokens: int(m.GetMaxTokens()), Adapter: m.GetAdapter(), Salt: m.GetCacheSalt(), Variant: m.GetVariant(), Age: time.Duration(m.GetAgeUs()) * time.Microsecond,
		Deadline: time.Duration(m.GetDeadlineMs()) * time.Millisecond,
	}
	if ev.AdapterRank = int(m.GetAdapterRank()); ev.Adapter != "" {
		config.Default(&ev.AdapterRank, engine.DefaultRank)
	}
	config.Default(&ev.Deadline, defaultDeadline)
	if err := w.checkLength(m); err != nil {
		return ev, err
	}
	var want proto.Role
	switch m.GetLeg() {
	case proto.Leg_LEG_FULL:
		ev.Leg, want = handoff.FullLeg, proto.Role_ROLE_NONDISAGG
	case proto.Leg_LEG_PREFILL:
		ev.Leg, want = handoff.PrefillLeg, proto.Role_ROLE_PREFILL
	case proto.Leg_LEG_DECODE:
		ev.Leg, want = handoff.DecodeLeg, proto.Role_ROLE_DECODE
	default:
		return ev, fmt.Errorf("%w: leg %v", errUnsupported, m.GetLeg())
	}
	var err error
	if ev.Handoff, err = handoff.Carried(m.GetHandoff()); err != nil {
		return ev, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	// A decode node may compute a prompt itself, and one that serves alone go on with a request.
	if w.cfg.Role != want && (ev.Leg != handoff.FullLeg || w.cfg.Role != proto.Role_ROLE_DECODE) && !(ev.Handoff.Running && w.cfg.Role == proto.Role_ROLE_NONDISAGG) {
		return ev, fmt.Errorf("%w: a %v leg does not go to %s, a %s node", errWrongNode, ev.Leg, w.cfg.ID, proto.RoleName(w.cfg.Role))
	}
	ev.Reserve = int(m.GetReserve())
	l.reserve = ev.Reserve
	l.handoff = ev.Handoff
	l.leg = ev.Leg
	if l.prompt, err = decodePrompt(m.GetPrompt(), w.cfg.Profile.Vocab); err != nil {
		return ev, err
	}
	ev.Prompt = l.prompt
	ev.Words = engine.Words{First: m.GetFirstWord(), Count: m.GetWords()}
	if err := ev.Words.Validate(w.cfg.Profile.Vocab); err != nil {
		return ev, err
	}
	if !ev.Handoff.Moves(ev.Leg) {
		return ev, nil // the other side comes for its blocks, or to them
	}
	if ev.Ahead = m.GetAhead(); ev.Ahead {
		return ev, nil
	}
	ev.Remote = remoteOf(l.remote, m.GetKv().GetFirstToken())
	l.expect(kvtransfer.Whole, l.remote.Digests, 1, 0)
	l.expect(kvtransfer.Part{Layer: kvtransfer.AllLayers, Plane: kvtransfer.Hidden}, l.remote.Hidden, 1, 0)
	if l.moves, err = w.kv.Open(l.remote, kvtransfer.Options{Tag: l.name, Key: legKey{l.sess, l.sid}}); err != nil {
		return ev, fmt.Errorf("%w: kv.segment: %w", connector.ErrOffer, err)
	}
	return ev, nil
}

func decodePrompt(b []byte, vocab int) ([]kvcache.Token, error) {
	if len(b) == 0 || len(b)%4 != 0 {
		return nil, fmt.Errorf("%w: prompt has %d bytes: want 4 a token", errRequest, len(b))
	}
	tokens := proto.TokenIDs(b)
	if i := slices.IndexFunc(tokens, func(t kvcache.Token) bool { return t >= uint32(vocab) }); i >= 0 {
		return nil, fmt.Errorf("%w: prompt token %d is %d: the vocabulary has %d", errRequest, i, tokens[i], vocab)
	}
	return tokens, nil
}
