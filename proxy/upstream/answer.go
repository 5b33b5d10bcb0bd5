package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvferry/proto"
	"kvferry/proxy/openai"
)

// said is the part of an engine's answer, or of an event, that is read here, or whose type is checked for the client.
type said struct {
	ID    string          `json:"id"`
	Error json.RawMessage `json:"error"`
	Usage *struct {
		Prompt     uint32 `json:"prompt_tokens"`
		Completion uint32 `json:"completion_tokens"`
		Details    *struct {
			Cached uint32 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Choices []struct {
		Index    uint32
		Finish   string `json:"finish_reason"`
		Text     string
		Delta    map[string]json.RawMessage
		Message  struct{ Content string }
		IDs      []uint32 `json:"token_ids"`
		Logprobs struct {
			Tokens  []string
			Values  []*float64 `json:"token_logprobs"`
			Content []struct {
				Token   string
				Logprob *float64
			}
		}
	}
	Transfer json.RawMessage `json:"kv_transfer_params"`
}

var (
	errAborted = errors.New("it gave the request up (finish_reason abort or error)")
	errForeign = errors.New("it answers another request")
)

// foreign reports whether an id has this proxy's mark, as vLLM's have, and is of another request.
func (e *Engines) foreign(r *Request, id string) bool {
	return strings.Contains(id, e.mark) && !strings.Contains(id, r.name)
}

// read decodes and checks an answer of an engine, or an event of one. What decoding a large one may take is counted.
func (e *Engines) read(r *Request, v *visit, text []byte) (*said, error) {
	if len(text) > maxErrorText && !r.More(int64(len(text)+256*bytes.Count(text, []byte("{"))+16*bytes.Count(text, []byte(",")))) {
		return nil, errNoMemory
	}
	var s *said
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("its answer is no JSON of an answer: %w", err)
	}
	switch {
	case s == nil:
		return nil, errors.New("it answers null")
	case given(s.Error):
		return nil, &engineError{bytes.Clone(text)}
	case s.Choices == nil:
		return nil, errors.New("its answer has no choices")
	}
	if strings.Contains(s.ID, r.name) {
		v.echoes.Store(true)
	}
	if v.answer = cmp.Or(v.answer, s.ID); s.ID != v.answer || e.foreign(r, s.ID) {
		return nil, fmt.Errorf("%w: id %.200q, want %.200q", errForeign, s.ID, cmp.Or(r.name, v.answer))
	}
	for _, c := range s.Choices {
		content := c.Delta["content"]
		has := c.Text != "" || len(content) > len(`""`) && content[0] == '"'
		switch {
		case given(content) && content[0] != '"':
			return nil, fmt.Errorf("content is %.20s in place of a text", content)
		case c.Index >= r.choices || has && v.finished[c.Index]:
			return nil, fmt.Errorf("a token of choice %d of %d, finished %v", c.Index, r.choices, v.finished[c.Index])
		case c.Finish == "abort" || c.Finish == "error":
			return nil, errAborted
		case has:
			v.texts++
		}
		if c.Finish != "" {
			if v.finished == nil {
				v.finished = make(map[uint32]bool)
			}
			v.finished[c.Index] = true
		}
	}
	if len(s.Choices) > int(r.choices) {
		return nil, fmt.Errorf("%d choices in place of %d", len(s.Choices), r.choices)
	}
	return s, r.count(v, s)
}

// count checks the counts of an answer, as far as they are known.
func (r *Request) count(v *visit, s *said) error {
	prompt, most, texts := cmp.Or(v.most, maxTokens), cmp.Or(r.asked.Choices[0].MaxTokens, maxTokens), v.texts
	if r.kind == openai.Chat || !r.single {
		texts = 0 // an engine may have parted a token's text, and an echo is no token
	}
	if !r.single { // all that it may have drawn, best_of too
		prompt, most = maxSaid, maxSaid
	}
	u := s.Usage
	switch {
	case texts > most:
		return fmt.Errorf("%d tokens in place of %d", texts, most)
	case u != nil && (u.Prompt > prompt || u.Completion > most || r.asked.Stream && u.Completion < texts || u.Details != nil && u.Details.Cached > u.Prompt):
		return fmt.Errorf("usage of %d prompt tokens and %d more: there can be %d, and %d to %d", u.Prompt, u.Completion, prompt, texts, most)
	}
	return nil
}

// checkParams checks what a prefill engine offers another.
func (e *Engines) checkParams(r *Request, params json.RawMessage) error {
	var p struct {
		Request string          `json:"remote_request_id"`
		Port    uint16          `json:"remote_port"`
		Ranks   *uint16         `json:"tp_size"`
		Tokens  uint32          `json:"remote_num_tokens"`
		Blocks  json.RawMessage `json:"remote_block_ids"`
	}
	if err := json.Unmarshal(params, &p); given(params) && err != nil {
		return fmt.Errorf("kv_transfer_params: %w", err)
	} else if n := len(params); n > maxParams || p.Ranks != nil && *p.Ranks == 0 {
		return fmt.Errorf("kv_transfer_params: %d bytes, %.99s", n, params)
	} else if given(p.Blocks) && json.Unmarshal(p.Blocks, new([]uint32)) != nil && json.Unmarshal(p.Blocks, new([][]uint32)) != nil {
		return fmt.Errorf("kv_transfer_params: remote_block_ids is %.99s", p.Blocks)
	} else if e.foreign(r, p.Request) {
		return fmt.Errorf("%w: kv_transfer_params of %.200s", errForeign, p.Request)
	}
	return nil
}

// opens reports whether an event of a chat says who speaks and nothing more: vLLM sends it before that
// of the first token.
func (s *said) opens() bool {
	for _, c := range s.Choices {
		for name, value := range c.Delta {
			if name != "role" && !slices.Contains([]string{"null", `""`, "[]"}, string(value)) {
				return false
			}
		}
		if c.Finish != "" || c.Delta["role"] == nil {
			return false
		}
	}
	return len(s.Choices) > 0
}

// take notes what the engine says that answers the client.
func (r *Request) take(s *said) {
	if u := s.Usage; u != nil {
		r.Usage.Prompt, r.Usage.Completion = u.Prompt, u.Completion
		if u.Details != nil && !r.moved { // the KV that it took counts as cached there
			r.Usage.Cached = u.Details.Cached
		}
	}
	for _, c := range s.Choices {
		r.Stop = r.Stop || c.Finish != "" && c.Finish != "length"
	}
	r.took.report(s.Transfer)
}

// connector is what an engine's connector says of a request: in the object "kvferry" of the
// kv_transfer_params of an answer, or in a report. Times are microseconds; what it leaves out is not known.
type connector struct {
	Queue   *uint32 `json:"queue_us"` // at that engine
	Post    *uint32 `json:"post_us"`
	Wire    *uint32 `json:"wire_us"`
	Land    *uint32 `json:"land_us"`
	Bytes   *uint64 `json:"kv_bytes"`
	Checked *uint32 `json:"kv_blocks_checked"`
	Bad     *uint32 `json:"kv_blocks_bad"`
}

// report takes what a connector has said, beside what another has.
func (c *connector) report(params json.RawMessage) {
	p := struct {
		Kvferry *connector `json:"kvferry"`
	}{c}
	_ = json.Unmarshal(params, &p) // of another connector, or of none: nothing is known
}

// account fills in the breakdown when a request has ended. What is not known of a part is in the one
// that the proxy sees: the queue in prefill, the transfer in first decode. When the first token of an
// answer came that does not stream, only its engine knows.
func (r *Request) account(now time.Duration) {
	if r.Usage.Completion == 0 {
		r.Usage.Completion = r.tokens
	}
	end := now
	if r.Begun && r.asked.Stream {
		end = r.First
	}
	r.Proxy = max(end-r.Arrived-r.computing-r.answering, 0)
	b := &r.Breakdown
	b.PrefillUs = proto.Microseconds(r.computing)
	last, name := &b.PrefillUs, "prefill_us"
	if r.moved {
		last, name = &b.FirstDecodeUs, "first_decode_us"
	}
	if r.asked.Stream {
		*last += proto.Microseconds(r.answering)
	} else {
		r.Unknown = append(r.Unknown, name)
	}
	atOnce := r.atOnce && r.took.Wire != nil
	if atOnce { // all is the decode engine's time, whose connector says what it had when
		*last, b.PrefillUs = *last+b.PrefillUs, 0
	}
	part := func(name string, said *uint32, to, from *uint32) {
		if said == nil || *said > maxSaid {
			r.Unknown = append(r.Unknown, name)
			return
		}
		*to += *said
		*from -= min(*from, *said)
	}
	var none uint32
	queue := func(at *connector, from *uint32) {
		if at.Queue != nil {
			part("queue_us", at.Queue, &b.QueueUs, from)
		}
	}
	queue(&r.gave, &b.PrefillUs)
	queue(&r.took, last)
	if r.gave.Queue == nil && r.took.Queue == nil {
		r.Unknown = append(r.Unknown, "queue_us")
	}
	if r.moved {
		part("post_us", cmp.Or(r.took.Post, r.gave.Post), &b.PostUs, last)
		part("wire_us", cmp.Or(r.took.Wire, r.gave.Wire), &b.WireUs, last)
		part("land_us", cmp.Or(r.took.Land, r.gave.Land), &b.LandUs, last)
		part("kv_blocks_checked", cmp.Or(r.took.Checked, r.gave.Checked), &b.KvBlocksChecked, &none)
		part("kv_blocks_bad", cmp.Or(r.took.Bad, r.gave.Bad), &b.KvBlocksBad, &none)
		if bytes := cmp.Or(r.took.Bytes, r.gave.Bytes); bytes == nil || *bytes > maxKV {
			r.Unknown = append(r.Unknown, "kv_bytes")
		} else {
			b.KvBytes = *bytes
		}
	}
	if atOnce { // its wait for the last layer has the computing in it
		before := b.QueueUs + b.PostUs
		b.PrefillUs = min(b.WireUs, max(proto.Microseconds(r.computing), before)-before)
		b.WireUs -= b.PrefillUs
	}
}

// final has an engine answer the client, with kv_transfer_params or none. first says whether its answer is
// still wanted; nil: it is.
func (e *Engines) final(ctx context.Context, r *Request, v *visit, params json.RawMessage, first *race, counts Counts, started func()) error {
	body, err := r.answerBody(params)
	if err != nil {
		return err
	}
	leg := "full"
	if v.role == proto.Role_ROLE_DECODE {
		leg = "decode"
	}
	r.moved, r.atOnce = params != nil, first != nil
	if !v.says {
		started()
	}
	ctx, over := e.watch(ctx, v)
	defer over()
	defer func() {
		if v.waits { // no first token came
			r.answering += e.cfg.Clock.Now() - v.sent
		}
	}()
	answer, err := e.post(ctx, r, v, leg, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if !v.says {
		v.since.Store(int64(e.cfg.Clock.Now())) // the rest comes at once
	}
	token := func() error {
		now := e.cfg.Clock.Now()
		if r.Begun {
			v.word(now)
			counts.NextToken(now - r.Last)
			r.Last = now
			return nil
		}
		if !first.wins(answered) {
			return errPrefillLost
		}
		r.answering += now - v.sent
		e.begun(v, true)
		r.Begun, r.First, r.Last = true, now, now
		counts.FirstToken(now - r.Arrived)
		started()
		return nil
	}
	if r.asked.Stream {
		err = e.stream(r, v, answer, token)
	} else if r.answer, err = whole(answer.Body, maxAnswer, r.More); err == nil {
		var s *said
		if s, err = e.read(r, v, r.answer); err == nil && !r.finished(v) {
			err = errUnfinished
		}
		if err == nil {
			r.take(s)
		}
	}
	if err == nil || errors.Is(err, ErrGone) {
		return err
	}
	f := r.fail(v, leg, plain(ctx, err))
	if own := (*engineError)(nil); errors.As(err, &own) && len(own.event) <= maxErrorText {
		f.body = own.event
	}
	return f
}

// ErrGone is that a client takes no more of its answer.
var ErrGone = errors.New("the client takes no more")

// An engineError is one that an engine says in a stream.
type engineError struct{ event []byte }

func (e *engineError) Error() string { return fmt.Sprintf("it says %.200s", e.event) }

var (
	errNoDone     = errors.New("its stream ended without [DONE]")
	errUnfinished = errors.New("its answer has no finish_reason")
	errEndless    = fmt.Errorf("an event of more than %d bytes", maxEvent)
)

// stream sends an engine's events on as they come, all that are there in one write. The last one,
// [DONE], is sent by Events.End.
func (e *Engines) stream(r *Request, v *visit, answer *http.Response, token func() error) error {
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != "text/event-stream" {
		return fmt.Errorf("it answers with %q to a request that streams", kind)
	}
	buffer := make([]byte, 0, 4<<10) // events, the last of which has not ended
	var late *time.Timer             // ends what comes behind [DONE]
	looked := 0                      // bytes of it in which no end is
	for {
		var err error
		if buffer, err = readMore(answer.Body, buffer, r.More); errors.Is(err, errNoMemory) {
			return err
		}
		held := buffer
		for {
			at, length := eventEnd(held, looked)
			if at < 0 {
				looked = max(len(held)-3, 0) // an end may have begun
				break
			}
			if failed := e.event(r, v, held[:at+length], token); failed != nil {
				return failed
			}
			held, looked = held[at+length:], 0
		}
		buffer = append(buffer[:0], held...)
		if r.events.done != nil && late == nil {
			late = time.AfterFunc(lastWord, func() { _ = answer.Body.Close() }) // its end makes the connection fit for the next request
			defer late.Stop()
		}
		if gone := r.events.W.FlushError(); gone != nil {
			return fmt.Errorf("%w: %w", ErrGone, gone)
		}
		switch {
		case len(held) > maxEvent:
			return errEndless
		case err != nil && r.events.done != nil:
			return nil // it has said all
		case errors.Is(err, io.EOF):
			return errNoDone
		case err != nil:
			return err
		}
	}
}

// eventEnd is where the first event ends, and how long its end is; -1 if it has not ended. The end is
// not before b[from].
func eventEnd(b []byte, from int) (at, length int) {
	at, length = bytes.Index(b[from:], []byte("\n\n")), 2
	if crlf := bytes.Index(b[from:], []byte("\r\n\r\n")); crlf >= 0 && (at < 0 || crlf < at) {
		at, length = crlf, 4
	}
	if at >= 0 {
		at += from
	}
	return at, length
}

// finished reports whether all choices have a finish_reason.
func (r *Request) finished(v *visit) bool { return len(v.finished) == int(r.choices) }

// event takes one event, with its end.
func (e *Engines) event(r *Request, v *visit, event []byte, token func() error) error {
	var data []byte
	has, comment := false, false
	for line := range bytes.Lines(event) {
		line = bytes.TrimRight(line, "\r\n")
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch text := string(name); {
		case bytes.IndexByte(line, '\r') >= 0 || text == "data" && has: // clients would see other lines
			return fmt.Errorf("%.40q in place of an event of one line", event)
		case text == "data":
			data, has = bytes.TrimSpace(value), true
		case len(line) == 0 || text == "event" || text == "id" || text == "retry":
		case text == "":
			comment = true
		default:
			return fmt.Errorf("%.40q in place of an event", event)
		}
	}
	switch {
	case !has && comment && !r.Begun:
		return nil // with nothing to come before it
	case !has && !comment:
		return fmt.Errorf("%.40q in place of an event", event)
	case string(data) == "[DONE]" && !r.finished(v):
		return errUnfinished
	case string(data) == "[DONE]":
		r.events.done = bytes.Clone(event)
		return nil
	case has && r.events.done != nil:
		return errors.New("an event behind [DONE]")
	case has:
		s, err := e.read(r, v, data)
		if err != nil {
			return err
		}
		r.take(s)
		if len(s.Choices) == 0 || s.opens() {
			break // the account of all, or no token yet
		}
		if err := token(); err != nil {
			return err
		}
		r.tokens++
	}
	r.events.Event(event)
	return nil
}

// Events are how a streamed answer reaches its client: an engine's own events, byte by byte. They are
// for one goroutine.
type Events struct {
	openai.EventStream
	done []byte // the engine's last event, which is held back until End
}

// Events are those of the request.
func (r *Request) Events() *Events { return &r.events }

// Answer is an answer that does not stream: the engine's own bytes, and what was asked of this proxy.
func (r *Request) Answer(u openai.Usage) []byte {
	if u.Breakdown == nil {
		return r.answer
	}
	object := bytes.TrimSpace(r.answer)
	b := bytes.TrimRight(bytes.Clone(object[:len(object)-1]), " \t\r\n")
	if len(b) > 1 {
		b = append(b, ',')
	}
	return append(u.Breakdown.AppendJSON(append(b, `"breakdown":`...)), '}')
}

// End sends where the time went, if that was asked for, and the engine's last event.
func (s *Events) End(u openai.Usage) error {
	if u.Breakdown != nil {
		s.Event(append(u.Breakdown.AppendJSON([]byte(`data: {"choices":[],"breakdown":`)), "}\n\n"...))
	}
	s.Event(s.done)
	return s.W.End()
}
