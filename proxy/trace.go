package proxy

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kvferry/proxy/openai"
	"kvferry/proxy/tracing"
)

// startTraces has every request traced, if the configuration names a collector. Nothing is
// made, kept or asked of requests if it does not.
func (p *Proxy) startTraces() (err error) {
	if p.cfg.OTLPTracesEndpoint == "" {
		return nil
	}
	p.traces, err = tracing.New(p.cfg.OTLPTracesEndpoint, func(err error) {
		p.cfg.Logger.Warn("traces: the collector takes no spans: they are dropped, and requests go on", "endpoint", p.cfg.OTLPTracesEndpoint, "err", err)
	})
	if err != nil {
		return err
	}
	for name, c := range map[string]struct {
		help string
		of   func() int64
	}{
		"kvferry:spans_exported_total": {"Spans that the collector of traces took.", func() int64 { return p.traces.Counts().Exported }},
		"kvferry:spans_dropped_total":  {"Spans that came faster than the collector of traces took them, or that it refused.", func() int64 { return p.traces.Counts().Dropped }},
	} {
		p.metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: c.help}, func() float64 { return float64(c.of()) }))
	}
	return nil
}

// spansWait is how long the last spans may take to a collector that is slow, when the proxy
// ends.
const spansWait = 3 * time.Second

// endTraces sends the spans of the last requests, and says if any were lost.
func (p *Proxy) endTraces() {
	ctx, cancel := context.WithTimeout(context.Background(), spansWait)
	defer cancel()
	if counts := p.traces.Close(ctx); counts.Dropped > 0 {
		p.cfg.Logger.Warn("traces: " + counts.String())
	}
}

// trace sends the spans of an exchange that has ended, with api if it failed.
func (p *Proxy) trace(x *exchange, e2e time.Duration, api *openai.Error) {
	if x.parent == nil {
		return
	}
	u := x.account()
	r := tracing.Request{
		Parent: x.parent, ID: x.requestID, Model: x.req.Model, Chat: x.req.Kind == openai.Chat, Streams: x.req.Stream,
		Ended: time.Now(), E2E: e2e, Input: int(u.Prompt), Cached: int(u.Cached), Output: int(u.Completion), Choices: make([]tracing.Choice, len(x.flights)),
	}
	if api != nil {
		r.Failure, r.ErrorType = api.Message, cmp.Or(api.Code, api.Type)
	}
	for i := range x.flights {
		f := &x.flights[i]
		r.MaxTokens = max(r.MaxTokens, int(f.choice.MaxTokens))
		c := &r.Choices[i]
		*c = tracing.Choice{
			Finish: f.end.Finish, Proxy: f.own, Breakdown: &f.breakdown, PrefillNode: f.prefillNode, DecodeNode: f.decodeNode, Retries: f.retries,
		}
		if len(f.delivered) > 0 {
			c.First, c.Last = f.first-x.accepted, f.last-x.accepted
		}
	}
	p.traces.Served(r)
}
