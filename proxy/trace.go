package proxy

import (
	"cmp"
	"time"

	"kvferry/proxy/metrics"
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
	p.metrics.Register(metrics.Spans(func() (exported, dropped int64) {
		c := p.traces.Counts()
		return c.Exported, c.Dropped
	})...)
	return nil
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
