package load

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
	"kvferry/load/tooldraws"
	"kvferry/load/trace"
)

// A TimedTrace says how the lines of a trace are read, as vLLM's timed_trace does:
//
//	{"timestamp": 61.114, "input_length": 21, "output_length": 132, "hash_ids": [1089, 1090]}
//
// An id stands for ChunkSize tokens, the last for what remains; equal ids are equal tokens.
// Alibaba's traces of Qwen have 16 tokens and seconds, Mooncake's 512 and milliseconds.
// What a line has besides is passed over.
type TimedTrace struct {
	ChunkSize     int     // tokens of an id
	SecMultiplier float64 // makes seconds of a timestamp: 0.001 of milliseconds
	// Names of the fields; empty for those above.
	Timestamp, InputLength, OutputLength, HashIDs string
}

// timedTraceKnobs are the knobs of vLLM's traces.
var timedTraceKnobs = Knobs{
	{Name: "timed-trace-chunk-hash-size", Group: AskedGroup, Fields: []string{"TimedTrace.ChunkSize"}, Default: "16", Value: knob.Int(func(s *Spec) *int { return &s.TimedTrace.ChunkSize }), Help: "tokens that a hash id stands for; 512 in Mooncake's traces"},
	{Name: "timed-trace-sec-multiplier", Group: AskedGroup, Fields: []string{"TimedTrace.SecMultiplier"}, Default: "1", Value: knob.Float(func(s *Spec) *float64 { return &s.TimedTrace.SecMultiplier }), Help: "makes seconds of a timestamp; 0.001 in Mooncake's traces"},
	{Name: "timed-trace-label-timestamp", Group: AskedGroup, Fields: []string{"TimedTrace.Timestamp"}, Value: knob.Text(func(s *Spec) *string { return &s.TimedTrace.Timestamp }), Help: "the trace's field that says when a request comes (default timestamp)"},
	{Name: "timed-trace-label-input-length", Group: AskedGroup, Fields: []string{"TimedTrace.InputLength"}, Value: knob.Text(func(s *Spec) *string { return &s.TimedTrace.InputLength }), Help: "the trace's field with the tokens of a prompt (default input_length)"},
	{Name: "timed-trace-label-output-length", Group: AskedGroup, Fields: []string{"TimedTrace.OutputLength"}, Value: knob.Text(func(s *Spec) *string { return &s.TimedTrace.OutputLength }), Help: "the trace's field with the tokens of an answer (default output_length)"},
	{Name: "timed-trace-label-hash-ids", Group: AskedGroup, Fields: []string{"TimedTrace.HashIDs"}, Value: knob.Text(func(s *Spec) *string { return &s.TimedTrace.HashIDs }), Help: "the trace's field with the ids of a prompt's parts (default hash_ids)"},
}

// timedTraceKind is a trace of requests at times, with the ids of their blocks or without.
var timedTraceKind = Kind{
	Name:  "timed_trace",
	About: "the requests of a trace as vLLM reads it: times in seconds, ids of blocks of any size",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob, speedKnob}, timedTraceKnobs),
	Times: Recorded,
	Check: func(s Spec, bad *config.Faults) {
		checkTrace(s, bad)
		config.Between(bad, "TimedTrace.ChunkSize", s.TimedTrace.ChunkSize, 1, maxLen)
		if m := s.TimedTrace.SecMultiplier; !validSpeed(m) {
			bad.Add("TimedTrace.SecMultiplier", m, "use more than 0: 1 for timestamps in seconds, 0.001 for milliseconds")
		}
	},
	Open: func(s Spec) (Load, error) {
		f, err := trace.Open(s.File)
		if err != nil {
			return Load{}, err
		}
		l := Load{Source: newTimedTrace(s, trace.NewJSON(s.File, f, ""))}
		if s.Compat == CompatVLLM { // it seeds with 0 here, whatever --seed is
			g := newGenerators(0)
			l.Generators = &g
		}
		return l, nil
	},
}

// checkTrace checks what every trace in a file needs.
func checkTrace(s Spec, bad *config.Faults) {
	bad.Refuse(s.File == "", "File", nil, "name the file of a trace (--dataset-path, or --trace)")
	bad.Refuse(!validSpeed(s.Speed), "Speed", s.Speed, "use more than 0: at 2 requests come twice as fast")
	bad.Refuse(s.Requests < 0, "Requests", s.Requests, "use 1 or more, 0 for all")
	config.Between(bad, "Vocab", s.Vocab, 1, 1<<30)
}

// timedTrace reads a line at a time. Which fields a line has is known only when it runs, so it
// is read as a map: at half the speed of the trace kind, 70,000 lines a minute of 12,000 tokens.
type timedTrace struct {
	Spec
	rows   *trace.JSON
	label  TimedTrace // with names
	tokens vocabulary
	n      int
	last   time.Duration
	err    error // the first
}

// newTimedTrace begins with the first of the rows.
func newTimedTrace(s Spec, rows *trace.JSON) *timedTrace {
	label := s.TimedTrace
	config.Default(&label.Timestamp, "timestamp")
	config.Default(&label.InputLength, "input_length")
	config.Default(&label.OutputLength, "output_length")
	config.Default(&label.HashIDs, "hash_ids")
	return &timedTrace{Spec: s, rows: rows, label: label, tokens: newVocabulary(s)}
}

// Next parses the next line. One that is earlier than the one before it is due with that
// one, as vLLM's client sends it.
func (t *timedTrace) Next() (Request, bool, error) {
	if t.err != nil || t.Requests > 0 && t.n == t.Requests {
		return Request{}, false, t.err
	}
	var line map[string]json.RawMessage
	ok, err := t.rows.Next(&line)
	if !ok || err != nil {
		t.err = err
		return Request{}, false, err
	}
	r, err := t.request(line)
	if err != nil {
		t.err = t.rows.Fault(err)
		return Request{}, false, t.err
	}
	t.n++
	t.last = r.At
	return r, true, nil
}

// request is what a line asks for.
func (t *timedTrace) request(line map[string]json.RawMessage) (r Request, err error) {
	var at float64
	var ids []int64
	var input int
	if err := field(line, t.label.Timestamp, &at, true); err != nil {
		return r, err
	}
	seconds := at * t.label.SecMultiplier / t.Speed
	switch {
	case !(at >= 0):
		return r, fmt.Errorf("%s: %v: use 0 or more", t.label.Timestamp, at)
	case !(seconds <= never.Seconds()):
		return r, fmt.Errorf("%s: %v: too large for a time since the start", t.label.Timestamp, at)
	}
	r.At = max(t.last, time.Duration(seconds*1e9))
	if input, err = length(line, t.label.InputLength); err != nil {
		return r, err
	}
	if r.MaxTokens, err = length(line, t.label.OutputLength); err != nil {
		return r, err
	}
	if err := field(line, t.label.HashIDs, &ids, false); err != nil {
		return r, err
	}
	r.Prompt, err = t.prompt(ids, input)
	return r, err
}

// prompt has the tokens of the ids. Where they do not reach, vLLM's prompt is shorter than
// the trace says; ours goes on with tokens of this line's own.
func (t *timedTrace) prompt(ids []int64, left int) ([]kvcache.Token, error) {
	exact := t.Compat == CompatVLLM
	switch reach := len(ids) * t.label.ChunkSize; {
	case exact && len(ids) == 0:
		return nil, fmt.Errorf("%s is missing: vLLM would send an empty prompt, --compat none draws one", t.label.HashIDs)
	case !exact && len(ids) > 0 && reach < left/4: // then an id is of another size
		return nil, fmt.Errorf("%s: %d ids of %d tokens are %d of the prompt's %d: say how many an id has (--timed-trace-chunk-hash-size; Mooncake's have 512, and milliseconds: --timed-trace-sec-multiplier 0.001)", t.label.HashIDs, len(ids), t.label.ChunkSize, reach, left)
	}
	prompt := make([]kvcache.Token, 0, left)
	for _, id := range ids {
		n := min(t.label.ChunkSize, left)
		if exact {
			prompt = t.tokens.choices(prompt, n, tooldraws.NewPythonRandom(tooldraws.PythonHash(strconv.FormatInt(id, 10)+":"+strconv.Itoa(n))&0xffffffff))
		} else {
			prompt = fill(prompt, n, uint64(id)*0xd1342543de82ef95^t.Seed, t.Vocab)
		}
		left -= n
	}
	if !exact {
		prompt = fill(prompt, left, (uint64(t.n)+1)*0x9e6c63d0676a9a99^t.Seed, t.Vocab)
	}
	return prompt, nil
}

// Close closes the file.
func (t *timedTrace) Close() error { return t.rows.Close() }

// field reads a field of a line by its name.
func field(line map[string]json.RawMessage, name string, v any, must bool) error {
	text, ok := line[name]
	switch {
	case !ok && must:
		return fmt.Errorf("%s is missing: give it, or name the field that has it (--timed-trace-label-...)", name)
	case !ok:
		return nil
	}
	if err := config.Unmarshal(text, v, false); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// length reads a number of tokens.
func length(line map[string]json.RawMessage, name string) (int, error) {
	var n float64
	if err := field(line, name, &n, true); err != nil {
		return 0, err
	}
	return tokenCount(name, n)
}

// tokenCount is a number of tokens that a file has in a field.
func tokenCount(name string, n float64) (int, error) {
	if !(n >= 1 && n <= maxLen) || n != math.Trunc(n) {
		return 0, fmt.Errorf("%s: %v: use a whole number from 1 to %d", name, n, maxLen)
	}
	return int(n), nil
}

// A vocabulary is the tokens that vLLM's traces choose from, in ascending order: all but
// the special ones.
type vocabulary struct {
	n      int
	before []int // of the i-th special token: how many others are below it
}

// newVocabulary takes the ids to be 0 to Len-1, as tokenizers number them.
func newVocabulary(s Spec) vocabulary {
	if s.Tokenizer == nil {
		return vocabulary{n: s.Vocab}
	}
	special := slices.Sorted(slices.Values(s.Tokenizer.Special()))
	v := vocabulary{n: s.Tokenizer.Len() - len(special)}
	for i, id := range special {
		v.before = append(v.before, int(id)-i)
	}
	return v
}

// choices appends n tokens as random.choices draws them.
func (v vocabulary) choices(to []kvcache.Token, n int, from *tooldraws.PythonRandom) []kvcache.Token {
	for range n {
		id := from.Choices(v.n)
		if len(v.before) > 0 {
			id += sort.Search(len(v.before), func(i int) bool { return v.before[i] > id })
		}
		to = append(to, kvcache.Token(id))
	}
	return to
}
