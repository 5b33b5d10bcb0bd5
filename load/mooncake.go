package load

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/load/trace"
)

// Mooncake says how SGLang replays a trace of Mooncake's.
type Mooncake struct {
	Slowdown float64 // times are multiplied by it: at 2 the replay takes twice as long
	Rounds   int     // turns of each line's conversation, which come all at once
}

// mooncakeKnobs are the knobs of SGLang's replay of Mooncake's traces.
var mooncakeKnobs = Knobs{
	{Name: "mooncake-slowdown-factor", Group: AskedGroup, Fields: []string{"Mooncake.Slowdown"}, Default: "1", Value: knob.Float(func(s *Spec) *float64 { return &s.Mooncake.Slowdown }), Help: "times of the mooncake dataset are multiplied by it"},
	{Name: "mooncake-num-rounds", Group: AskedGroup, Fields: []string{"Mooncake.Rounds"}, Default: "1", Value: knob.Int(func(s *Spec) *int { return &s.Mooncake.Rounds }), Help: "requests for each line of the mooncake dataset, all at once"},
}

// mooncakeKind is a trace of Mooncake's as sglang.bench_serving asks it: texts that only
// repeat its ids.
var mooncakeKind = Kind{
	Name:  "mooncake",
	About: "Mooncake's traces as SGLang asks them: texts made of the ids, shorter than the trace says",
	Knobs: slices.Concat(Knobs{fileKnob}, mooncakeKnobs),
	Texts: true,
	Times: Recorded,
	Check: func(s Spec, bad *config.Faults) {
		s.Speed = 1 // Slowdown has its part
		checkTrace(s, bad)
		bad.Refuse(!validSpeed(s.Mooncake.Slowdown), "Mooncake.Slowdown", s.Mooncake.Slowdown, "use more than 0: at 2 requests come half as fast")
		config.Between(bad, "Mooncake.Rounds", s.Mooncake.Rounds, 1, 1000)
	},
	Open: func(s Spec) (Load, error) {
		f, err := trace.Open(s.File)
		if err != nil {
			return Load{}, err
		}
		m, err := newMooncake(s, f)
		if err != nil {
			_ = f.Close()
			return Load{}, err
		}
		return Load{
			Source: m, Count: m.lines * s.Mooncake.Rounds,
			Notes: []string{"The mooncake dataset's prompts repeat the trace's ids in text, as SGLang makes them; their lengths are not those of the trace."},
		}, nil
	},
}

// mooncake are the requests of the first Spec.Requests lines, sorted by time. SGLang sorts,
// so this does: a first pass over the file looks whether it is sorted. If not, that pass
// keeps 16 bytes a line and the lines are read again one by one.
type mooncake struct {
	Spec
	file   *os.File
	rows   *trace.JSON // of a file in order
	order  []mooncakeLine
	lines  int // in all
	n      int // taken
	first  float64
	line   mooncakeRecord
	at     time.Duration
	rounds int // of the line that have gone
	said   []Message
	err    error // the first
}

// A mooncakeLine is where a line is.
type mooncakeLine struct {
	timestamp float64
	offset    int64
}

// A mooncakeRecord is what SGLang reads of a line. It does not read input_length, so neither
// does the prompt depend on it.
type mooncakeRecord struct {
	Timestamp    *float64 `json:"timestamp"` // ms
	OutputLength *float64 `json:"output_length"`
	HashIDs      []int64  `json:"hash_ids"`
}

// newMooncake looks through the lines, the first Spec.Requests of them as SGLang takes them
// before it sorts.
func newMooncake(s Spec, f *os.File) (*mooncake, error) {
	m := &mooncake{Spec: s, file: f}
	rows := trace.NewJSON(s.File, io.NopCloser(f), "")
	sorted, last := true, math.Inf(-1)
	for s.Requests == 0 || m.lines < s.Requests {
		var r mooncakeRecord
		ok, err := rows.Next(&r)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if err := r.check(s.Mooncake.Slowdown); err != nil {
			return nil, rows.Fault(err)
		}
		m.lines++
		m.order = append(m.order, mooncakeLine{*r.Timestamp, rows.Offset()})
		sorted = sorted && *r.Timestamp >= last
		last = *r.Timestamp
	}
	if m.lines == 0 {
		return m, nil
	}
	slices.SortStableFunc(m.order, func(a, b mooncakeLine) int { return cmp.Compare(a.timestamp, b.timestamp) })
	m.first = m.order[0].timestamp
	if !sorted {
		return m, nil
	}
	m.order = nil
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("%s: %w", s.File, err)
	}
	m.rows = trace.NewJSON(s.File, io.NopCloser(f), "")
	return m, nil
}

// check says what is wrong with a line.
func (r *mooncakeRecord) check(slowdown float64) error {
	switch {
	case r.Timestamp == nil:
		return fmt.Errorf("timestamp is missing: give milliseconds since the start")
	case !(math.Abs(*r.Timestamp)*slowdown/1000 < never.Seconds()/2):
		return fmt.Errorf("timestamp: %v: too large for milliseconds since the start", *r.Timestamp)
	case r.OutputLength == nil:
		return nil
	}
	_, err := tokenCount("output_length", *r.OutputLength)
	return err
}

// Next is the next round of this line, or the first of the next one. Rounds do not wait for
// answers: SGLang puts a stand-in of as many words as were wanted in the answer's place.
func (m *mooncake) Next() (Request, bool, error) {
	if m.rounds == 0 || m.rounds == m.Mooncake.Rounds {
		if m.err != nil || m.n == m.lines {
			return Request{}, false, m.err
		}
		if m.err = m.read(); m.err != nil {
			return Request{}, false, m.err
		}
	}
	m.rounds++
	output := 256 // SGLang's own
	if m.line.OutputLength != nil {
		output = int(*m.line.OutputLength)
	}
	var query strings.Builder
	fmt.Fprintf(&query, "Round %d: ", m.rounds)
	for _, id := range m.line.HashIDs {
		query.WriteString(strconv.FormatInt(id, 10))
		query.WriteString(his)
	}
	query.WriteString("Tell me a story based on this context.")
	m.said = append(m.said, Message{"user", query.String()})
	r := Request{At: m.at, Text: m.text(), MaxTokens: output, Group: strconv.Itoa(m.n - 1)}
	if m.Tokenizer != nil {
		r.Prompt = m.Tokenizer.Encode(r.Text, true)
	}
	m.said = append(m.said, Message{"assistant", strings.TrimSuffix(strings.Repeat("story ", output), " ")})
	return r, true, nil
}

// his stands behind each id.
var his = strings.TrimSuffix(strings.Repeat("hi ", 128), " ")

// text is what was said so far in the model's template, or in SGLang's stand-in for one.
func (m *mooncake) text() string {
	if m.Tokenizer != nil {
		if text, err := m.Tokenizer.Chat(m.said, true); err == nil {
			return text
		}
	}
	var lines []string
	for _, s := range m.said {
		lines = append(lines, s.Role+": "+s.Content)
	}
	return strings.Join(lines, "\n")
}

// read reads the next line.
func (m *mooncake) read() error {
	rows := m.rows
	if rows == nil {
		from := io.NewSectionReader(m.file, m.order[m.n].offset, math.MaxInt64-m.order[m.n].offset)
		rows = trace.NewJSON(m.File, from, "")
	}
	m.line, m.rounds, m.said = mooncakeRecord{}, 0, nil
	ok, err := rows.Next(&m.line)
	switch {
	case err != nil:
		return err
	case !ok || m.line.check(m.Mooncake.Slowdown) != nil:
		return fmt.Errorf("%s: it changed while it was read", m.File)
	}
	m.n++
	m.at = time.Duration((*m.line.Timestamp - m.first) / 1000 * m.Mooncake.Slowdown * 1e9)
	return nil
}

// Close closes the file.
func (m *mooncake) Close() error { return m.file.Close() }
