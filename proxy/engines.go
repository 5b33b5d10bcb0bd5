package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"kvferry/attempt"
	"kvferry/internal/config"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/openai"
	"kvferry/proxy/upstream"
)

// This file is what is different where engines answer (package upstream), in place of nodes.

// useEngines has the configuration's engines answer. Nobody registers then.
func (p *Proxy) useEngines() (err error) {
	c := &p.cfg
	p.engines, err = upstream.New(upstream.Config{
		URLs: c.Upstreams, Together: c.Mode != ModeNondisagg, Alone: c.Mode != ModeDisagg, Placement: c.Placement,
		MaxRetries: c.MaxRetries, Wait: max(c.NodeWait, 0), Every: c.LeaseTTL / 3, Timeout: c.RequestTimeout, Clock: p.clock, Logger: c.Logger,
		Listens: p.HTTPAddr,
	})
	// KV gets from prefill to decode by the engines' own connector, which reads it or writes it.
	if c.Membership, c.Handoff = members.NewList(), "connector"; len(c.Upstreams.Bootstrap) > 0 {
		c.Handoff = "connector-layerwise"
	}
	return err
}

// serveEngines adds what engines answer to the API.
func (p *Proxy) serveEngines(mux *http.ServeMux) {
	generate := func(kind openai.Kind) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			q := upstream.NewRequest(kind, r)
			p.serveGeneration(w, r, api{
				parse:  func(body []byte, _ openai.Model) (*openai.Request, error) { return q.Parse(body) },
				events: func(*openai.Request, string, time.Time) eventStream { return q.Events() },
				run:    func(ctx context.Context, x *exchange) error { return x.pass(ctx, q) },
				held:   q.Held,
				answer: func(_ []byte, _ *openai.Request, _ string, _ time.Time, _ []openai.Result, u openai.Usage) []byte {
					return q.Answer(u)
				},
			})
		}
	}
	mux.HandleFunc("POST /v1/completions", generate(openai.Completion))
	mux.HandleFunc("POST /v1/chat/completions", generate(openai.Chat))
	mux.HandleFunc("POST "+upstream.ReportPath, p.engines.ServeReport)
	for _, pattern := range []string{"GET /v1/models", "GET /v1/models/{id...}", "POST /tokenize", "POST /detokenize"} {
		mux.HandleFunc(pattern, orError(p.servePassed))
	}
}

// servePassed has an engine answer what generates nothing.
func (p *Proxy) servePassed(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeoutCause(r.Context(), p.timeouts.answer, fmt.Errorf("%w: the engine had %v to answer", attempt.Deadline, p.timeouts.answer))
	defer cancel()
	body, err := p.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.Release()
	err = p.engines.PassOn(ctx, w, r, body.Bytes, body.More)
	if err != nil {
		p.answerSoon(w) // the engine may have taken all the time that there was
	}
	return err
}

// pass has engines answer a request, and takes over what is known of it then. Its one flight is on no
// node.
func (x *exchange) pass(ctx context.Context, q *upstream.Request) error {
	p, f := x.proxy, &x.flights[0]
	q.ID, q.Arrived, q.More = x.requestID, x.accepted, x.body.More
	p.placed(f)
	err := p.engines.Serve(ctx, q, x.metrics, func() { p.started(f) })
	f.prefillNode, f.decodeNode, f.retries, f.own = q.Prefill, q.Decode, q.Retries, q.Proxy
	f.usage, f.unknown, f.cached = &q.Usage, q.Unknown, q.Usage.Cached
	f.breakdown.Sum(&q.Breakdown)
	f.first, f.last = q.First, q.Last
	f.end.Finish = "length"
	if q.Stop {
		f.end.Finish = "stop"
	}
	if errors.Is(err, upstream.ErrGone) {
		return fmt.Errorf("%w: %w", attempt.ClientGone, err)
	}
	return err
}

// engineStates are the engines as members of the cluster.
func (p *Proxy) engineStates() []NodeState {
	var all []NodeState
	for _, s := range p.engines.States() {
		all = append(all, NodeState{Info: &proto.NodeInfo{Id: s.ID, Role: s.Role, Model: s.Model}, URL: s.URL, Up: s.Up, Legs: s.InFlight, Adapters: s.Adapters, MaxLoRAs: s.MaxLoRAs})
	}
	return all
}

// cluster is what the nodes or engines serve; false before the first has said so.
func (p *Proxy) cluster() (members.Cluster, bool) {
	if p.engines == nil {
		return p.nodes.info()
	}
	model, most, ok := p.engines.Model()
	return members.Cluster{Model: model, MaxModelLen: most}, ok
}

// checkEngines notes what is asked for that engines would have to do by themselves.
func (c *Config) checkEngines(bad *config.Faults) {
	for _, f := range []struct {
		field string
		given bool
		fix   string
	}{
		{"Tokenizer", c.Tokenizer != "", "the engines count tokens by their own"},
		{"ServedNames", len(c.ServedNames) > 0, "the engines have names for their model: give them there"},
		{"LoRAs", len(c.LoRAs) > 0, "the engines have adapters of their own: name them there"},
		{"OTLPTracesEndpoint", c.OTLPTracesEndpoint != "", "the engines make the spans, below the client's: give it to them"},
		{"ConditionalDisaggregation", c.ConditionalDisaggregation != 0, "nodes know what they have to compute, engines do not say"},
		{"Membership", c.Membership != nil, "engines answer, and no nodes"},
		{"Upstreams", c.Mode == ModeDisagg && len(c.Upstreams.Prefill) == 0, "mode disagg needs prefill and decode engines"},
		{"Upstreams", c.Mode == ModeNondisagg && len(c.Upstreams.Both) == 0, "mode nondisagg needs an engine that does both"},
	} {
		if f.given {
			bad.Check(f.field, errors.New(f.fix+", or leave it out"))
		}
	}
}
