package client

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/load/dispatch"
)

// An encoder makes the bodies of requests: what a server accepts, and no more. It is
// read-only once made, and for any number of goroutines.
type encoder struct {
	backend    Backend
	accepts    Accepts
	model      string
	sampling   []Parameter
	preferIDs  bool
	tokenizer  load.Tokenizer
	words      []string
	extra      map[string]json.RawMessage // fields that the user adds, or sets himself
	extraNames []string                   // of them, sorted
}

// encode is the body of a request; before is the conversation that it continues, nil for
// none.
func (e *encoder) encode(r *load.Request, before *dispatch.Turn) []byte {
	b := body{bytes: make([]byte, 0, 256+8*len(r.Prompt)+len(r.Text)+len(r.Text)/8), extra: e.extra}
	names := e.extraNames
	if len(r.Fields) > 0 && e.backend.kind == chat { // a request's own come before the user's for all
		b.extra = maps.Clone(r.Fields)
		for name, v := range e.extra {
			if _, own := r.Fields[name]; !own {
				b.extra[name] = v
			}
		}
		names = slices.Sorted(maps.Keys(b.extra))
	}
	extra := b.extra
	b.bytes = append(b.bytes, '{')
	if e.backend.kind != generate && b.key("model") { // SGLang's own API has one model
		model := e.model
		if r.Adapter != "" {
			model = r.Adapter // what vLLM calls a LoRA module is a model by the API
		}
		b.bytes = appendString(b.bytes, model)
	}
	if r.Adapter != "" && e.backend.lora && b.key("lora_path") {
		b.bytes = appendString(b.bytes, r.Adapter)
	}
	e.prompt(&b, r, before)
	a := &e.accepts
	stream := func() {
		if a.Stream && b.key("stream") {
			b.bytes = append(b.bytes, "true"...)
		}
	}
	if e.backend.kind == generate {
		if b.key("sampling_params") {
			b.object(func() { e.generation(&b, r) })
		}
		stream()
	} else {
		e.generation(&b, r)
		stream()
		if a.Stream && a.UsageOption && b.key("stream_options") {
			b.bytes = append(b.bytes, `{"include_usage":true`...)
			if a.PerChunk {
				b.bytes = append(b.bytes, `,"continuous_usage_stats":true`...)
			}
			b.bytes = append(b.bytes, '}')
		}
		if a.TokenIDs && b.key("return_token_ids") {
			b.bytes = append(b.bytes, "true"...)
		}
		if a.Breakdown && b.key(BreakdownField) {
			b.bytes = append(b.bytes, "true"...)
		}
	}
	for _, name := range names {
		b.extra = nil
		b.key(name)
		b.bytes = append(b.bytes, extra[name]...)
	}
	return append(b.bytes, '}')
}

// encoder is that of a run that asks for a model; "" is the configuration's.
func (c *Client) encoder(model string) *encoder {
	e := &encoder{
		backend: c.backend, accepts: c.accepts, model: model, sampling: c.cfg.Sampling, preferIDs: c.cfg.TokenIDs,
		tokenizer: c.cfg.Tokenizer, words: c.words, extra: c.cfg.Extra, extraNames: slices.Sorted(maps.Keys(c.cfg.Extra)),
	}
	if c.cfg.Model != "" {
		e.model = c.cfg.Model
	}
	return e
}

// unanswered reports whether the prompt of the next turn lacks an answer: nobody knew it, or
// not in the form in which the prompt is sent.
func (e *encoder) unanswered(last *dispatch.Turn, r *load.Request) bool {
	turns := conversation(last)
	_, ids := e.ids(turns, r)
	return slices.ContainsFunc(turns, func(t *dispatch.Turn) bool {
		if ids {
			return len(e.answered(t)) == 0
		}
		return len(t.Answer.Tokens) == 0 && t.Answer.Text == ""
	})
}

// generation is how much is generated, and how.
func (e *encoder) generation(b *body, r *load.Request) {
	if limit := e.accepts.Limit; limit != "" && b.key(limit) {
		b.bytes = strconv.AppendInt(b.bytes, int64(r.MaxTokens), 10)
	}
	for _, p := range e.sampling {
		if slices.Contains(e.accepts.Sampling, p.Name) && b.key(p.Name) {
			b.bytes = strconv.AppendFloat(b.bytes, p.Value, 'g', -1, 64)
		}
	}
	if e.accepts.IgnoreEOS && !r.MayStop && b.key("ignore_eos") {
		b.bytes = append(b.bytes, "true"...)
	}
}

// prompt is what is asked, with the conversation before it.
func (e *encoder) prompt(b *body, r *load.Request, before *dispatch.Turn) {
	turns := conversation(before)
	if e.backend.kind == chat {
		if b.key("messages") {
			e.messages(b, turns, r)
		}
		return
	}
	name, ids := "prompt", "prompt"
	if e.backend.kind == generate {
		name, ids = "text", "input_ids"
	}
	if all, ok := e.ids(turns, r); ok {
		if b.key(ids) {
			b.bytes = appendTokens(b.bytes, all)
		}
	} else if b.key(name) {
		b.bytes = appendString(b.bytes, e.whole(turns, r))
	}
}

// conversation is the turns before a request, the first one first.
func conversation(last *dispatch.Turn) (turns []*dispatch.Turn) {
	for t := last; t != nil; t = t.Before {
		turns = append(turns, t)
	}
	slices.Reverse(turns)
	return turns
}

// messages are those of a chat.
func (e *encoder) messages(b *body, turns []*dispatch.Turn, r *load.Request) {
	message := func(role, text string) {
		if b.bytes[len(b.bytes)-1] == '}' {
			b.bytes = append(b.bytes, ',')
		}
		b.bytes = appendString(append(b.bytes, `{"role":`...), role)
		b.bytes = append(appendString(append(b.bytes, `,"content":`...), text), '}')
	}
	// What the load says of who said what, else all is the user's.
	said := func(messages []load.Message, ids []kvcache.Token, text string) {
		for _, m := range messages {
			message(m.Role, m.Content)
		}
		if len(messages) == 0 {
			message("user", e.text(ids, text))
		}
	}
	b.bytes = append(b.bytes, '[')
	for _, t := range turns {
		said(t.Messages, t.Prompt, t.Text)
		message("assistant", e.text(t.Answer.Tokens, t.Answer.Text))
	}
	said(r.Messages, r.Prompt, r.Text)
	b.bytes = append(b.bytes, ']')
}

// ids are the prompt as token ids, if that is how it is sent: the server takes them, and
// they are known of all that is asked. An answer whose ids nobody knows is left out.
func (e *encoder) ids(turns []*dispatch.Turn, r *load.Request) (all []kvcache.Token, ok bool) {
	if e.accepts.Prompt != PromptIDs {
		return nil, false
	}
	ask := func(ids []kvcache.Token, text string) bool {
		if len(ids) == 0 && e.preferIDs && e.tokenizer != nil {
			ids = e.tokenizer.Encode(text, len(all) == 0)
		}
		all = append(all, ids...)
		return text == "" || e.preferIDs && len(ids) > 0
	}
	if len(turns) == 0 && r.Text == "" {
		return r.Prompt, true // the most common case needs no copy
	}
	for _, t := range turns {
		if !ask(t.Prompt, t.Text) {
			return nil, false
		}
		all = append(all, e.answered(t)...)
	}
	return all, ask(r.Prompt, r.Text)
}

// answered are the ids of a turn's answer: the server's own, or the tokenizer's of its text.
func (e *encoder) answered(t *dispatch.Turn) []kvcache.Token {
	if len(t.Answer.Tokens) == 0 && e.tokenizer != nil {
		return e.tokenizer.Encode(t.Answer.Text, false)
	}
	return t.Answer.Tokens
}

// whole is the prompt as text.
func (e *encoder) whole(turns []*dispatch.Turn, r *load.Request) string {
	text := e.text(r.Prompt, r.Text)
	if len(turns) == 0 {
		return text
	}
	var all strings.Builder
	for _, t := range turns {
		all.WriteString(e.text(t.Prompt, t.Text))
		all.WriteString(e.text(t.Answer.Tokens, t.Answer.Text))
	}
	all.WriteString(text)
	return all.String()
}

// text is what is asked as text: the load's own, what its tokens are, or, where nobody knows
// that, as many words.
func (e *encoder) text(ids []kvcache.Token, text string) string {
	switch {
	case text != "" || len(ids) == 0:
		return text
	case e.tokenizer != nil:
		return e.tokenizer.Decode(ids, false)
	}
	return wordsOf(e.words, ids)
}

// A body is a JSON object that is being written.
type body struct {
	bytes []byte
	extra map[string]json.RawMessage
}

// key begins a field, unless the user has set it himself.
func (b *body) key(name string) bool {
	if _, theirs := b.extra[name]; theirs {
		return false
	}
	if b.bytes[len(b.bytes)-1] != '{' {
		b.bytes = append(b.bytes, ',')
	}
	b.bytes = append(b.bytes, '"')
	b.bytes = append(b.bytes, name...)
	b.bytes = append(b.bytes, '"', ':')
	return true
}

// object writes an object into a field that has begun. What the user sets is not in it.
func (b *body) object(fields func()) {
	extra := b.extra
	b.extra = nil
	b.bytes = append(b.bytes, '{')
	fields()
	b.bytes = append(b.bytes, '}')
	b.extra = extra
}

func appendTokens(b []byte, ids []kvcache.Token) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}

// appendString writes a JSON string. What is no UTF-8 is written as U+FFFD, as a request
// must be UTF-8.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if c >= utf8.RuneSelf && (r != utf8.RuneError || size > 1) {
			i += size
			continue
		}
		b = append(b, s[from:i]...)
		switch {
		case c >= utf8.RuneSelf:
			b = append(b, `\ufffd`...)
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i += size
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
