package load

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/trace"
)

// fileTurns reads a file of conversations, in any of these forms:
//
//	{"session_id": "a", "turns": [{"text": "Hello"}, {"text": "Go on", "delay": 1500}]}             aiperf
//	{"id": "a", "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", ...}]}      vLLM's multi-turn benchmark
//	{"id": "a", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", ...}]}        ShareGPT
//	{"session_id": "a", "input_length": 300, "output_length": 40, "delay": 2000}                     Mooncake's, a line a turn
//
// one a line or as a list. Delays and timestamps are milliseconds. Lines of lengths are of
// one conversation while their session_id stays; a line without one is a conversation. Where
// no length of an answer is given it is Conversations.OutputLen, or if that is 0 the length of the answer
// that was recorded.
type fileTurns struct {
	Spec
	ahead *fileRecord // read, and of the next conversation
	n     int         // turns so far
}

// A fileRecord is a record in any of the forms. id may be a number, or a text.
type fileRecord struct {
	ID        any        `json:"id"`
	SessionID *string    `json:"session_id"`
	Turns     []fileTurn `json:"turns"`
	Messages  []fileSaid `json:"messages"`
	ShareGPT  []fileSaid `json:"conversations"`
	Input     *float64   `json:"input_length"`
	Output    *float64   `json:"output_length"`
	Delay     *float64   `json:"delay"`
	Timestamp *float64   `json:"timestamp"`
}

// A fileTurn is one of aiperf's turns. texts are what it sends as several inputs; here they are
// one, a line each. Images and sound, which aiperf has besides, are passed over.
type fileTurn struct {
	Role      string            `json:"role"`
	Text      *string           `json:"text"`
	Texts     []json.RawMessage `json:"texts"`
	Delay     *float64          `json:"delay"`
	Timestamp *float64          `json:"timestamp"`
	Output    *float64          `json:"output_length"`
	MaxTokens *float64          `json:"max_tokens"`
}

// A fileSaid is a message as OpenAI writes it, or as ShareGPT does.
type fileSaid struct {
	Role    string  `json:"role"`
	Content *string `json:"content"`
	From    string  `json:"from"`
	Value   *string `json:"value"`
}

// rewind forgets the record that was read ahead.
func (f *fileTurns) rewind() { f.ahead, f.n = nil, 0 }

// next is the next conversation: one record, or the lines of one session.
func (f *fileTurns) next(rows *trace.JSON) (c conversation, ok bool, err error) {
	r := f.ahead
	f.ahead = nil
	if r == nil {
		r = new(fileRecord)
		if ok, err := rows.Next(r); !ok || err != nil {
			return c, false, err
		}
	}
	if c, err = f.conversation(r, rows); err != nil {
		return c, false, err
	}
	if len(c.turns) == 0 {
		return c, false, rows.Fault(errors.New("nobody says anything: leave the conversation out"))
	}
	return c, true, nil
}

// conversation makes one of a record. A session's name comes before a record's: aiperf's
// lines of lengths have both.
func (f *fileTurns) conversation(r *fileRecord, rows *trace.JSON) (c conversation, err error) {
	if r.SessionID != nil {
		c.id = *r.SessionID
	} else if r.ID != nil {
		c.id = fmt.Sprint(r.ID)
	}
	switch {
	case r.Turns != nil:
		err = f.turns(&c, r.Turns)
	case r.Messages != nil || r.ShareGPT != nil:
		err = f.said(&c, append(r.Messages, r.ShareGPT...))
	case r.Input == nil:
		err = errors.New("turns, messages, conversations or input_length is missing: give one of them")
	default:
		return c, f.lengths(&c, r, rows)
	}
	if err != nil {
		return c, rows.Fault(err)
	}
	return c, nil
}

// turns are aiperf's.
func (f *fileTurns) turns(c *conversation, turns []fileTurn) error {
	var before []Message
	for i, t := range turns {
		where := fmt.Sprintf("turns[%d].", i)
		var texts []string
		if t.Text != nil {
			texts = append(texts, *t.Text)
		}
		for _, raw := range t.Texts {
			var text string
			if err := config.Unmarshal(raw, &text, false); err != nil {
				return fmt.Errorf("%stexts: %w", where, err)
			}
			texts = append(texts, text)
		}
		if len(texts) == 0 {
			return fmt.Errorf("%stext is missing: give what is said", where)
		}
		m := Message{cmp.Or(t.Role, "user"), strings.Join(texts, "\n")}
		if m.Role == "system" { // it goes with what the user says next
			before = append(before, m)
			continue
		}
		next := turn{messages: append(before, m), at: t.Timestamp}
		before = nil
		var err error
		if next.delay, err = milliseconds(where+"delay", t.Delay); err != nil {
			return err
		}
		if t.Timestamp != nil && !(math.Abs(*t.Timestamp) <= 1e15) {
			return fmt.Errorf("%stimestamp: %v: too large for milliseconds", where, *t.Timestamp)
		}
		length := cmp.Or(t.Output, t.MaxTokens)
		if next.output, err = f.output(where+"output_length", length, nil); err != nil {
			return err
		}
		c.turns = append(c.turns, next)
	}
	return nil
}

// said are messages of both sides: a turn ends with an answer.
func (f *fileTurns) said(c *conversation, all []fileSaid) error {
	var now []Message
	end := func(i int, answer *Message) (err error) {
		t := turn{messages: now, answer: answer}
		if t.output, err = f.output(fmt.Sprintf("messages[%d]", i), nil, answer); err != nil {
			return err
		}
		c.turns = append(c.turns, t)
		now = nil
		return nil
	}
	for i, s := range all {
		role := cmp.Or(s.Role, map[string]string{"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant"}[s.From], s.From)
		text := cmp.Or(s.Content, s.Value)
		if role == "" || text == nil {
			return fmt.Errorf("messages[%d]: role or content is missing: give both", i)
		}
		m := Message{role, *text}
		switch {
		case role != "assistant":
			now = append(now, m)
		case len(now) > 0:
			if err := end(i, &m); err != nil {
				return err
			}
		}
	}
	// ShareGPT's conversations may end with a question; it is asked, if somebody says how long
	// the answer is to be.
	if len(now) > 0 && now[len(now)-1].Role != "system" { // a question without an answer
		return end(len(all)-1, nil)
	}
	return nil
}

// lengths are lines of one conversation.
func (f *fileTurns) lengths(c *conversation, r *fileRecord, rows *trace.JSON) error {
	id := r.SessionID
	for {
		t := turn{at: r.Timestamp}
		n, err := tokenCount("input_length", *r.Input)
		if err == nil {
			t.delay, err = milliseconds("delay", r.Delay)
		}
		if err == nil {
			t.output, err = f.output("output_length", r.Output, nil)
		}
		if err == nil && r.Timestamp != nil && !(math.Abs(*r.Timestamp) <= 1e15) {
			err = fmt.Errorf("timestamp: %v: too large for milliseconds", *r.Timestamp)
		}
		if err != nil {
			return rows.Fault(err)
		}
		f.n++
		t.prompt = fill(make([]kvcache.Token, 0, n), n, uint64(f.n)*0x9e6c63d0676a9a99^f.Seed, f.Vocab)
		c.turns = append(c.turns, t)
		if id == nil {
			return nil
		}
		r = new(fileRecord)
		if ok, err := rows.Next(r); !ok || err != nil {
			return err
		}
		if r.SessionID == nil || *r.SessionID != *id || r.Input == nil {
			f.ahead = r
			return nil
		}
	}
}

// output is how long an answer is to be.
func (f *fileTurns) output(where string, given *float64, answer *Message) (int, error) {
	switch {
	case given != nil:
		return tokenCount(where, *given)
	case f.Conversations.OutputLen > 0:
		return f.Conversations.OutputLen, nil
	case answer != nil:
		return answerLen(f.Tokenizer, answer.Content), nil
	}
	return 0, fmt.Errorf("%s: no answer was recorded: say how long answers are to be (--conversation-output-len)", where)
}

// answerLen is how long an answer is that was recorded: in tokens, in words without a
// tokenizer.
func answerLen(t Tokenizer, text string) int {
	if t == nil {
		return max(len(strings.Fields(text)), 1)
	}
	return max(len(t.Encode(text, false)), 1)
}

// milliseconds reads a time between turns; none is 0. 1e12 are 31 years.
func milliseconds(where string, v *float64) (time.Duration, error) {
	if v == nil {
		return 0, nil
	}
	if !(*v >= 0 && *v <= 1e12) {
		return 0, fmt.Errorf("%s: %v: use 0 or more milliseconds", where, *v)
	}
	return time.Duration(math.Round(*v * 1e6)), nil
}

// agenticTurns reads SGLang's agentic-trace: an object with all conversations,
//
//	{"conversations": [[{"messages": [{"role": "system", ...}, {"role": "user", ...}], "prompt_tokens": 73821}, ...]]}
//
// of which each turn has the messages that are new and not the assistant's. Answers have
// ShareGPT.OutputLen tokens, 220 if that is 0, as SGLang has it. A turn without messages is left out, and so is a
// conversation without turns.
type agenticTurns struct{ Spec }

// rewind has nothing to forget.
func (a *agenticTurns) rewind() {}

// next is the next conversation that has a turn.
func (a *agenticTurns) next(rows *trace.JSON) (c conversation, ok bool, err error) {
	for {
		var turns []struct {
			Messages []fileSaid `json:"messages"`
		}
		if ok, err := rows.Next(&turns); !ok || err != nil {
			return c, false, err
		}
		for i, t := range turns {
			var now []Message
			for j, m := range t.Messages {
				if m.Role == "" || m.Content == nil {
					return c, false, rows.Fault(fmt.Errorf("[%d].messages[%d]: role or content is missing: give both", i, j))
				}
				now = append(now, Message{m.Role, *m.Content})
			}
			if len(now) > 0 {
				c.turns = append(c.turns, turn{messages: now, output: cmp.Or(a.ShareGPT.OutputLen, 220)})
			}
		}
		if len(c.turns) > 0 {
			return c, true, nil
		}
	}
}
