package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// TraceLab reads the rounds of coding agents that the University of Washington's TraceLab
// publishes, a line each:
//
//	{"session_id": "claude:1", "user": "u", "project": "p", "input_tokens_total": 900, "prefix_tokens": 800, "output_tokens": 40,
//	 "timing_events": [{"event_type": "tool_result", "timestamp": "2026-03-01T10:00:00Z"}, {"event_type": "text", "timestamp": "2026-03-01T10:00:04Z"}],
//	 "tools": [{"tool_name": "Agent", "emitted_at": "2026-03-01T10:00:04Z", "result_at": "2026-03-01T10:01:04Z"}]}
//
// A round is a call: it begins with the last of its user_message and tool_result events and
// ends with the last of text, reasoning and tool_call. What was cached of its prompt is
// prefix_tokens; reasoning_output_tokens are part of the answer. A round without events is
// left out.
//
// A subagent is a session of its own, and nothing says whose. One of the same user and
// project that lies within a call of the tool Agent or Task, which waits for it and takes
// 10 s at least, is taken for the subagent of that call; of several such calls the shortest has it. The
// tools of other agents do not wait, so theirs stay sessions of their own.
//
// Rounds of a session need not be together, so all are read at once: some 200 bytes a round.
type TraceLab struct{ held }

// minSpawn is how long a tool's call with a subagent takes at least; shorter ones are those
// that failed.
const minSpawn = 10 * time.Second

// A traceLabRound is a line. tool_wall_latency_ms is passed over: it is the difference of two
// times that are there.
type traceLabRound struct {
	SessionID string   `json:"session_id"`
	User      string   `json:"user"`
	Project   string   `json:"project"`
	Input     *float64 `json:"input_tokens_total"`
	Prefix    *float64 `json:"prefix_tokens"`
	Output    *float64 `json:"output_tokens"`
	Reasoning *float64 `json:"reasoning_output_tokens"`
	Events    []struct {
		Type string `json:"event_type"`
		At   string `json:"timestamp"`
	} `json:"timing_events"`
	Tools []struct {
		Name    string `json:"tool_name"`
		Emitted string `json:"emitted_at"`
		Result  string `json:"result_at"`
	} `json:"tools"`
}

// A coder is a session as it is read.
type coder struct {
	id, user, project string
	items             []*item    // times since 1970
	spawns            [][2]int64 // from when to when tools ran that may have had a subagent
	start, end        int64
	inner             bool // it is a subagent
}

// OpenTraceLab reads a file, or the files of a folder.
func OpenTraceLab(path string) (*TraceLab, error) {
	names, err := files(path)
	if err != nil {
		return nil, err
	}
	all := map[string]*coder{}
	for _, name := range names {
		f, err := Open(name)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(readRounds(name, f, all), f.Close()); err != nil {
			return nil, err
		}
	}
	return newTraceLab(all), nil
}

// ReadTraceLab reads rounds from r. name is for errors.
func ReadTraceLab(name string, r io.Reader) (*TraceLab, error) {
	all := map[string]*coder{}
	if err := readRounds(name, r, all); err != nil {
		return nil, err
	}
	return newTraceLab(all), nil
}

// readRounds adds the rounds of a file to their sessions.
func readRounds(name string, r io.Reader, all map[string]*coder) error {
	rows := NewJSON(name, r, "")
	for {
		var v traceLabRound
		ok, err := rows.Next(&v)
		if !ok || err != nil {
			return err
		}
		if v.SessionID == "" {
			return rows.Fault(errors.New("session_id is missing: give it"))
		}
		c := all[v.SessionID]
		if c == nil {
			c = &coder{id: v.SessionID, user: v.User, project: v.Project, start: math.MaxInt64}
			all[v.SessionID] = c
		}
		if err := c.add(&v); err != nil {
			return rows.Fault(err)
		}
	}
}

// add adds a round.
func (c *coder) add(v *traceLabRound) error {
	var in, out int64 // the last of each
	for i, e := range v.Events {
		at, err := spanTime(fmt.Sprintf("timing_events[%d].timestamp", i), e.At, nil)
		if err != nil {
			return err
		}
		c.start, c.end = min(c.start, at), max(c.end, at)
		switch e.Type {
		case "user_message", "tool_result":
			in = max(in, at)
		case "text", "reasoning", "tool_call":
			out = max(out, at)
		}
	}
	for i, t := range v.Tools {
		if t.Emitted == "" || t.Result == "" {
			continue
		}
		from, err := spanTime(fmt.Sprintf("tools[%d].emitted_at", i), t.Emitted, nil)
		if err != nil {
			return err
		}
		to, err := spanTime(fmt.Sprintf("tools[%d].result_at", i), t.Result, nil)
		if err != nil {
			return err
		}
		c.start, c.end = min(c.start, from), max(c.end, to)
		if (t.Name == "Agent" || t.Name == "Task") && to-from >= int64(minSpawn) {
			c.spawns = append(c.spawns, [2]int64{from, to})
		}
	}
	if in == 0 && out == 0 {
		return nil
	}
	call := &Call{noEnd: out == 0, think: -1}
	var err error
	if call.Input, err = tokens("input_tokens_total", v.Input); err != nil {
		return err
	}
	if call.Output, err = tokens("output_tokens", v.Output); err != nil {
		return err
	}
	for _, more := range []struct {
		name string
		v    *float64
		to   *int
	}{{"prefix_tokens", v.Prefix, &call.Cached}, {"reasoning_output_tokens", v.Reasoning, &call.Output}} {
		if more.v == nil || *more.v == 0 {
			continue
		}
		n, err := tokens(more.name, more.v)
		if err != nil {
			return err
		}
		*more.to += n
	}
	start := in
	if in == 0 {
		start = out
	}
	c.items = append(c.items, &item{start: time.Duration(start), end: time.Duration(max(start, out)), call: call})
	return nil
}

// newTraceLab puts subagents into the sessions that they belong to, and those in order.
func newTraceLab(all map[string]*coder) *TraceLab {
	coders := make([]*coder, 0, len(all))
	for _, c := range all {
		if len(c.items) > 0 {
			coders = append(coders, c)
		}
	}
	// The shortest first: a subagent's own subagents are in place before it is.
	slices.SortFunc(coders, func(a, b *coder) int {
		return cmp.Or(cmp.Compare(a.end-a.start, b.end-b.start), cmp.Compare(a.id, b.id))
	})
	type owner struct{ user, project string }
	of := map[owner][]*coder{}
	for _, c := range coders {
		of[owner{c.user, c.project}] = append(of[owner{c.user, c.project}], c)
	}
	t := new(TraceLab)
	for _, c := range coders {
		c.join(of[owner{c.user, c.project}])
	}
	for _, c := range coders {
		if c.inner {
			continue
		}
		start := c.items[0].start
		for _, i := range c.items {
			start = min(start, i.start)
		}
		shift(c.items, start)
		t.sessions = append(t.sessions, newSession(c.id, time.Unix(0, int64(start)).UTC(), c.items))
	}
	t.sort()
	return t
}

// join puts a session into that of the tool's call which waited for it, if there is one: the
// shortest. A session as long as the call's own is no subagent of it, so none is in itself.
func (c *coder) join(others []*coder) {
	var to *coder
	var within [2]int64
	for _, o := range others {
		if o.end-o.start <= c.end-c.start {
			continue
		}
		for _, w := range o.spawns {
			if w[0] <= c.start && c.end <= w[1] && (to == nil || w[1]-w[0] < within[1]-within[0]) {
				to, within = o, w
			}
		}
	}
	if to != nil {
		c.inner = true
		to.items = append(to.items, &item{start: time.Duration(within[0]), end: time.Duration(within[1]), inner: c.items})
	}
}
