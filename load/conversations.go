package load

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
	"kvferry/load/trace"
)

// Conversations say what is taken of a file of conversations. Spec.Requests counts
// conversations here.
type Conversations struct {
	MaxTurns  int // what a user says, at most; 0 for all of it
	Offset    int // conversations to begin behind; those before it come last
	OutputLen int // tokens of an answer whose length the file does not say; 0: as the one that was recorded
}

// conversationKnobs are the knobs of conversations in a file.
var conversationKnobs = Knobs{
	{Name: "conversation-max-turns", Aliases: []string{"agentic-max-turns"}, Group: AskedGroup, Fields: []string{"Conversations.MaxTurns"}, Value: knob.Int(func(s *Spec) *int { return &s.Conversations.MaxTurns }), Help: "turns of a conversation of a file, at most (default: all)"},
	{Name: "conversation-offset", Aliases: []string{"dataset-offset"}, Group: AskedGroup, Fields: []string{"Conversations.Offset"}, Value: knob.Int(func(s *Spec) *int { return &s.Conversations.Offset }), Help: "conversations of the file to begin behind"},
	{Name: "conversation-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"Conversations.OutputLen"}, Value: knob.Int(func(s *Spec) *int { return &s.Conversations.OutputLen }), Help: "tokens of an answer whose length the file does not say (default: as the recorded one)"},
}

// conversationKind are conversations in a file.
var conversationKind = Kind{
	Name:  "conversation",
	About: "conversations in a file: each turn waits for the server's answer to the one before it",
	Texts: true,
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob, speedKnob, untimedKnob, maxDelayKnob, recordedKnob}, conversationKnobs, arrivalKnobs),
	Check: func(s Spec, bad *config.Faults) {
		checkTrace(s, bad)
		s.checkStarts(bad)
		s.checkConversations(bad)
		config.Between(bad, "Conversations.OutputLen", s.Conversations.OutputLen, 0, maxLen)
	},
	Open: func(s Spec) (Load, error) { return s.openConversations("", &fileTurns{Spec: s}) },
}

// agenticTraceKind is SGLang's dataset of that name.
var agenticTraceKind = Kind{
	Name:  "agentic-trace",
	About: "SGLang's agentic-trace: conversations of agents, with what the tools said in each turn",
	Texts: true,
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob, recordedKnob}, shareGPTKnobs[:1], conversationKnobs[:2], arrivalKnobs),
	Check: func(s Spec, bad *config.Faults) {
		s.Speed = 1
		checkTrace(s, bad)
		s.checkStarts(bad)
		s.checkConversations(bad)
		config.Between(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, 0, maxLen)
		bad.Refuse(s.Recorded, "Recorded", s.Recorded, "leave it out: the file has no answers")
	},
	Open: func(s Spec) (Load, error) {
		s.Speed = 1
		return s.openConversations("conversations", &agenticTurns{Spec: s})
	},
}

// checkConversations checks what is taken of a file.
func (s Spec) checkConversations(bad *config.Faults) {
	bad.Refuse(s.Conversations.MaxTurns < 0, "Conversations.MaxTurns", s.Conversations.MaxTurns, "use 1 or more, 0 for all")
	bad.Refuse(s.Conversations.Offset < 0, "Conversations.Offset", s.Conversations.Offset, "use 0 or more")
}

// A turn is what is asked at once.
type turn struct {
	messages []Message       // nil if there are only tokens
	prompt   []kvcache.Token // else
	answer   *Message        // that was recorded
	output   int             // tokens of the answer
	delay    time.Duration   // after the answer to the turn before it
	at       *float64        // ms, recorded; nil for none
}

// A conversation is its turns, with a name.
type conversation struct {
	id    string
	turns []turn
}

// A format makes a conversation of the next records; none if there are no turns. It is told
// when the records begin again.
type format interface {
	next(rows *trace.JSON) (c conversation, ok bool, err error)
	rewind()
}

// openConversations begins a stream of conversations in the Spec's file. key is where a file
// that is one object has them.
func (s Spec) openConversations(key string, f format) (Load, error) {
	c := &conversations{Spec: s, key: key, format: f}
	// The number of conversations is needed where some are put last, and where arrivals depend on
	// it. Then the file is looked through once more, and nothing of it is kept.
	if s.Conversations.Offset > 0 || s.drawsAll() {
		n, err := c.count()
		if err != nil {
			return Load{}, err
		}
		if c.left = n; s.Requests > 0 {
			c.left = min(n, s.Requests)
		}
		if n > 0 {
			c.skip = s.Conversations.Offset % n
		}
	} else if c.left = -1; s.Requests > 0 {
		c.left = s.Requests
	}
	if err := c.reopen(); err != nil {
		return Load{}, err
	}
	return s.startSessions(Load{Source: c, Count: max(c.left, 0)})
}

// conversations are the turns of one conversation after the other: those of one come
// together, and wait for one another.
type conversations struct {
	Spec
	key    string
	format format
	rows   *trace.JSON
	starts Arrivals

	skip   int // conversations to pass over, which come last
	left   int // conversations still to come, negative for all there are
	again  bool
	taken  int
	timed  bool // the conversations have times
	origin float64
	at     time.Duration
	now    conversation
	turn   int
	said   []Message // of it, if recorded answers are sent
	tokens []kvcache.Token
	n      int   // requests so far
	err    error // the first
}

// startAt says when the conversations begin.
func (c *conversations) startAt(a Arrivals) { c.starts = a }

// count looks through the file.
func (c *conversations) count() (n int, err error) {
	if err := c.reopen(); err != nil {
		return 0, err
	}
	for {
		_, ok, err := c.format.next(c.rows)
		if !ok || err != nil {
			return n, errors.Join(err, c.rows.Close())
		}
		n++
	}
}

// reopen begins the file, again if it was begun.
func (c *conversations) reopen() error {
	f, err := trace.Open(c.File)
	if err != nil {
		return err
	}
	c.rows = trace.NewJSON(c.File, f, c.key)
	c.format.rewind()
	return nil
}

// Next is the next turn of this conversation, or the first of the next one.
func (c *conversations) Next() (Request, bool, error) {
	for c.err == nil {
		if c.turn < len(c.now.turns) {
			return c.request(), true, nil
		}
		ok, err := c.begin()
		if c.err = err; !ok {
			return Request{}, false, err
		}
	}
	return Request{}, false, c.err
}

// begin goes on to the next conversation.
func (c *conversations) begin() (ok bool, err error) {
	if c.left == 0 {
		return false, nil
	}
	for ; c.skip > 0; c.skip-- {
		if _, ok, err := c.format.next(c.rows); !ok || err != nil {
			return false, err
		}
	}
	now, ok, err := c.format.next(c.rows)
	if err != nil {
		return false, err
	}
	if !ok {
		if c.Conversations.Offset == 0 || c.again || c.left < 0 {
			return false, nil
		}
		c.again = true
		if err := errors.Join(c.rows.Close(), c.reopen()); err != nil {
			return false, err
		}
		if now, ok, err = c.format.next(c.rows); !ok || err != nil {
			return false, err
		}
	}
	if n := c.Conversations.MaxTurns; n > 0 && len(now.turns) > n {
		now.turns = now.turns[:n]
	}
	if c.left > 0 {
		c.left--
	}
	if err := c.start(now.turns); err != nil {
		return false, c.rows.Fault(err)
	}
	c.taken++
	c.now, c.turn, c.said, c.tokens = now, 0, nil, nil
	c.now.id = cmp.Or(now.id, fmt.Sprint(c.taken))
	return true, nil
}

// start says when a conversation begins.
func (c *conversations) start(turns []turn) (err error) {
	if c.taken == 0 {
		c.timed = turns[0].at != nil && !c.Untimed
	}
	if !c.timed {
		c.at, err = c.starts.Next()
		return err
	}
	if turns[0].at == nil {
		return errors.New("turns[0].timestamp is missing: the first conversation has one: give it, or have all begin at --request-rate (--untimed)")
	}
	if c.taken == 0 {
		c.origin = *turns[0].at
	}
	at, err := due(c.n+1, (*turns[0].at-c.origin)/1000/c.Speed)
	switch {
	case err != nil:
		return err
	case at < c.at:
		return errors.New("turns[0].timestamp: it is before that of the conversation before it: sort them by time, or have all begin at --request-rate (--untimed)")
	}
	c.at = at
	return nil
}

// request is the next turn.
func (c *conversations) request() Request {
	t := c.now.turns[c.turn]
	r := Request{At: c.at, MaxTokens: t.output, Group: c.now.id, Messages: t.messages, Prompt: t.prompt}
	if c.turn > 0 {
		// A turn is due when the one before it has been answered. With timestamps it is also not
		// before its own, so a fast server does not make the user faster.
		r.At = 0
		if first := c.now.turns[0].at; first != nil && t.at != nil && c.timed {
			r.At = c.at + time.Duration(max(min((*t.at-*first)/1000/c.Speed, never.Seconds()/2), 0)*1e9)
		}
		r.After = []int{c.n - 1}
		r.Delay = t.delay
		if c.MaxDelay > 0 {
			r.Delay = min(r.Delay, c.MaxDelay)
		}
		r.Delay = time.Duration(min(float64(r.Delay)/c.Speed, float64(never)))
		r.Continues = true
	}
	if c.Recorded {
		c.replay(&r, t)
	}
	if len(r.Messages) > 0 {
		r.Text = plainChat(r.Messages, r.Continues)
		if c.Tokenizer != nil {
			r.Prompt = c.Tokenizer.Encode(r.Text, !r.Continues)
		}
	}
	c.turn++
	c.n++
	return r
}

// replay puts what was recorded before a turn, instead of what the server said.
func (c *conversations) replay(r *Request, t turn) {
	r.Continues = false
	if len(t.messages) > 0 {
		c.said = append(c.said, t.messages...)
		r.Messages = append([]Message(nil), c.said...)
		if t.answer != nil {
			c.said = append(c.said, *t.answer)
		}
		return
	}
	c.tokens = append(c.tokens, t.prompt...)
	r.Prompt = append([]kvcache.Token(nil), c.tokens...)
	c.tokens = fill(c.tokens, t.output, uint64(c.n+1)*0xbb67ae8584caa73b^c.Seed, c.Vocab)
}

// Close closes the file.
func (c *conversations) Close() error { return c.rows.Close() }
