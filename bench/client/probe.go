package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/load/dispatch"
)

// probeTokens is what a probe asks for: enough to see whether the answer streams.
const probeTokens = 4

// Probe finds out what the server accepts and tells, so that a run sends nothing that is
// refused. A server that takes all that this client would send is asked once. If it refuses
// that (400, 422 and the like), the least that every server takes is asked, and then one field
// more each time. It returns what was found, which the client goes by from then on.
//
// model is what [Client.Ready] returned, asked what the load has. No Run may be under way.
func (c *Client) Probe(ctx context.Context, model string, asked Needs) (Accepts, error) {
	if c.err != nil {
		return Accepts{}, c.err
	}
	p := &prober{client: c, model: model, found: c.cfg.everything(c.backend)}
	p.found.Model, p.found.Endpoint = model, c.accepts.Endpoint
	p.found.PerChunk = p.found.PerChunk || c.cfg.ChunkUsage
	if c.backend.kind == completions {
		p.found.TokenIDs = asked.Turns && !asked.Texts && c.cfg.Tokenizer == nil
	}
	if asked.Texts && !c.cfg.TokenIDs && p.found.Prompt == PromptIDs {
		p.found.Prompt = PromptText
	}
	answer, err := p.full(ctx)
	if err != nil {
		return p.found, c.located(err)
	}
	if n := c.answers; n > 1 && answer.choices < n {
		return p.found, c.located(unfit("Extra", "n: a request is for %d answers, and the server gives %d: leave n out, or ask one that has it", n, answer.choices))
	}
	p.learn(answer, p.ids)
	c.accepts = p.found
	if err := c.confirm(ctx, model, asked.Texts); err != nil {
		return p.found, c.located(err)
	}
	return c.accepts, nil
}

// Needs are what a load has that servers may not take.
type Needs struct {
	Texts bool // prompts are texts, so that a server that takes no token ids loses nothing
	Turns bool // some go on with the answers to others
}

// A prober is a search for what a server accepts.
type prober struct {
	client *Client
	model  string
	found  Accepts
	ids    bool // the last answer had token ids
}

// full asks all that this client would send, and less if that is refused.
func (p *prober) full(ctx context.Context) (*Record, error) {
	r, err := p.try(ctx, p.found)
	if err == nil {
		return r, nil
	}
	if !refused(err) {
		return nil, p.explain(err)
	}
	return p.build(ctx, err)
}

// build starts from the least and adds what is wanted, field by field.
func (p *prober) build(ctx context.Context, first error) (*Record, error) {
	want := p.found
	least := Accepts{Backend: want.Backend, Endpoint: want.Endpoint, Model: want.Model, Prompt: want.Prompt, Limit: want.Limit, Probed: want.Probed}
	if least.Prompt == PromptIDs {
		least.Prompt = PromptText
	}
	p.found = least
	r, err := p.try(ctx, least)
	for _, limit := range []string{"max_tokens", ""} {
		if err == nil || !refused(err) {
			break
		}
		if least.Limit != limit {
			p.refuse(least.Limit, err)
			least.Limit = limit
			r, err = p.try(ctx, least)
		}
	}
	if err != nil {
		if refused(err) {
			err = unfit("Backend", "%s: it refuses even the least request of this API; is it the right one, and --model (%q)%s? %w (the full one: %w)", want.Backend, p.model, p.client.listed(p.model), err, first)
		}
		return nil, p.explain(err)
	}
	least.Probed, least.Refused = p.found.Probed, p.found.Refused
	p.found = least
	type field struct {
		name   string
		wanted bool
		add    func(*Accepts)
	}
	fields := []field{
		{"stream", want.Stream, func(a *Accepts) { a.Stream = true }},
		{"stream_options", want.UsageOption, func(a *Accepts) { a.UsageOption = a.Stream }},
		{"continuous_usage_stats", want.UsageOption && want.PerChunk, func(a *Accepts) { a.PerChunk = a.UsageOption }},
		{string(PromptIDs), want.Prompt == PromptIDs, func(a *Accepts) { a.Prompt = PromptIDs }},
		{"return_token_ids", want.TokenIDs, func(a *Accepts) { a.TokenIDs = true }},
		{"ignore_eos", want.IgnoreEOS, func(a *Accepts) { a.IgnoreEOS = true }},
		{BreakdownField, want.Breakdown, func(a *Accepts) { a.Breakdown = true }},
	}
	for _, name := range want.Sampling {
		fields = append(fields, field{name, true, func(a *Accepts) { a.Sampling = append(slices.Clone(a.Sampling), name) }})
	}
	for _, field := range fields {
		if !field.wanted {
			continue
		}
		more := p.found
		field.add(&more)
		answer, err := p.try(ctx, more)
		switch {
		case err == nil:
			more.Probed = p.found.Probed
			p.found, r = more, answer
		case refused(err):
			p.refuse(field.name, err)
		default:
			return nil, p.explain(err)
		}
	}
	return r, nil
}

func (p *prober) refuse(field string, err error) {
	status := (*StatusError)(nil)
	errors.As(err, &status)
	p.found.Refused = append(p.found.Refused, Refusal{Field: field, Reason: p.client.hide(status.Error())})
}

// refused reports whether a server said that it does not take the request as it is. Some
// fail in it, with a 500.
func refused(err error) bool {
	status := (*StatusError)(nil)
	return errors.As(err, &status) && slices.Contains([]int{
		http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusInternalServerError, http.StatusNotImplemented,
	}, status.Code)
}

// explain adds what can be done about an error.
func (p *prober) explain(err error) error {
	c := p.client
	t := c.targets[0]
	return cmp.Or(c.needsKey(err), c.redirected(strings.TrimPrefix(t.endpoint.String(), t.base), err), c.notThere(p.model, err), err)
}

// try sends one request as the server would have to accept it. Where nobody is there yet, or
// somebody says that it is not ready, it goes on asking. An answer that broke is asked for twice more.
func (p *prober) try(all context.Context, a Accepts) (r *Record, err error) {
	c := p.client
	ctx, cancel := context.WithTimeoutCause(all, c.cfg.First, fmt.Errorf("it did not answer a first request within %v (--ready-check-timeout-sec)", c.cfg.First))
	defer cancel()
	e := c.encoder(p.model)
	e.accepts = a
	asked := dispatch.Sending{Request: load.Request{ID: c.name + "-probe", MaxTokens: probeTokens}, Continued: true}
	for i := range 8 {
		asked.Prompt = append(asked.Prompt, kvcache.Token(1000+i))
	}
	if a.Prompt == PromptText || a.Prompt == PromptChat {
		asked.Text = e.text(asked.Prompt, "")
	}
	body := e.encode(&asked.Request, nil)
	var fatal error
	n := 0 // answers that a server gives which is ready
	err = Poll(ctx, func() error {
		r = &Record{RequestID: asked.ID, MaxTokens: probeTokens, Answers: c.answers}
		p.found.Probed++
		var answer dispatch.Answer
		answer, fatal = c.complete(ctx, e, c.clock.Now(), r, &asked, body)
		p.ids = len(answer.Tokens) > 0
		if ctx.Err() != nil || notYet(fatal) {
			return fatal
		}
		if n++; n < tries && transient(fatal) {
			return fatal
		}
		return nil
	})
	err = cmp.Or(err, fatal)
	if cause := context.Cause(ctx); errors.Is(err, errInterrupted) && !errors.Is(cause, context.Canceled) {
		err = cause // nobody interrupts: it has not answered in time
	} else if err != nil && cause != nil && all.Err() == nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if fault := (*faultError)(nil); errors.As(err, &fault) && fault.kind == FaultShort {
		err = nil // it will say so of every request
	}
	return r, err
}

// notYet reports whether a failure is that of a server that is still coming up.
func notYet(err error) bool {
	if status := (*StatusError)(nil); errors.As(err, &status) {
		return slices.Contains([]int{http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusTooManyRequests}, status.Code)
	}
	fault := (*faultError)(nil)
	return errors.As(err, &fault) && fault.kind == FaultConnect
}

// learn reads out of an answer what the server tells.
func (p *prober) learn(r *Record, ids bool) {
	a := &p.found
	a.Usage = r.Usage != nil
	if !a.Usage && a.UsageOption {
		a.UsageOption = false
		a.Notes = append(a.Notes, "stream_options.include_usage is taken, and no usage comes")
	}
	if a.PerChunk = len(r.ChunkTokens) > 1; p.client.cfg.ChunkUsage && !a.PerChunk {
		a.Notes = append(a.Notes, "continuous_usage_stats is not known: tokens are not counted by chunk")
	}
	if c := p.client; a.TokenIDs && c.backend.kind == completions && !ids {
		a.TokenIDs = false
		a.Notes = append(a.Notes, "return_token_ids is not known: what follows an answer is sent without it")
	}
	a.Breakdown = a.Breakdown && r.Breakdown != nil
	switch {
	case a.Stream && slices.Contains(r.Notes, NoteNotStreamed):
		a.Notes = append(a.Notes, fmt.Sprintf("the answer does not stream: its %d tokens came at once", r.Output()))
	case a.Stream && slices.Contains(r.Notes, NoteChunks):
		a.Notes = append(a.Notes, "several tokens come in one chunk")
	}
	if n := p.client.answers; n > 1 {
		a.Notes = append(a.Notes, fmt.Sprintf("a request is for %d answers (n): its tokens are those of all of them, TTFT is to the first token of any, ITL and TPOT are of all together", n))
	}
	if slices.Contains(r.Notes, NoteStopped) {
		a.Notes = append(a.Notes, "the answer ended early: lengths are the server's, not the load's")
	}
}

// confirm settles who counts.
func (c *Client) confirm(ctx context.Context, model string, texts bool) error {
	a := &c.accepts
	switch {
	case a.Usage:
		a.CountedBy = CountUsage
	case c.cfg.Tokenizer != nil:
		a.CountedBy = CountTokenizer
	default:
		a.CountedBy = CountChunks
	}
	if a.Prompt == PromptIDs || c.cfg.Tokenizer != nil || texts {
		return nil
	}
	// Prompts are words: is each a token?
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	words, err := confirmed(ctx, commonWords, func(ctx context.Context, text string) (int, error) { return c.tokens(ctx, model, text) })
	switch {
	case err == nil && len(words) > 0:
		c.words, a.Tokenize = words, true
	case err == nil:
		a.Tokenize = true
		fallthrough
	case errors.As(err, new(*StatusError)), errors.Is(err, errNoCount):
		a.Unconfirmed = !a.Usage
		a.Notes = append(a.Notes, "prompts are words, and whether a word is a token is not known: --tokenizer makes prompts of tokens")
	default:
		return fmt.Errorf("how many tokens its words are is not known (--tokenizer counts them here): %w", err)
	}
	return nil
}

var errNoCount = errors.New("POST /tokenize: no count in the answer")

// tokens asks the server how many tokens a text is: vLLM and SGLang, whose field is prompt,
// and llama.cpp, whose field is content.
func (c *Client) tokens(ctx context.Context, model, text string) (int, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": text, "content": text, "add_special_tokens": false})
	if err != nil {
		return 0, err
	}
	var answer []byte
	err = Again(ctx, func() error {
		answer, err = c.ask(ctx, http.MethodPost, 0, "/tokenize", bytes.NewReader(body))
		return err
	})
	if err != nil {
		return 0, err
	}
	var counted struct {
		Count  *tokenCount       `json:"count"`
		Tokens []json.RawMessage `json:"tokens"`
	}
	if err := json.Unmarshal(answer, &counted); err != nil || counted.Count == nil && counted.Tokens == nil {
		return 0, errNoCount
	}
	if n := counted.Count; n != nil && (*n < 0 || *n > mostTokens) {
		return 0, errNoCount
	}
	if counted.Count != nil {
		return int(*counted.Count), nil
	}
	return len(counted.Tokens), nil
}
