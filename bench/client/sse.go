package client

import (
	"bytes"
	"fmt"
	"strings"
)

// maxEvent bounds one server-sent event. A completion chunk is about 200 bytes; SGLang's
// have all of the text so far, and its token ids: 1 MB of a hundred thousand tokens. A
// server that sends more without an event's end is broken.
const maxEvent = 4 << 20

var errEventTooLong = faulty(FaultEndless, fmt.Errorf("event of more than %d bytes", maxEvent))

// eventParser cuts a text/event-stream into the data of its events. Of the other fields only an
// event's name is looked at, whether it is "error"; they and comments are ignored else. Lines may end in LF, CR or CRLF, and several data lines of one event
// are joined by LF, as the WHATWG standard says. It keeps what has not ended yet, so the
// stream may arrive in any pieces.
type eventParser struct {
	line    []byte // an unfinished line
	data    []byte // the data lines of an unfinished event
	hasData bool
	failure bool // the unfinished event, or the one that is being told, is named "error"
	skipLF  bool // the last byte was CR, so a LF belongs to it
	begun   bool // a line has ended: a byte order mark stands before the first only
	stray   bool // a line that is no field at all: not a stream of events
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
		end := lineEnd(p)
		if end < 0 {
			if len(e.line)+len(p) > maxEvent {
				return errEventTooLong
			}
			e.line = append(e.line, p...)
			return nil
		}
		line := p[:end]
		if len(e.line) > 0 {
			if len(e.line)+end > maxEvent {
				return errEventTooLong
			}
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

// lineEnd is where the first line ends, -1 if it does not. Nearly all end in LF, so that is
// looked for first, and CR before it only: bytes.IndexAny takes ten times as long.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	before := p
	if lf >= 0 {
		before = p[:lf]
	}
	if cr := bytes.IndexByte(before, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

func (e *eventParser) endLine(line []byte, event func(data []byte) error) error {
	if !e.begun {
		e.begun = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) == 0 {
		var err error
		if e.hasData {
			data := e.data
			e.data, e.hasData = e.data[:0], false
			err = event(data)
		}
		e.failure = false
		return err
	}
	value, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		if string(line) != "data" {
			name, value, _ := bytes.Cut(line, []byte(":"))
			if string(name) == "event" {
				e.failure = string(bytes.TrimPrefix(value, []byte(" "))) == "error"
			}
			e.stray = e.stray || len(name) > 0 && string(name) != "event" && string(name) != "id" && string(name) != "retry"
			return nil
		}
		value = nil
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

// A pattern is an event that brought a token and nothing else, but for what is in
// its text. Events of one stream differ in that only, and one that fits needs not be
// parsed: at 1,000 streams that was two thirds of what reading them cost, a seventh of
// the machine that is being measured.
type pattern struct {
	event    []byte
	from, to int  // of the text, without its quotes
	thought  bool // the text is the model's reasoning
}

// keys are what stands before an event's text. A string that begins with one of these is a
// key, and no part of another string: in there the quotes would be escaped.
var keys = []string{`"text":"`, `"content":"`, `"reasoning_content":"`, `"text": "`, `"content": "`, `"reasoning_content": "`}

// keep makes an event the pattern if the place of its text can be told.
func (p *pattern) keep(event, text []byte) {
	p.event = append(p.event[:0], event...)
	p.from, p.to = 0, 0
	for _, key := range keys {
		if i := bytes.Index(event, []byte(key)); i >= 0 {
			from := i + len(key)
			if n := plain(event[from:]); event[from+n] == '"' && string(event[from:from+n]) == string(text) {
				p.from, p.to, p.thought = from, from+n, strings.HasPrefix(key, `"reasoning`)
				return
			}
		}
	}
}

// text is what an event has where the pattern has its text, if it is the pattern otherwise.
func (p *pattern) text(event []byte) (text []byte, fits bool) {
	to := len(event) - (len(p.event) - p.to)
	if p.from == 0 || to <= p.from || !bytes.Equal(event[:p.from], p.event[:p.from]) || !bytes.Equal(event[to:], p.event[p.to:]) {
		return nil, false
	}
	text = event[p.from:to]
	return text, plain(text) == len(text)
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
