package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"kvferry/proto"
)

// This file is the hand-off layerwise: a decode engine is asked at the same time as the prefill engine,
// and KV is written while it is computed. Both get a transfer's name, and the decode engine where the
// prefill engine's connector is found (its bootstrap address). So kvferry's connector has it, and vLLM's
// MooncakeConnector, which wants to be told the engine's own name too.

// lastWord is how long an answer's end waits for what is said about it: by a prefill engine whose KV was
// there before its answer, and by a connector (see [Engines.ServeReport]). It is chosen: both come with the
// first token.
const lastWord = 200 * time.Millisecond

// A bootstrap is what a prefill engine's connector says of itself, over HTTP.
type bootstrap struct {
	engine  string // its engine's own name; empty: it has none
	kvferry bool   // it is kvferry's connector
}

// askBootstrap asks a prefill engine's connector. One that cannot be asked leaves its engine down: a decode
// engine would not find it either.
func (e *Engines) askBootstrap(ctx context.Context, en *engine) error {
	body, err := e.get(ctx, en.bootstrap, "/query")
	if err != nil {
		return fmt.Errorf("bootstrap %s: %w", en.bootstrap, err)
	}
	var said map[string]json.RawMessage // kvferry's connector describes its ranks, Mooncake's has them by number
	var rank struct {
		Engine string `json:"engine_id"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return fmt.Errorf("bootstrap %s: its answer is no JSON object: %w", en.bootstrap, err)
	}
	_ = json.Unmarshal(said["0"], &rank)
	_, ours := said["remote_ranks"]
	e.mu.Lock()
	defer e.mu.Unlock()
	en.booted = bootstrap{rank.Engine, ours}
	return nil
}

// A handover is the kv_transfer_params of both engines.
type handover struct {
	Prefill bool   `json:"do_remote_prefill"`
	Decode  bool   `json:"do_remote_decode"`
	ID      string `json:"transfer_id"`
	Address string `json:"remote_bootstrap_addr,omitempty"`
	Engine  string `json:"remote_engine_id,omitempty"`
}

// A race is a request at two engines: which of the two comes first, the answer of the decode engine or the
// failure of the prefill engine. After the first, the other does not matter.
type race struct{ outcome atomic.Int32 }

const (
	answered int32 = 1
	lost     int32 = 2
)

// wins reports whether nothing has come first that is not this. Without a race all do.
func (r *race) wins(outcome int32) bool {
	return r == nil || r.outcome.CompareAndSwap(0, outcome) || r.outcome.Load() == outcome
}

var errPrefillLost = errors.New("the prefill engine has failed")

// both is one try at a prefill and a decode engine at the same time.
func (e *Engines) both(ctx context.Context, r *Request, counts Counts, started func()) error {
	p, err := e.place(proto.Role_ROLE_PREFILL, r)
	if err != nil {
		return err
	}
	r.with, p.taken = p.id, true
	d, err := e.place(proto.Role_ROLE_DECODE, r)
	if err != nil {
		e.leave(p, nil, false)
		return err
	}
	r.Prefill, r.Decode = p.id, d.id
	d.held = true
	e.mu.Lock()
	at := p.booted
	e.mu.Unlock()
	ask := handover{Decode: true, ID: r.name}
	take := handover{Prefill: true, ID: r.name, Address: p.bootstrap, Engine: at.engine}
	asked, _ := json.Marshal(ask) // texts always encode
	params, _ := json.Marshal(take)
	if at.kvferry {
		params = e.wantReport(r, d, params)
	}

	var first race
	decoding, endDecode := context.WithCancelCause(ctx)
	defer endDecode(nil)
	computing, endPrefill := context.WithCancel(ctx)
	defer endPrefill()
	type result struct {
		said *said
		at   time.Duration
		err  error
	}
	over := make(chan result, 1)
	go func() {
		said, err := e.compute(computing, r, p, asked)
		if err != nil && first.wins(lost) {
			endDecode(errPrefillLost) // it would wait for KV that nobody writes
		}
		e.mu.Lock()
		if d.held = false; d.since.Load() < math.MaxInt64 {
			d.since.Store(int64(e.cfg.Clock.Now()))
		}
		e.mu.Unlock()
		over <- result{said, e.cfg.Clock.Now(), err}
	}()
	before := r.answering
	err = e.final(decoding, r, d, params, &first, counts, started)
	if err == nil {
		late := time.AfterFunc(lastWord, endPrefill)
		defer late.Stop()
	} else {
		endPrefill()
	}
	computed := <-over

	// What the decode engine had while the prompt was computed is of prefill.
	had := r.answering - before
	took := min(max(computed.at-p.sent, 0), had)
	r.computing, r.answering = r.computing+took, r.answering-took
	if computed.err == nil {
		r.prefilled(computed.said)
	} else {
		d.with = "" // it has done without
	}
	lostP, lostD := asFailure(computed.err), asFailure(err)
	switch given := errors.Is(computed.err, context.Canceled) && ctx.Err() == nil; { // up, with the other's part
	case lostP == nil:
	case given && !e.silent(p):
		lostP = nil
	case !given && err != nil && !r.Begun:
		err, lostD = lostP, nil // the decode engine could not do better without
	}
	e.end(ctx, r, p, lostP, computed.err == nil)
	e.end(ctx, r, d, lostD, err == nil)
	return err
}

// asFailure is the failure that an error is, or nil.
func asFailure(err error) (f *failure) {
	errors.As(err, &f)
	return f
}
