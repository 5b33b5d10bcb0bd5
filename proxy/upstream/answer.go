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
	"regexp"
	"slices"
	"time"

	"kvferry/proto"
	"kvferry/proxy/openai"
)

// said is the part of an engine's answer, or of an event, that is read here.
type said struct {
	Usage *struct {
		Prompt     uint32 `json:"prompt_tokens"`
		Completion uint32 `json:"completion_tokens"`
		Details    *struct {
			Cached uint32 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Choices []struct {
		Finish string                     `json:"finish_reason"`
		Delta  map[string]json.RawMessage `json:"delta"`
	} `json:"choices"`
	Transfer json.RawMessage `json:"kv_transfer_params"`
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
		if said == nil {
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
		if bytes := cmp.Or(r.took.Bytes, r.gave.Bytes); bytes == nil {
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
	token := func() error {
		now := e.cfg.Clock.Now()
		if r.Begun {
			v.spoke.Store(int64(now))
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
		err = r.stream(answer, token)
	} else if r.answer, err = whole(answer.Body, r.More); err == nil {
		var s *said
		if err = json.Unmarshal(r.answer, &s); err == nil && s == nil {
			err = errors.New("it answers null")
		}
		if err == nil {
			r.take(s)
		}
	}
	if err == nil || errors.Is(err, ErrGone) {
		return err
	}
	f := r.fail(v, leg, plain(ctx, err))
	if own := (*engineError)(nil); errors.As(err, &own) {
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
	errNoDone  = errors.New("its stream ended without [DONE]")
	errEndless = fmt.Errorf("an event of more than %d bytes", maxAnswer)
)

// stream sends an engine's events on as they come, all that are there in one write. The last one,
// [DONE], is sent by Events.End.
func (r *Request) stream(answer *http.Response, token func() error) error {
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != "text/event-stream" {
		return fmt.Errorf("it answers with %q to a request that streams", kind)
	}
	var held []byte // an event that has not ended
	looked := 0     // bytes of it in which no end is
	buffer := make([]byte, 4<<10)
	for {
		n, err := answer.Body.Read(buffer)
		held = append(held, buffer[:n]...)
		for {
			at, length := eventEnd(held, looked)
			if at < 0 {
				looked = max(len(held)-3, 0) // an end may have begun
				break
			}
			if failed := r.event(held[:at+length], token); failed != nil {
				return failed
			}
			held, looked = held[at+length:], 0
		}
		if gone := r.events.w.FlushError(); gone != nil {
			return fmt.Errorf("%w: %w", ErrGone, gone)
		}
		switch {
		case len(held) > maxAnswer:
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

// worth tells events that say more than a token. Engines write JSON with and without blanks.
var worth = regexp.MustCompile(`"(usage|kv_transfer_params)": ?\{|"(finish_reason|role)": ?"`)

// event takes one event, with its end.
func (r *Request) event(event []byte, token func() error) error {
	data, has := bytes.CutPrefix(event, []byte("data:"))
	data = bytes.TrimSpace(data)
	switch {
	case event[0] == ':' && !r.Begun:
		return nil // a comment, with nothing to come before it
	case bytes.HasPrefix(data, []byte(`{"error"`)):
		return &engineError{bytes.Clone(data)}
	case string(data) == "[DONE]":
		r.events.done = bytes.Clone(event)
		return nil
	case has:
		var s said
		if worth.Match(data) && json.Unmarshal(data, &s) == nil {
			r.take(&s)
			if len(s.Choices) == 0 || s.opens() {
				break // the account of all, or no token yet
			}
		}
		if err := token(); err != nil {
			return err
		}
		r.tokens++
	}
	r.events.write(event)
	return nil
}

// Events are how a streamed answer reaches its client: an engine's own events, byte by byte. They are
// for one goroutine.
type Events struct {
	w     openai.Writer
	begun bool
	done  []byte // the engine's last event, which is held back until End
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

// To says where they go.
func (s *Events) To(w openai.Writer) { s.w = w }

// Begun reports whether the client has got any.
func (s *Events) Begun() bool { return s.begun }

func (s *Events) write(event []byte) {
	if !s.begun {
		openai.StartEvents(s.w)
		s.begun = true
	}
	_, _ = s.w.Write(event) // it only keeps them
}

// End sends where the time went, if that was asked for, and the engine's last event.
func (s *Events) End(u openai.Usage) error {
	if u.Breakdown != nil {
		s.write(append(u.Breakdown.AppendJSON([]byte(`data: {"choices":[],"breakdown":`)), "}\n\n"...))
	}
	s.write(s.done)
	return s.w.End()
}

// Fail tells the client, in mid-stream, why no more is coming. The caller then breaks the connection.
func (s *Events) Fail(e *openai.Error) {
	s.write(append(e.AppendJSON([]byte("data: ")), "\n\n"...))
	_ = s.w.FlushError() // the connection is about to be broken either way
}
