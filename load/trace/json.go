package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"kvferry/internal/config"
)

// JSON are the records of a file of JSON: its values, one a line (JSON lines) or over
// several, or the elements of the list that is all of the file, or of one that the file's
// object has under a key.
type JSON struct {
	name  string
	from  io.Reader
	lines lines
	d     *json.Decoder
	key   string
	list  bool // the records are elements of a list
	begun bool
	line  int
	at    int64 // of the last record
	err   error // the first; io.EOF at the end
}

// NewJSON reads records from r. name is for errors. If key is not empty and the file is an
// object that has it, the records are the elements of the list there. Close closes r, if
// it is to be closed.
func NewJSON(name string, r io.Reader, key string) *JSON {
	j := &JSON{name: name, from: r, key: key}
	j.lines.from, j.lines.most = r, maxRecord
	j.d = json.NewDecoder(&j.lines)
	return j
}

// Next decodes the next record into v; there is none if not ok. Fields that v does not have
// are passed over.
func (j *JSON) Next(v any) (ok bool, err error) {
	if j.err == nil {
		var raw json.RawMessage
		if raw, j.err = j.next(); j.err == nil {
			if j.err = unmarshal(raw, v); j.err != nil {
				j.err = j.Fault(j.err)
			}
		}
	}
	if errors.Is(j.err, io.EOF) {
		return false, nil
	}
	return j.err == nil, j.err
}

// Line is where the last record began, from 1.
func (j *JSON) Line() int { return j.line }

// Offset is where in the file the last record began, in bytes. A reader of the rest of the
// file from there has it first.
func (j *JSON) Offset() int64 { return j.at }

// Fault is an error of the last record.
func (j *JSON) Fault(err error) error { return Fault(j.name, j.line, err) }

// Close closes what is read.
func (j *JSON) Close() error { return Close(j.from) }

// next is the next record as it stands in the file.
func (j *JSON) next() (json.RawMessage, error) {
	if !j.begun {
		j.begun = true
		if err := j.begin(); err != nil {
			return nil, err
		}
	}
	if j.list && !j.d.More() {
		// What follows the list is the rest of an object, or nothing.
		if _, err := j.d.Token(); err != nil {
			return nil, j.syntax(err)
		}
		return nil, io.EOF
	}
	j.lines.allow(j.d.InputOffset())
	var raw json.RawMessage
	err := j.d.Decode(&raw)
	j.at = j.lines.skipped + j.d.InputOffset() - int64(len(raw))
	j.line = j.lines.at(j.d.InputOffset() - int64(len(raw)))
	if err != nil {
		return nil, j.syntax(err)
	}
	return raw, nil
}

// begin looks whether the records are in a list.
func (j *JSON) begin() error {
	j.lines.allow(0)
	first, err := j.lines.first()
	switch {
	case err != nil:
		return j.syntax(err)
	case first == '[':
		j.list = true
		_, err = j.d.Token()
	case first == '{' && j.key != "":
		err = j.enter()
	}
	if err != nil {
		return j.syntax(err)
	}
	return nil
}

// enter goes to the list that the object has under the key.
func (j *JSON) enter() error {
	if _, err := j.d.Token(); err != nil {
		return err
	}
	for j.d.More() {
		name, err := j.d.Token()
		if err != nil {
			return err
		}
		if name != j.key {
			var other json.RawMessage
			if err := j.d.Decode(&other); err != nil {
				return err
			}
			continue
		}
		open, err := j.d.Token()
		if err != nil {
			return err
		}
		if open != json.Delim('[') {
			return fmt.Errorf("%s: want a list in brackets", j.key)
		}
		j.list = true
		return nil
	}
	return fmt.Errorf("%s is missing: give it as a list", j.key)
}

// syntax says what is wrong with the JSON itself.
func (j *JSON) syntax(err error) error {
	var syntax *json.SyntaxError
	j.line = j.lines.at(j.d.InputOffset())
	switch {
	case errors.Is(err, io.EOF) && !j.list:
		return io.EOF
	case errors.Is(err, errLong):
		err = fmt.Errorf("a record is longer than %d bytes", j.lines.most)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		j.line = j.lines.line()
		err = errors.New("it ends in the middle: is it cut off?")
	case errors.As(err, &syntax):
		j.line = j.lines.at(syntax.Offset)
		err = fmt.Errorf("this is no JSON: %w", err)
	}
	return j.Fault(err)
}

// unmarshal is config.Unmarshal without the line within the record.
func unmarshal(raw json.RawMessage, v any) error {
	err := json.Unmarshal(raw, v)
	if err == nil {
		return nil
	}
	var flat bytes.Buffer
	if json.Compact(&flat, raw) == nil {
		raw = flat.Bytes()
	}
	if plain := config.Unmarshal(raw, v, false); plain != nil {
		return plain
	}
	return err
}

// errLong is what the reader below the decoder ends a record with that is too long; the decoder
// hands it on.
var errLong = errors.New("record too long")

// lines reads and knows on which line each byte is that the decoder has not left behind.
type lines struct {
	from    io.Reader
	head    []byte  // read, and not yet passed on
	skipped int64   // bytes before the first record
	offset  int64   // of what comes next, after those
	ends    []int64 // of lines, as offsets, in what the decoder has not left behind
	before  int     // lines that end before those
	most    int64   // bytes of a record
	limit   int64   // the record goes on to here at most
}

// first is the first byte that is not white space, which is not taken; a byte order mark
// is left out.
func (l *lines) first() (byte, error) {
	var b [1]byte
	for {
		n, err := l.from.Read(b[:])
		if n == 0 {
			if err == nil {
				continue
			}
			return 0, err
		}
		l.skipped++
		switch b[0] {
		case '\n':
			l.before++
		case ' ', '\t', '\r', 0xef, 0xbb, 0xbf:
		default:
			l.head = []byte{b[0]}
			l.skipped--
			return b[0], nil
		}
	}
}

// allow lets the next record begin at that offset.
func (l *lines) allow(offset int64) { l.limit = offset + l.most }

// Read notes where lines end in what the decoder takes. It reads ahead of the records by its
// buffer, so ends are kept until a record has gone beyond them.
func (l *lines) Read(p []byte) (n int, err error) {
	if l.offset > l.limit {
		return 0, errLong
	}
	if len(l.head) > 0 {
		n = copy(p, l.head)
		l.head = l.head[n:]
	} else {
		n, err = l.from.Read(p)
	}
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.offset+int64(i))
		}
	}
	l.offset += int64(n)
	return n, err
}

// at is the line of an offset, from 1. Lines before it are forgotten.
func (l *lines) at(offset int64) int {
	n := 0
	for n < len(l.ends) && l.ends[n] < offset {
		n++
	}
	l.before += n
	l.ends = append(l.ends[:0], l.ends[n:]...)
	return l.before + 1
}

// line is the last.
func (l *lines) line() int { return l.before + len(l.ends) + 1 }
