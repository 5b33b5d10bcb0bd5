package trace

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Session is one run of an agent, with those that it started.
type Session struct {
	ID    string
	Start time.Time // zero where only the times within the session are known
	Calls []*Call   // in order of their starts, each behind those that it follows
}

// A Call is one request to the model.
type Call struct {
	Start, End time.Duration
	Input      int
	Output     int // 0 if it was not recorded: then there is an Answer

	// After are calls before this one in the list that it waits for, and Delay is how long
	// after the last of them has ended it begins.
	After []int
	Delay time.Duration
	// Before is the last call of the same agent that had ended, whose context this one may
	// go on with; -1 for none.
	Before int

	// Blocks are the ids of the prompt's whole blocks of BlockSize tokens, of Weka. Equal ids
	// are equal tokens, in the session or in the file as Shared says.
	Blocks    []int64
	BlockSize int
	Shared    bool

	// Cached is how many tokens of the prompt came from a cache when it was recorded.
	Cached int
	// Messages are the prompt, and Answer is what the model said, where texts were recorded.
	Messages []Message
	Answer   string

	after  []*Call
	before *Call
	noEnd  bool          // End was not recorded: it is Start
	think  time.Duration // recorded time before the call, if noEnd leaves none to work out; negative for none
}

// A Message is a turn of a conversation.
type Message struct{ Role, Content string }

// A Reader has the sessions of a recording, one after the other; none if nil.
type Reader interface {
	Next() (*Session, error)
	Close() error
}

// held are sessions that were read at once, in order of their starts.
type held struct {
	sessions []*Session
	n        int // given out
}

// Len is how many sessions there are.
func (h *held) Len() int { return len(h.sessions) }

// Next is the next session, nil after the last.
func (h *held) Next() (*Session, error) {
	if h.n == len(h.sessions) {
		return nil, nil
	}
	h.n++
	s := h.sessions[h.n-1]
	h.sessions[h.n-1] = nil
	return s, nil
}

// Close has nothing to close: all was read.
func (h *held) Close() error { return nil }

// sort puts the sessions in order of their starts, equal ones of their names: maps have none.
func (h *held) sort() {
	slices.SortFunc(h.sessions, func(a, b *Session) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID)) })
}

// files are a file, or those of a folder whose names end in .json or .jsonl, by name.
func files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		f, err := Open(path) // what is wrong with it, in plain words
		if err != nil {
			return nil, err
		}
		return []string{path}, f.Close()
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name := e.Name(); !e.IsDir() && (strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".jsonl")) {
			names = append(names, filepath.Join(path, name))
		}
	}
	return names, nil
}

// An item is what an agent did at a time: a call, or another agent that it started, with
// what that one did.
type item struct {
	start, end time.Duration
	call       *Call
	inner      []*item

	after []*item // of the same agent, that had ended
	over  []*Call // what a call that waits for the item waits for
}

// newSession works out which call follows which.
func newSession(id string, start time.Time, items []*item) *Session {
	var all []*Call
	link(items, nil, &all)
	// link has each call behind those that it follows, which started no later: so it stays.
	slices.SortStableFunc(all, func(a, b *Call) int { return cmp.Compare(a.Start, b.Start) })
	place := make(map[*Call]int, len(all))
	for i, c := range all {
		place[c] = i
	}
	for _, c := range all {
		for _, f := range c.after {
			c.After = append(c.After, place[f])
		}
		slices.Sort(c.After)
		c.After = slices.Compact(c.After)
		c.Before = -1
		if c.before != nil {
			c.Before = place[c.before]
		}
		c.after, c.before = nil, nil
		c.delay(all)
	}
	return &Session{ID: id, Start: start, Calls: all}
}

// delay is what lies between a call and those that it waits for.
func (c *Call) delay(all []*Call) {
	known := true
	var end time.Duration
	for _, i := range c.After {
		known = known && !all[i].noEnd
		end = max(end, all[i].End)
	}
	switch {
	case len(c.After) == 0:
	case known:
		c.Delay = max(c.Start-end, 0)
	default:
		c.Delay = max(c.think, 0)
	}
}

// link goes through what one agent did, in order of time. A call, or an agent that is
// started, follows what had ended by then, except what something that had also ended
// already follows; first is what the agent's first ones follow. So what runs side by side
// follows the same, and what comes after all of it follows each:
//
//	plan ──┬── search ──┬── answer
//	       └── read ────┘
//
// It appends the calls to all, and returns those that are followed by what waits for the
// agent.
func link(items []*item, first []*Call, all *[]*Call) (over []*Call) {
	slices.SortStableFunc(items, func(a, b *item) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end)) })
	var running, ended []*item
	var before *Call // the last call of this agent that has ended
	finish := func(by time.Duration, all bool) {
		running = slices.DeleteFunc(running, func(i *item) bool {
			if i.end > by && !all {
				return false
			}
			ended = slices.DeleteFunc(ended, func(e *item) bool { return slices.Contains(i.after, e) })
			ended = append(ended, i)
			if i.call != nil && (before == nil || i.end >= before.End) {
				before = i.call
			}
			return true
		})
	}
	calls := func(of []*item) (list []*Call) {
		for _, i := range of {
			list = append(list, i.over...)
		}
		return list
	}
	for _, i := range items {
		finish(i.start, false)
		i.after = slices.Clone(ended)
		follows := calls(ended)
		if len(ended) == 0 {
			follows = first
		}
		if c := i.call; c != nil {
			c.after, c.before = follows, before
			*all = append(*all, c)
			i.over = []*Call{c}
		} else {
			i.over = link(i.inner, follows, all)
		}
		running = append(running, i)
	}
	finish(0, true)
	return calls(ended)
}
