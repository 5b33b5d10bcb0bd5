package load

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/trace"
)

// wekaKind are recorded sessions of coding agents.
var wekaKind = Kind{
	Name:  "weka",
	About: "agents' sessions in Weka's format: calls with the ids of their prompts' blocks, tools' times, subagents",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob, speedKnob, maxDelayKnob}, arrivalKnobs),
	Check: func(s Spec, bad *config.Faults) {
		checkTrace(s, bad)
		s.checkStarts(bad)
	},
	Open: func(s Spec) (Load, error) {
		open := func() (trace.Reader, error) { return trace.OpenWeka(s.File) }
		r, err := open()
		if err != nil {
			return Load{}, err
		}
		l := Load{Source: &sessions{Spec: s, from: r, prompt: wekaPrompt}}
		if s.drawsAll() {
			if l.Count, err = countSessions(open, s.Requests); err != nil {
				_ = r.Close()
				return Load{}, err
			}
		}
		return s.startSessions(l)
	},
}

// spansKind are recorded traces of agents.
var spansKind = Kind{
	Name:  "otel",
	About: "agents' traces: OpenTelemetry's GenAI spans, as a tree of calls with tools' times",
	Texts: true,
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob, speedKnob, untimedKnob, maxDelayKnob, recordedKnob}, arrivalKnobs),
	Check: func(s Spec, bad *config.Faults) {
		checkTrace(s, bad)
		if s.Untimed {
			s.checkStarts(bad)
		}
	},
	Open: func(s Spec) (Load, error) {
		r, err := trace.OpenSpans(s.File)
		if err != nil {
			return Load{}, err
		}
		return s.openHeld(r, r.Len())
	},
}

// traceLabKind are recorded rounds of coding agents.
var traceLabKind = Kind{
	Name:  "tracelab",
	About: "agents' rounds in TraceLab's format: token counts, tools' times, subagents",
	Texts: true,
	Knobs: spansKind.Knobs,
	Check: spansKind.Check,
	Open: func(s Spec) (Load, error) {
		r, err := trace.OpenTraceLab(s.File)
		if err != nil {
			return Load{}, err
		}
		return s.openHeld(r, r.Len())
	},
}

// openHeld begins a stream of n sessions, as recorded or at arrivals.
func (s Spec) openHeld(r trace.Reader, n int) (Load, error) {
	if s.Requests > 0 {
		n = min(n, s.Requests)
	}
	l := Load{Source: &sessions{Spec: s, from: r, prompt: spansPrompt}, Count: n}
	if s.Untimed {
		return s.startSessions(l)
	}
	l.Count = 0 // calls are more than sessions
	return l, nil
}

// checkStarts checks when sessions and conversations begin.
func (s Spec) checkStarts(bad *config.Faults) {
	if s.Functions.File != "" {
		bad.Add("Functions.File", s.Functions.File, "leave it out: sessions begin at a rate")
		return
	}
	s.checkArrivals(bad)
	bad.Refuse(s.MaxDelay < 0, "MaxDelay", s.MaxDelay, "use more than 0, 0 for no limit")
}

// drawsAll reports whether arrivals depend on how many there are.
func (s Spec) drawsAll() bool { return s.RampUp.Strategy != "" || s.arrivalMode() != "" }

// startSessions has sessions begin at the Spec's arrivals. Load.Count is how many there are,
// where that matters.
func (s Spec) startSessions(l Load) (Load, error) {
	if l.Generators == nil {
		g := newGenerators(s.Seed)
		l.Generators = &g
	}
	if s.File != "" && s.drawsAll() && l.Count == 0 {
		_ = l.Close()
		return Load{}, fmt.Errorf("%q: it has no requests", s.File)
	}
	starts, err := s.arrivals(Kind{}, &l)
	if err != nil {
		_ = l.Close()
		return Load{}, err
	}
	l.Source.(starter).startAt(starts)
	l.Count = 0
	return l, nil
}

// A starter is a source of sessions that begin at arrivals.
type starter interface{ startAt(a Arrivals) }

// countSessions takes a reader's sessions, n at most if n is not 0.
func countSessions(open func() (trace.Reader, error), n int) (count int, err error) {
	r, err := open()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for n == 0 || count < n {
		s, err := r.Next()
		if s == nil || err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

// sessions are the calls of recorded sessions. Sessions overlap, and the calls that follow
// none have to come in order of time: each comes with all that follows it and no later one,
// and the groups of the sessions that are under way are merged.
type sessions struct {
	Spec
	from   trace.Reader
	starts Arrivals // nil: as recorded
	prompt func(o *opened, call int, r *Request)

	read    int // sessions
	over    bool
	origin  time.Time // of the first session
	at      time.Duration
	coming  *opened // the next session, not in groups yet
	groups  groups
	divided int // groups so far
	current *group
	n       int   // requests so far
	err     error // the first
}

// opened is a session that is under way.
type opened struct {
	*trace.Session
	Spec
	at    time.Duration
	salt  uint64
	place []int // of its calls, in the stream
	group []int // whose group a call is in, as the place of the group's first in Calls
}

// A group is a call that follows none, and what follows it.
type group struct {
	at    time.Duration
	order int
	of    *opened
	calls []int
}

// startAt says when the sessions begin.
func (s *sessions) startAt(a Arrivals) { s.starts = a }

// Next is the next call of the group that is being given out. When it is over, the earliest
// group follows; a session is opened when it begins no later than that group, so what is in
// memory are the sessions that overlap.
func (s *sessions) Next() (Request, bool, error) {
	for s.err == nil {
		switch {
		case s.current != nil && len(s.current.calls) > 0:
			call := s.current.calls[0]
			s.current.calls = s.current.calls[1:]
			return s.request(s.current.of, call, s.current.at), true, nil
		case s.coming == nil && !s.over:
			s.err = s.open()
		case len(s.groups) > 0 && (s.coming == nil || s.groups[0].at <= s.coming.at):
			s.current = heap.Pop(&s.groups).(*group)
		case s.coming != nil:
			s.err = s.divide(s.coming)
			s.coming = nil
		default:
			return Request{}, false, nil
		}
	}
	return Request{}, false, s.err
}

// open reads the next session.
func (s *sessions) open() error {
	if s.Requests > 0 && s.read == s.Requests {
		s.over = true
		return nil
	}
	session, err := s.from.Next()
	if err != nil {
		return err
	}
	if session == nil {
		s.over = true
		return nil
	}
	first := session.Calls[0].Start
	switch {
	case s.starts != nil:
		if s.at, err = s.starts.Next(); err != nil {
			return err
		}
	case s.read == 0:
		s.origin = session.Start.Add(first)
	default:
		recorded := session.Start.Add(first).Sub(s.origin).Seconds() / s.Speed
		if recorded > never.Seconds() {
			return fmt.Errorf("%s: session %s begins too long after the first", s.File, session.ID)
		}
		s.at = max(s.at, time.Duration(recorded*1e9))
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(session.ID))
	s.coming = &opened{Session: session, Spec: s.Spec, at: s.at, salt: (h.Sum64()^uint64(s.read)*0x9e3779b97f4a7c15)*0xd1342543de82ef95 ^ s.Seed}
	s.read++
	return nil
}

// divide puts a session's calls in groups.
func (s *sessions) divide(o *opened) error {
	o.place = make([]int, len(o.Calls))
	o.group = make([]int, len(o.Calls))
	of := map[int]*group{}
	for i, c := range o.Calls {
		o.group[i] = i
		if len(c.After) > 0 {
			o.group[i] = 0
			for _, a := range c.After {
				o.group[i] = max(o.group[i], o.group[a])
			}
			g := of[o.group[i]]
			g.calls = append(g.calls, i)
			continue
		}
		at, err := due(s.n+1, o.at.Seconds()+(c.Start-o.Calls[0].Start).Seconds()/s.Speed)
		if err != nil {
			return fmt.Errorf("%s: session %s: %w", s.File, o.ID, err)
		}
		of[i] = &group{at: max(at, o.at), order: s.divided, of: o, calls: []int{i}}
		s.divided++
		heap.Push(&s.groups, of[i])
	}
	return nil
}

// request makes a request of a call, once those that it follows have their places in the
// stream.
func (s *sessions) request(o *opened, call int, at time.Duration) Request {
	c := o.Calls[call]
	o.place[call] = s.n
	s.n++
	r := Request{At: at, MaxTokens: o.output(c), Group: o.ID}
	if len(c.After) > 0 {
		// It is due when those before it have ended, however late that is.
		r.At = 0
		r.Delay = c.Delay
		if s.MaxDelay > 0 {
			r.Delay = min(r.Delay, s.MaxDelay)
		}
		r.Delay = time.Duration(min(float64(r.Delay)/s.Speed, float64(never)))
	}
	s.prompt(o, call, &r)
	for _, a := range c.After {
		if p := o.place[a]; !slices.Contains(r.After, p) {
			r.After = append(r.After, p)
		}
	}
	return r
}

// Close closes the recording.
func (s *sessions) Close() error { return s.from.Close() }

// wekaPrompt has the tokens of the blocks, and others of the call's own behind them.
func wekaPrompt(o *opened, call int, r *Request) {
	c := o.Calls[call]
	salt := o.salt
	if c.Shared {
		salt = o.Seed
	}
	// Ids are small numbers from 0: without the 1 the first would have no part in the seed.
	r.Prompt = make([]kvcache.Token, 0, c.Input)
	for _, id := range c.Blocks {
		r.Prompt = fill(r.Prompt, c.BlockSize, (uint64(id)+1)*0xd1342543de82ef95^salt, o.Vocab)
	}
	r.Prompt = fill(r.Prompt, c.Input-len(r.Prompt), o.own(call), o.Vocab)
}

// own is the seed of a call's own tokens.
func (o *opened) own(call int) uint64 { return (uint64(call)+1)*0x9e6c63d0676a9a99 ^ o.salt }

// spansPrompt has the texts, if they were recorded, else tokens. A call that goes on with
// the context of its agent's last one continues it.
func spansPrompt(o *opened, call int, r *Request) {
	c := o.Calls[call]
	fresh, follows := o.goesOn(call)
	continues := follows && !o.Recorded && o.group[c.Before] == o.group[call]
	switch {
	case len(c.Messages) == 0 && !continues:
		r.Prompt = o.tokens(call, o.Vocab)
	case len(c.Messages) == 0:
		r.Prompt = fill(nil, fresh, o.own(call), o.Vocab)
	case !continues:
		r.Messages = spoken(c.Messages)
	default:
		r.Messages = spoken(c.Messages[len(c.Messages)-fresh:])
	}
	if len(r.Messages) > 0 {
		r.Text = plainChat(r.Messages, continues)
		if o.Tokenizer != nil {
			r.Prompt = o.Tokenizer.Encode(r.Text, !continues)
		}
	}
	if continues {
		r.Continues = true
		r.After = []int{o.place[c.Before]}
	}
}

// goesOn reports whether a call's prompt is the whole one of its agent's last call, that
// one's answer, and how much more: messages, or tokens if no texts were recorded.
func (o *opened) goesOn(call int) (more int, yes bool) {
	c := o.Calls[call]
	if c.Before < 0 {
		return 0, false
	}
	b := o.Calls[c.Before]
	if len(c.Messages) > 0 {
		n := len(b.Messages)
		if n == 0 || len(c.Messages) < n+2 || !slices.Equal(c.Messages[:n], b.Messages) || c.Messages[n].Role != "assistant" {
			return 0, false
		}
		return len(c.Messages) - n - 1, true
	}
	more = c.Input - b.Input - o.output(b)
	return more, len(b.Messages) == 0 && more > 0
}

// tokens are a whole prompt of a call without texts. What was cached of it begins as the
// agent's first call, where it does not go on with another.
func (o *opened) tokens(call, vocab int) []kvcache.Token {
	c := o.Calls[call]
	if more, yes := o.goesOn(call); yes {
		prompt := fill(o.tokens(c.Before, vocab), o.output(o.Calls[c.Before]), ^o.own(c.Before), vocab)
		return fill(prompt, more, o.own(call), vocab)
	}
	first := c.Before
	for first >= 0 && o.Calls[first].Before >= 0 {
		first = o.Calls[first].Before
	}
	prompt := make([]kvcache.Token, 0, c.Input)
	if first >= 0 && len(o.Calls[first].Messages) == 0 {
		prompt = fill(prompt, min(c.Cached, o.Calls[first].Input, c.Input-1), o.own(first), vocab)
	}
	return fill(prompt, c.Input-len(prompt), o.own(call), vocab)
}

// output is how long a call's answer was: where only its text is known, in tokens of the
// tokenizer, or in words.
func (o *opened) output(c *trace.Call) int {
	if c.Output > 0 {
		return c.Output
	}
	return answerLen(o.Tokenizer, c.Answer)
}

// spoken are messages as a load has them.
func spoken(of []trace.Message) []Message {
	all := make([]Message, len(of))
	for i, m := range of {
		all[i] = Message(m)
	}
	return all
}

// plainChat is a conversation as a text for endpoints that take no messages: a line for each,
// role first, and the assistant's turn begun. Behind an answer it begins on a new line.
func plainChat(messages []Message, continues bool) string {
	var b strings.Builder
	if continues {
		b.WriteString("\n")
	}
	for _, m := range messages {
		b.WriteString(m.Role)
		b.WriteString(": ")
		b.WriteString(m.Content)
		b.WriteString("\n")
	}
	b.WriteString("assistant:")
	return b.String()
}

// groups have the earliest first, of equal ones that of the session that came first.
type groups []*group

func (g groups) Len() int { return len(g) }
func (g groups) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(g[i].at, g[j].at), cmp.Compare(g[i].order, g[j].order)) < 0
}
func (g groups) Swap(i, j int) { g[i], g[j] = g[j], g[i] }
func (g *groups) Push(x any)   { *g = append(*g, x.(*group)) }
func (g *groups) Pop() any {
	last := (*g)[len(*g)-1]
	(*g)[len(*g)-1] = nil
	*g = (*g)[:len(*g)-1]
	return last
}
