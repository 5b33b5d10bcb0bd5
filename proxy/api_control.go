package proxy

import (
	"context"
	"fmt"
	"net/http"

	"kvferry/attempt"
	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
)

// This file is what clients can have the cluster do besides generating. Benchmarks do so
// between runs.

// serveFlushCache is SGLang's /flush_cache: every node forgets its prefixes before it answers.
func (p *Proxy) serveFlushCache(w http.ResponseWriter, r *http.Request) error {
	n, err := p.flush(r.Context())
	if err == nil {
		wire.Text(w, fmt.Sprintf("Cache flushed.\n%d nodes have forgotten their prefixes. Requests under way keep the blocks that they have.\n", n))
	}
	return err
}

// serveResetPrefixCache is vLLM's /reset_prefix_cache, the same with an empty answer.
func (p *Proxy) serveResetPrefixCache(_ http.ResponseWriter, r *http.Request) error {
	_, err := p.flush(r.Context())
	return err
}

// flush has every node empty its prefix cache, and returns how many did once all have.
func (p *Proxy) flush(ctx context.Context) (nodes int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeouts.answer/2, fmt.Errorf("%w: the nodes had %v to empty their caches", attempt.Deadline, p.timeouts.answer/2))
	defer cancel()
	members := p.nodes.snapshot()
	if len(members) == 0 {
		return 0, fmt.Errorf("%w: there is no node with a cache", attempt.NoNode)
	}
	answers := make([]<-chan error, len(members))
	for i, m := range members {
		answers[i] = m.flush()
	}
	for i, m := range members {
		select {
		case err = <-answers[i]:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return 0, fmt.Errorf("flushing the prefix cache of %s: %w", m.info.Id, err)
		}
	}
	p.nodes.forgetPrefixes()
	return len(members), nil
}

func (p *Proxy) serveStartProfile(w http.ResponseWriter, _ *http.Request) error {
	err := p.profiler.Start()
	if err != nil {
		return noProfile(err)
	}
	wire.Text(w, "Profiling the CPU time of the proxy's process. The GPU is modelled: there is nothing of it to profile.\nPOST /stop_profile answers with the profile, in pprof's format.\n")
	return nil
}

func (p *Proxy) serveStopProfile(w http.ResponseWriter, _ *http.Request) error {
	data, err := p.profiler.Take()
	if err != nil {
		return noProfile(err)
	}
	p.answerSoon(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="proxy.pprof"`)
	_, _ = w.Write(data)
	return nil
}

func noProfile(err error) error {
	return &openai.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: "profile", Message: err.Error()}
}
