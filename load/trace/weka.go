package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"
)

// Weka reads sessions in the format of Weka's kv-cache-tester, in which the agentic coding
// traces of SemiAnalysis's InferenceX are published: a JSON object a session,
//
//	{"id": "s1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
//	  {"t": 0, "type": "n", "model": "m", "in": 200, "out": 40, "hash_ids": [1, 2, 3], "api_time": 1.5},
//	  {"t": 2, "type": "subagent", "agent_id": "a1", "duration_ms": 4000, "requests": [ ... ]},
//	  {"t": 8.25, "type": "s", "model": "m", "in": 260, "out": 10, "hash_ids": [1, 2, 3, 4]}]}
//
// t is in seconds since the session began; that of a subagent's requests may also be since
// it was started, and is taken so if its first one is before its start. A request ends
// api_time after t. An id stands for a whole block of block_size tokens and those before it; one for
// a part of a block at the end is left out, and so is what a request has beyond that: it has tokens of its own there. An agent that was
// launched without being waited for has the status async_launched: nothing follows it.
type Weka struct {
	files []string // still to be opened
	rows  *JSON
	err   error // the first
}

// OpenWeka reads a file of sessions, or the files of a folder.
func OpenWeka(path string) (*Weka, error) {
	names, err := files(path)
	if err != nil {
		return nil, err
	}
	return &Weka{files: names}, nil
}

// ReadWeka reads sessions from r. name is for errors.
func ReadWeka(name string, r io.Reader) *Weka { return &Weka{rows: NewJSON(name, r, "")} }

// A wekaSession is a record. Sizes of the tools' and the system's prompts are in the format too;
// they are parts of the first blocks, whose ids say what is shared.
type wekaSession struct {
	ID        string        `json:"id"`
	BlockSize int           `json:"block_size"`
	Scope     string        `json:"hash_id_scope"`
	Requests  []wekaRequest `json:"requests"`
}

// A wekaRequest is a call or an agent that is started, as type says; pointers tell what is
// missing. in and out are tokens.
type wekaRequest struct {
	T         *float64      `json:"t"` // s
	Type      string        `json:"type"`
	In        *float64      `json:"in"`
	Out       *float64      `json:"out"`
	HashIDs   []int64       `json:"hash_ids"`
	APITime   *float64      `json:"api_time"`   // s
	ThinkTime *float64      `json:"think_time"` // s
	Duration  *float64      `json:"duration_ms"`
	Status    string        `json:"status"`
	Requests  []wekaRequest `json:"requests"`
}

// Next is the next session, nil after the last.
func (w *Weka) Next() (*Session, error) {
	for w.err == nil {
		if w.rows == nil {
			if len(w.files) == 0 {
				return nil, nil
			}
			var f *os.File
			if f, w.err = Open(w.files[0]); w.err != nil {
				break
			}
			w.rows = NewJSON(w.files[0], f, "")
			w.files = w.files[1:]
		}
		var s wekaSession
		ok, err := w.rows.Next(&s)
		if err != nil {
			w.err = err
			break
		}
		if !ok {
			w.err = w.rows.Close()
			w.rows = nil
			continue
		}
		session, err := s.session()
		if err != nil {
			w.err = w.rows.Fault(err)
			break
		}
		return session, nil
	}
	return nil, w.err
}

// Close closes the file that is read.
func (w *Weka) Close() error {
	if w.rows == nil {
		return nil
	}
	return w.rows.Close()
}

// session is the record with its calls in order.
func (s *wekaSession) session() (*Session, error) {
	if s.BlockSize < 1 || s.BlockSize > maxTokens {
		return nil, fmt.Errorf("block_size: %d: use 1 to %d tokens", s.BlockSize, maxTokens)
	}
	switch s.Scope {
	case "", "local", "global":
	default:
		return nil, fmt.Errorf("hash_id_scope: %q: use local or global", s.Scope)
	}
	items, err := s.items(s.Requests, 0, "requests")
	if err != nil {
		return nil, err
	}
	session := newSession(s.ID, time.Time{}, items)
	if len(session.Calls) == 0 {
		return nil, errors.New("requests: there is none: leave the session out")
	}
	return session, nil
}

// items are what an agent did; its times begin at zero.
func (s *wekaSession) items(requests []wekaRequest, zero time.Duration, where string) (items []*item, err error) {
	for n, r := range requests {
		i, err := s.item(r, zero, fmt.Sprintf("%s[%d]", where, n))
		if err != nil {
			return nil, err
		}
		if i.call != nil || len(i.inner) > 0 {
			items = append(items, i)
		}
	}
	return items, nil
}

// item is one of the requests; where is its place in the file, for errors.
func (s *wekaSession) item(r wekaRequest, zero time.Duration, where string) (*item, error) {
	start, err := seconds(where+".t", r.T)
	if err != nil {
		return nil, err
	}
	i := &item{start: zero + start}
	if r.Type == "subagent" {
		return i, s.agent(r, i, where)
	}
	if r.Type != "n" && r.Type != "s" {
		return nil, fmt.Errorf("%s.type: %q: use n, s or subagent", where, r.Type)
	}
	c := &Call{Start: i.start, End: i.start, BlockSize: s.BlockSize, Shared: s.Scope == "global", noEnd: r.APITime == nil, think: -1}
	i.call = c
	if c.Input, err = tokens(where+".in", r.In); err != nil {
		return nil, err
	}
	if c.Output, err = tokens(where+".out", r.Out); err != nil {
		return nil, err
	}
	blocks := c.Input / s.BlockSize
	if most := (c.Input + s.BlockSize - 1) / s.BlockSize; len(r.HashIDs) > most {
		return nil, fmt.Errorf("%s.hash_ids: %d of them: %d tokens are %d blocks of %d", where, len(r.HashIDs), c.Input, most, s.BlockSize)
	}
	c.Blocks = r.HashIDs[:min(blocks, len(r.HashIDs))]
	if r.APITime != nil {
		took, err := seconds(where+".api_time", r.APITime)
		if err != nil {
			return nil, err
		}
		c.End += took
	}
	if r.ThinkTime != nil {
		if c.think, err = seconds(where+".think_time", r.ThinkTime); err != nil {
			return nil, err
		}
	}
	i.end = c.End
	return i, nil
}

// agent fills in the item of an agent that was started.
func (s *wekaSession) agent(r wekaRequest, i *item, where string) (err error) {
	var zero time.Duration
	if len(r.Requests) > 0 {
		first, err := seconds(where+".requests[0].t", r.Requests[0].T)
		if err != nil {
			return err
		}
		// The specification has times since the agent was started; the published sessions have
		// them since the session began. What is before the start can only be the former.
		if first < i.start {
			zero = i.start
		}
	}
	if i.inner, err = s.items(r.Requests, zero, where+".requests"); err != nil {
		return err
	}
	i.end = i.start
	for _, in := range i.inner {
		i.end = max(i.end, in.end)
	}
	if r.Duration != nil {
		if !(*r.Duration >= 0 && *r.Duration/1000 <= maxSeconds) {
			return fmt.Errorf("%s.duration_ms: %v: use 0 or more milliseconds", where, *r.Duration)
		}
		i.end = max(i.end, i.start+time.Duration(math.Round(*r.Duration*1e6)))
	}
	// Nobody waits for it, so it never ends as far as others are concerned.
	if r.Status == "async_launched" {
		i.end = math.MaxInt64
	}
	return nil
}

// maxSeconds bounds times in a session: 31 years. maxTokens bounds a prompt.
const (
	maxSeconds = 1e9
	maxTokens  = 1 << 24
)

// seconds reads a time in a session, to the nanosecond.
func seconds(field string, v *float64) (time.Duration, error) {
	switch {
	case v == nil:
		return 0, fmt.Errorf("%s is missing: give it in seconds", field)
	case !(*v >= 0 && *v <= maxSeconds):
		return 0, fmt.Errorf("%s: %v: use 0 or more seconds", field, *v)
	}
	return time.Duration(math.Round(*v * 1e9)), nil
}

// tokens is a number of tokens; 0, which a call that failed may have, is 1, as nobody can
// ask for none.
func tokens(field string, v *float64) (int, error) {
	switch {
	case v == nil:
		return 0, fmt.Errorf("%s is missing: give its tokens", field)
	case !(*v >= 0 && *v <= maxTokens) || *v != math.Trunc(*v):
		return 0, fmt.Errorf("%s: %v: use a whole number up to %d", field, *v, maxTokens)
	}
	return max(int(*v), 1), nil
}
