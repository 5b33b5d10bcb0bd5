package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
)

// MultiTurn are conversations that are drawn. Spec.Requests counts conversations here. All of
// them begin with the same PrefixLen tokens, then each with ContextLen of its own, a
// document or a system prompt; a user's turn has InputLen tokens and gets OutputLen, both
// within RangeRatio.
type MultiTurn struct {
	MinTurns, MaxTurns int           // what a user says, uniformly between the two
	MinThink, MaxThink time.Duration // from an answer's end to the user's next turn, likewise
	ContextLen         int           // tokens
}

// multiTurnKnobs are the knobs of conversations that are drawn.
var multiTurnKnobs = Knobs{
	{Name: "min-turns", Group: AskedGroup, Fields: []string{"MultiTurn.MinTurns"}, Default: "3", Value: knob.Int(func(s *Spec) *int { return &s.MultiTurn.MinTurns }), Help: "turns of a conversation that is drawn, at least"},
	{Name: "max-turns", Group: AskedGroup, Fields: []string{"MultiTurn.MaxTurns"}, Default: "8", Value: knob.Int(func(s *Spec) *int { return &s.MultiTurn.MaxTurns }), Help: "turns of a conversation that is drawn, at most"},
	{Name: "min-think", Group: AskedGroup, Fields: []string{"MultiTurn.MinThink"}, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.MultiTurn.MinThink }), Help: "from an answer to the user's next turn, at least; 0: at once"},
	{Name: "max-think", Group: AskedGroup, Fields: []string{"MultiTurn.MaxThink"}, Default: "5s", Value: knob.Duration(func(s *Spec) *time.Duration { return &s.MultiTurn.MaxThink }), Help: "from an answer to the user's next turn, at most; 0: at once"},
	{Name: "context-len", Group: AskedGroup, Fields: []string{"MultiTurn.ContextLen"}, Value: knob.Int(func(s *Spec) *int { return &s.MultiTurn.ContextLen }), Help: "tokens of a context that each drawn conversation begins with"},
}

// multiTurnKind are conversations in which each turn waits for the server's answer.
var multiTurnKind = Kind{
	Name:  "multi-turn",
	About: "conversations that are drawn: each turn goes on with the server's answer to the one before it",
	Knobs: slices.Concat(Knobs{seedKnob, maxDelayKnob}, randomKnobs, multiTurnKnobs, arrivalKnobs),
	Check: func(s Spec, bad *config.Faults) {
		checkDraws(s, bad)
		s.checkStarts(bad)
		m := s.MultiTurn
		config.Between(bad, "MultiTurn.MinTurns", m.MinTurns, 1, 1<<16)
		config.Between(bad, "MultiTurn.ContextLen", m.ContextLen, 0, maxLen)
		bad.Refuse(m.MaxTurns < m.MinTurns || m.MaxTurns > 1<<16, "MultiTurn.MaxTurns", m.MaxTurns, "use as many as at least, or more, up to %d", 1<<16)
		bad.Refuse(m.MinThink < 0, "MultiTurn.MinThink", m.MinThink, "use 0 or more")
		bad.Refuse(m.MaxThink < m.MinThink || m.MaxThink > never, "MultiTurn.MaxThink", m.MaxThink, "use as long as at least, or longer")
	},
	Open: func(s Spec) (Load, error) {
		return s.startSessions(Load{Source: &multiTurn{draws: newDraws(s)}, Count: s.Requests})
	},
}

// multiTurn draws the turns of one conversation after the other, from the generator of random
// prompts. What it keeps does not grow with the conversations.
type multiTurn struct {
	*draws
	starts Arrivals
	at     time.Duration
	left   int // turns of this conversation
	first  bool
	sent   int
	err    error // the first
}

// startAt says when the conversations begin.
func (m *multiTurn) startAt(a Arrivals) { m.starts = a }

// Next draws the next turn. The tokens of a turn are drawn when it is taken, so the order of
// draws is that of the stream: turns of a conversation, then those of the next.
func (m *multiTurn) Next() (Request, bool, error) {
	if m.left == 0 {
		if m.err != nil || m.Requests > 0 && m.n == m.Requests {
			return Request{}, false, m.err
		}
		if m.at, m.err = m.starts.Next(); m.err != nil {
			return Request{}, false, m.err
		}
		m.n++
		m.left, m.first = m.MultiTurn.MinTurns+m.rng.IntN(m.MultiTurn.MaxTurns-m.MultiTurn.MinTurns+1), true
	}
	r := Request{At: m.at, Group: fmt.Sprint(m.n)}
	if m.first {
		if m.prefix == nil && m.PrefixLen > 0 {
			m.prefix = fill(nil, m.PrefixLen, m.rng.Uint64(), m.Vocab)
		}
		r.Prompt = append(make([]kvcache.Token, 0, m.PrefixLen+m.MultiTurn.ContextLen+int(math.Ceil(float64(m.InputLen)*(1+m.RangeRatio)))), m.prefix...)
		r.Prompt = fill(r.Prompt, m.MultiTurn.ContextLen, m.rng.Uint64(), m.Vocab)
	} else {
		r.At, r.After, r.Continues = 0, []int{m.sent - 1}, true
		r.Delay = think(m.rng, m.MultiTurn)
		if m.MaxDelay > 0 {
			r.Delay = min(r.Delay, m.MaxDelay)
		}
	}
	r.Prompt = fill(r.Prompt, m.length(m.InputLen), m.rng.Uint64(), m.Vocab)
	r.MaxTokens = m.length(m.OutputLen)
	m.first = false
	m.left--
	m.sent++
	return r, true, nil
}

// think is how long a user thinks, uniformly between the two: real ones have long tails, and
// a file of conversations has those.
func think(rng *rand.Rand, m MultiTurn) time.Duration {
	return m.MinThink + time.Duration(rng.Int64N(int64(m.MaxThink-m.MinThink)+1))
}
