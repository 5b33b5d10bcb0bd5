package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxEvent bounds one server-sent event. A completion chunk is about 200
// bytes; a server that sends more than this without an event's end is broken.
const maxEvent = 1 << 20

var errEventTooLong = fmt.Errorf("event of more than %d bytes", maxEvent)

// eventParser cuts a text/event-stream into the data of its events. Comments
// and fields other than data are ignored, lines may end in LF, CR or CRLF, and
// several data lines of one event are joined by LF, as the WHATWG standard
// says. It keeps what has not ended yet, so the stream may arrive in any
// pieces.
type eventParser struct {
	line    []byte // an unfinished line
	data    []byte // the data lines of an unfinished event
	hasData bool
	skipLF  bool // the last byte was CR, so a LF belongs to it
}

// feed parses p and calls event with the data of each event that it ends. The
// slice is valid during the call only.
func (e *eventParser) feed(p []byte, event func(data []byte) error) error {
	for len(p) > 0 {
		if e.skipLF {
			e.skipLF = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			if len(e.line)+len(p) > maxEvent {
				return errEventTooLong
			}
			e.line = append(e.line, p...)
			return nil
		}
		line := p[:end]
		if len(e.line) > 0 {
			e.line = append(e.line, line...)
			line = e.line
		}
		e.skipLF = p[end] == '\r'
		p = p[end+1:]
		err := e.endLine(line, event)
		e.line = e.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *eventParser) endLine(line []byte, event func(data []byte) error) error {
	if len(line) == 0 {
		if !e.hasData {
			return nil
		}
		data := e.data
		e.data, e.hasData = e.data[:0], false
		return event(data)
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	if string(name) != "data" {
		return nil
	}
	value = bytes.TrimPrefix(value, []byte(" "))
	if len(e.data)+len(value) >= maxEvent {
		return errEventTooLong
	}
	if e.hasData {
		e.data = append(e.data, '\n')
	}
	e.data, e.hasData = append(e.data, value...), true
	return nil
}

// pending reports whether the stream stopped inside an event.
func (e *eventParser) pending() bool { return e.hasData || len(e.line) > 0 }

// chunk is the part of a completion chunk that the bench reads.
type chunk struct {
	Choices []struct {
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage     *Usage     `json:"usage"`
	Breakdown *Breakdown `json:"breakdown"`
	Error     *apiError  `json:"error"`
}

// apiError is OpenAI's error object.
type apiError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
}

var (
	errNoChunk   = errors.New("never received a valid chunk to calculate TTFT")
	errTruncated = errors.New("stream ended without [DONE]")
	errNoUsage   = errors.New("no usage in the stream, so the number of tokens is unknown")
)

// A streamReader turns the bytes of one streamed completion into a record.
type streamReader struct {
	events eventParser
	record *Record
	done   bool // [DONE] was seen
	last   pattern
}

// A pattern is an event that brought a token and nothing else, but for what is in
// its text. Events of one stream differ in that only, and one that fits needs not be
// parsed: at 1,000 streams that was two thirds of what reading them cost, a seventh of
// the machine that is being measured.
type pattern struct {
	event    []byte
	from, to int // of the text, without its quotes
}

// keep makes an event the pattern if the place of its text can be told. A string
// that begins with one of these is a key, and no part of another string: in there the
// quotes would be escaped.
func (p *pattern) keep(event []byte) {
	p.event = append(p.event[:0], event...)
	p.from, p.to = 0, 0
	for _, key := range []string{`"text":"`, `"content":"`, `"text": "`, `"content": "`} {
		if i := bytes.Index(event, []byte(key)); i >= 0 {
			from := i + len(key)
			if n := plain(event[from:]); event[from+n] == '"' {
				p.from, p.to = from, from+n
				return
			}
		}
	}
}

// fits reports whether an event is the pattern with another text.
func (p *pattern) fits(event []byte) bool {
	to := len(event) - (len(p.event) - p.to)
	return p.from > 0 && to >= p.from && bytes.Equal(event[:p.from], p.event[:p.from]) &&
		bytes.Equal(event[to:], p.event[p.to:]) && plain(event[p.from:to]) == to-p.from
}

// plain is the length of what stands for itself in a JSON string, at the start of b.
func plain(b []byte) int {
	for i, c := range b {
		if c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return len(b)
}

// feed takes what was read at time at, in seconds since the run's start.
func (s *streamReader) feed(p []byte, at float64) error {
	return s.events.feed(p, func(data []byte) error {
		if s.done {
			return fmt.Errorf("event after [DONE]: %.80q", data)
		}
		if string(data) == "[DONE]" {
			s.done = true
			return nil
		}
		if s.last.fits(data) {
			s.record.TokenTimes = append(s.record.TokenTimes, at)
			return nil
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("event is not JSON: %w: %.80q", err, data)
		}
		if c.Error != nil {
			return fmt.Errorf("server: %s", c.Error.Message)
		}
		if len(c.Choices) > 0 {
			if len(s.record.TokenTimes) == 0 {
				s.record.FirstToken = at
			}
			s.record.TokenTimes = append(s.record.TokenTimes, at)
			if r := c.Choices[0].FinishReason; r != nil {
				s.record.FinishReason = *r
			} else if c.Usage == nil && c.Breakdown == nil {
				s.last.keep(data)
			}
		}
		if c.Usage != nil {
			s.record.Usage = c.Usage
		}
		if c.Breakdown != nil {
			s.record.Breakdown = c.Breakdown
		}
		return nil
	})
}

// end judges the whole stream after its last byte.
func (s *streamReader) end() error {
	r := s.record
	switch {
	case !s.done && s.events.pending():
		return fmt.Errorf("%w, inside an event", errTruncated)
	case !s.done:
		return fmt.Errorf("%w, after %d chunks", errTruncated, len(r.TokenTimes))
	case len(r.TokenTimes) == 0:
		return errNoChunk
	case r.Usage == nil:
		return errNoUsage
	case r.Usage.CompletionTokens != r.MaxTokens:
		return fmt.Errorf("short output: %d tokens, want %d", r.Usage.CompletionTokens, r.MaxTokens)
	}
	return nil
}
