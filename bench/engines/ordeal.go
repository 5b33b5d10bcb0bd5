package engines

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// An Outcome is what became of a prompt that a fault befell.
type Outcome string

// Outcomes; Leak is that of requests that are left. The client sees an error, or HTTP 200 with tokens, or waits in vain.
const (
	Right      Outcome = "right"      // tokens, with KV from P
	Recomputed Outcome = "recomputed" // the right tokens: D has computed the prompt
	Failed     Outcome = "error"      // an error in time
	Hang       Outcome = "HANG"       // no answer within the limit
	Crashed    Outcome = "CRASH"      // an instance has ended that nobody had killed
	Wrong      Outcome = "WRONG"      // other tokens than mono's, and no error
	Leak       Outcome = "LEAK"       // P does not get its blocks back
)

// An act is what is done next: an order to an instance, or the fault.
type act struct {
	to    role
	order *order
	fault bool
}

// An ordeal is the way of a prompt that a fault befalls. It has no clock: now is the time since any
// begin. What it is told after its outcome is there changes nothing.
type ordeal struct {
	x     *exchange // makes the orders
	fault *Fault    // nil for none
	want  []int     // mono's answer
	limit time.Duration

	begun  time.Duration
	given  bool          // D has been asked
	asked  time.Duration // when
	struck bool
	killed map[role]bool   // by the fault
	answer json.RawMessage // P's, while the flip is waited for

	outcome  Outcome
	took     time.Duration
	text     string // of an error
	moved    int64  // bytes over the link when the fault came
	computed int    // of the prompt by D
}

// begin is what is done first.
func (o *ordeal) begin(now time.Duration) ([]act, error) {
	o.begun, o.killed = now, map[role]bool{}
	first, err := o.x.submit()
	acts := o.give(now, first)
	if o.onWire() {
		acts = append([]act{{fault: true}}, acts...)
	}
	return acts, err
}

// onWire reports whether a bit is flipped on its way to D, for which P is prepared before it is asked.
func (o *ordeal) onWire() bool {
	return o.fault != nil && o.fault.Do == flipBit && o.x.setting.Together
}

// give has orders be given.
func (o *ordeal) give(now time.Duration, all orders) (acts []act) {
	for _, r := range []role{prefill, decode} {
		if asked, ok := all[r]; ok && !o.killed[r] {
			acts = append(acts, act{to: r, order: &asked})
			if r == decode {
				o.given, o.asked = true, now
			}
		}
	}
	return acts
}

// strike has the fault come, if this is its moment. It comes once.
func (o *ordeal) strike(at moment) (acts []act) {
	if o.fault == nil || o.fault.When != at || o.onWire() || o.struck || o.outcome != "" {
		return nil
	}
	o.struck = true
	switch o.fault.Do {
	case killP:
		o.killed[prefill] = true
	case killD:
		o.killed[decode] = true
	}
	return []act{{fault: true}}
}

// take takes what an instance has said, or that it is over.
func (o *ordeal) take(now time.Duration, a arrival) ([]act, error) {
	if a.over != nil {
		o.over(now, a.from, a.over)
		return nil, nil
	}
	return o.step(now, a.from, a.event)
}

// step takes what an instance has said.
func (o *ordeal) step(now time.Duration, from role, e event) (acts []act, err error) {
	switch {
	case o.outcome != "" || e.ID != o.x.id && e.Event != saysError:
		return nil, nil
	case e.Event == saysError:
		o.end(now, Crashed, fmt.Sprintf("%v: %s", from, e.Text))
	case e.Event == saysFirst && from == decode:
		return o.strike(firstThere), nil
	case e.Event == saysDone && from == decode:
		o.judge(now, e)
	case e.Event == saysDone && e.Finish == "error":
		o.end(now, Failed, "P: its answer is an error")
	case e.Event == saysDone:
		o.answer = e.Params
		acts = o.strike(answered)
		if len(acts) > 0 && o.fault.Do == flipBit {
			o.struck = false // until the bit is another
			return acts, nil
		}
		more, err := o.ask(now)
		return append(acts, more...), err
	case e.Event == saysFlipped:
		o.struck = true
		return o.ask(now)
	}
	return nil, nil
}

// ask asks D with P's answer, where it was not asked with P.
func (o *ordeal) ask(now time.Duration) ([]act, error) {
	if o.x.setting.Together {
		return nil, nil
	}
	next, err := o.x.decode(o.answer)
	return o.give(now, next), err
}

// over takes that an instance has ended.
func (o *ordeal) over(now time.Duration, from role, why error) {
	if o.outcome != "" || o.killed[from] && from == prefill {
		return
	}
	if o.killed[from] {
		o.end(now, Failed, "D was killed")
		return
	}
	o.end(now, Crashed, fmt.Sprintf("%v ended: %v", from, why))
}

// due is when tick wants to be called; it may be called before that.
func (o *ordeal) due() time.Duration {
	if o.fault != nil && o.fault.When == underWay && o.given && !o.struck {
		return min(o.asked+midway, o.begun+o.limit)
	}
	return o.begun + o.limit
}

// tick takes that time has gone by.
func (o *ordeal) tick(now time.Duration) []act {
	if o.outcome == "" && now >= o.begun+o.limit {
		o.end(now, Hang, fmt.Sprintf("no answer within %v", o.limit))
	}
	if o.given && now >= o.asked+midway {
		return o.strike(underWay)
	}
	return nil
}

// settle takes how many prompt tokens D has computed: of the prompt at most the last, where its KV came.
func (o *ordeal) settle(computed int) {
	o.computed = max(0, computed-o.x.setting.Append)
	if o.outcome == Right && o.computed > 1 {
		o.outcome = Recomputed
	}
}

// judge says what D's answer is.
func (o *ordeal) judge(now time.Duration, e event) {
	switch tokens := slices.Concat(o.x.answer[:o.x.setting.Append], e.Tokens); {
	case slices.Equal(tokens, o.want):
		o.end(now, Right, "")
	case e.Finish == "error" || e.Finish == "abort":
		o.end(now, Failed, "D: its answer is an "+e.Finish)
	default:
		o.end(now, Wrong, fmt.Sprintf("D answered %v, mono %v", tokens, o.want))
	}
}

func (o *ordeal) end(now time.Duration, outcome Outcome, text string) {
	o.outcome, o.took, o.text = outcome, now-o.begun, text
}
