package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/trace"
)

// traceKind is a trace in a file.
var traceKind = Kind{
	Name:  Traced,
	About: "the requests of a trace in Mooncake's format",
	Knobs: Knobs{fileKnob, speedKnob},
	Times: Recorded,
	Check: checkTrace,
	Open: func(s Spec) (Load, error) {
		f, err := trace.Open(s.File)
		if err != nil {
			return Load{}, err
		}
		return Load{Source: newTrace(s, f)}, nil
	},
}

func validSpeed(v float64) bool { return v > 0 && !math.IsInf(v, 0) }

// traceBlock is the number of tokens that a hash of a trace stands for.
const traceBlock = 512

// A blockTrace is a load in the format of Mooncake's published traces: a JSON object a
// line,
//
//	{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
//
// timestamp in milliseconds since the start, in order, fractions included; a hash ID for
// each 512 tokens of the prompt, the last for what remains. Numbers may be written as
// 27482.5 or 2.7e4. Equal IDs are equal tokens
// after equal tokens, so a trace says which prefixes requests share. (FAST25
// release of kvcache-ai/Mooncake; the tokens themselves are not published, and
// are derived from the IDs here.)
type blockTrace struct {
	Spec
	from   io.Reader
	lines  *bufio.Scanner
	line   int
	last   float64         // ms
	n      int             // requests taken
	unread []kvcache.Token // all prompts, of a load that is only counted
	err    error           // the first
}

// maxTraceLine bounds a line: a prompt of a million tokens has 20 kB of IDs.
const maxTraceLine = 4 << 20

// newTrace begins with the first line of r. Close closes it, if it is to be closed.
func newTrace(s Spec, r io.Reader) *blockTrace {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	return &blockTrace{Spec: s, from: r, lines: lines}
}

// traceLine is a line of the file; pointers tell what is missing.
type traceLine struct {
	Timestamp    *float64 `json:"timestamp"` // ms
	InputLength  *float64 `json:"input_length"`
	OutputLength *float64 `json:"output_length"`
	HashIDs      []int64  `json:"hash_ids"`
}

// Close closes what the trace is read from, if it is a file or the like.
func (t *blockTrace) Close() error {
	if c, ok := t.from.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Next parses the next line. Errors name the file and the line.
func (t *blockTrace) Next() (Request, bool, error) {
	l, err := t.next()
	if l == nil || err != nil {
		return Request{}, false, err
	}
	at := time.Duration(*l.Timestamp * float64(time.Millisecond) / t.Speed)
	return Request{At: at, Prompt: t.prompt(l), MaxTokens: int(*l.OutputLength)}, true, nil
}

// prompt has the tokens of a line's IDs.
func (t *blockTrace) prompt(l *traceLine) []kvcache.Token {
	tokens := int(*l.InputLength)
	if t.counted {
		t.unread = slices.Grow(t.unread[:0], tokens)[:tokens]
		return t.unread
	}
	prompt := make([]kvcache.Token, 0, tokens)
	for i, id := range l.HashIDs {
		prompt = fill(prompt, min(traceBlock, tokens-i*traceBlock), uint64(id)*0xd1342543de82ef95, t.Vocab)
	}
	return prompt
}

// next is the next line that is not empty, nil at the end.
func (t *blockTrace) next() (*traceLine, error) {
	if t.err != nil {
		return nil, t.err
	}
	l, err := t.scan()
	t.err = err
	return l, err
}

func (t *blockTrace) scan() (*traceLine, error) {
	for (t.Requests == 0 || t.n < t.Requests) && t.lines.Scan() {
		t.line++
		text := t.lines.Bytes()
		if t.line == 1 { // a byte order mark may be before it
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			continue
		}
		var l traceLine
		if err := config.Unmarshal(text, &l, false); err != nil {
			return nil, t.fault("%w", err)
		}
		if err := t.check(&l); err != nil {
			return nil, t.fault("%w", err)
		}
		t.last = *l.Timestamp
		t.n++
		return &l, nil
	}
	if err := t.lines.Err(); err != nil {
		t.line++
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, t.fault("is longer than %d bytes", maxTraceLine)
		}
		return nil, t.fault("%w", err)
	}
	return nil, nil
}

func (t *blockTrace) fault(format string, args ...any) error {
	return fmt.Errorf("trace %s:%d: "+format, append([]any{t.File, t.line}, args...)...)
}

func (t *blockTrace) check(l *traceLine) error {
	switch {
	case l.Timestamp == nil:
		return errors.New("timestamp is missing: give milliseconds since the start")
	case *l.Timestamp < 0:
		return fmt.Errorf("timestamp: %v: use 0 or more milliseconds since the start", *l.Timestamp)
	case *l.Timestamp < t.last:
		return fmt.Errorf("timestamp: %v comes after %v: sort the lines by time", *l.Timestamp, t.last)
	case *l.Timestamp*1e6/t.Speed > float64(never):
		return fmt.Errorf("timestamp: %v: too large for milliseconds since the start", *l.Timestamp)
	}
	for _, n := range []struct {
		field string
		v     *float64
	}{{"input_length", l.InputLength}, {"output_length", l.OutputLength}} {
		switch {
		case n.v == nil:
			return fmt.Errorf("%s is missing: give its tokens", n.field)
		case !(*n.v >= 1 && *n.v <= 1<<30) || *n.v != math.Trunc(*n.v):
			return fmt.Errorf("%s: %v: use a whole number from 1 to %d", n.field, *n.v, 1<<30)
		}
	}
	tokens := int(*l.InputLength)
	if want := (tokens + traceBlock - 1) / traceBlock; len(l.HashIDs) != want {
		return fmt.Errorf("hash_ids: %d of them: %d tokens are %d blocks of %d", len(l.HashIDs), tokens, want, traceBlock)
	}
	return nil
}
