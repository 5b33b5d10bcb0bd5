package client

import "slices"

// choices takes the choices of a chunk: one, or with n several. Their tokens are one request's:
// the first of any is its first, and each chunk is a chunk of it. The text that others go on
// with is that of the first choice.
func (a *answer) choices(c *chunk) (text []byte, plain bool) {
	before, brought := len(a.text), 0
	for i := range c.Choices {
		choice := &c.Choices[i]
		a.record.choices = max(a.record.choices, choice.Index+1)
		if choice.Index > 0 {
			brought += a.others.add(choice, a.keepText)
		} else {
			from := len(a.text)
			var thought int
			a.text, thought = choice.appendTo(a.text)
			a.say(from, thought)
			if a.keepIDs {
				a.ids = append(a.ids, choice.TokenIDs...)
			}
		}
		if why := choice.FinishReason; why != nil {
			a.ended(*why, choice.Index)
		} else {
			plain = len(c.Choices) == 1 && choice.Index == 0 && c.Usage == nil && c.Breakdown == nil && c.Timings == nil && len(choice.TokenIDs) == 0
		}
	}
	text = a.text[before:]
	a.arrived(text, len(text)+brought)
	if slices.ContainsFunc(c.Choices, choice.calls) {
		a.began()
	}
	if !a.keepText {
		a.text = a.text[:before]
	}
	return text, plain && len(text) > 0
}

// say keeps what is no reasoning of the text from a place on, whose first bytes are thought. As
// long as there is no reasoning, that is the text itself.
func (a *answer) say(from, thought int) {
	if !a.keepText {
		return
	}
	if thought > 0 && !a.thinks {
		a.thinks, a.said = true, append(a.said, a.text[:from]...)
	}
	if a.thinks {
		a.said = append(a.said, a.text[from+thought:]...)
	}
}

// ended notes why a choice ended.
func (a *answer) ended(why string, choice int) {
	r := a.record
	if choice == 0 || r.FinishReason == "" {
		r.FinishReason = said(why)
	}
	a.stopped = a.stopped || why == "stop"
	a.ends++
	a.finished = a.ends >= r.Answers
}

// others are the texts of choices but the first, by their place.
type others struct {
	texts [][]byte
	size  int // bytes of them
}

// add adds what a choice brought, if it is to be kept, and returns how long it is.
func (o *others) add(c *choice, keep bool) int {
	text, _ := c.appendTo(nil)
	if keep {
		for len(o.texts) < c.Index {
			o.texts = append(o.texts, nil)
		}
		o.texts[c.Index-1] = append(o.texts[c.Index-1], text...)
		o.size += len(text)
	}
	return len(text)
}
