package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// A Trial is what a fault came to with a setting.
type Trial struct {
	Setting  string  `json:"setting"`
	Rail     string  `json:"rail"`
	Fault    string  `json:"fault"`
	Fired    bool    `json:"fired"` // the fault has come, and at its moment
	Outcome  Outcome `json:"outcome"`
	Seconds  float64 `json:"seconds"`         // from asking to the outcome
	Computed int     `json:"d_prompt_tokens"` // of the prompt by D, by vLLM's counter
	Next     Outcome `json:"next"`            // of another prompt, with what was killed or cut there again
	Lost     int     `json:"blocks_lost"`     // P's, that nobody gives back; -1: P had to be started anew
	Text     string  `json:"text,omitempty"`  // what was said
	Error    string  `json:"error,omitempty"` // why the trial says nothing
}

// Waits of a trial. Connectors are told these leases and timeouts, so that an error is one in time.
const (
	faultTimeout = 5 * time.Second
	faultLease   = 10 * time.Second
	pollPeriod   = 200 * time.Millisecond
)

// unknown is the number of lost blocks of a P that is not the one of before.
const unknown = -1

// The prompts of a trial, by number: the one that the fault befalls, the next one, and one before both.
const (
	struckPrompt = iota
	nextPrompt
	firstPrompt
)

// trialPrompts are their lengths.
var trialPrompts = [...]int{struckPrompt: 2048, nextPrompt: 512, firstPrompt: 128}

// trial has a fault come to a setting, with instances of its own.
func (x *run) trial(ctx context.Context, s *Setting, f *Fault) (tr Trial, err error) {
	tr = Trial{Setting: s.Name, Rail: s.Rail, Fault: f.Name, Lost: unknown}
	t := &turn{run: x, setting: s, fault: f, arrivals: make(chan arrival, 4*leaveRequests)}
	defer func() { err = t.end(err) }()
	if err := t.start(ctx, f.Name); err != nil {
		return tr, err
	}
	fresh, err := t.counters(ctx)
	if err != nil {
		return tr, err
	}
	if f.Wrapped == nil { // the two know each other then, and what is under way is KV; a wrapper counts from the first message on
		first, err := t.ordeal(ctx, nil, firstPrompt)
		if err == nil && first.outcome != Right {
			err = fmt.Errorf("before any fault: %s %s", first.outcome, first.text)
		}
		if err != nil {
			return tr, err
		}
	}
	if f.Name == leave {
		err = t.leave(ctx, &tr)
	} else {
		var o *ordeal
		if o, err = t.ordeal(ctx, f, struckPrompt); err == nil {
			tr.Outcome, tr.Seconds, tr.Text, tr.Computed = o.outcome, o.took.Seconds(), o.text, o.computed
			tr.Fired = t.fired(o)
		}
	}
	if err != nil {
		return tr, err
	}
	if why := t.missing(f); why != "" && tr.Outcome != Hang && tr.Outcome != Crashed {
		tr.Outcome, tr.Text = Crashed, why
	}
	was := t.instance(prefill)
	if err := t.mend(ctx); err != nil {
		return tr, err
	}
	next, err := t.ordeal(ctx, nil, nextPrompt)
	if err != nil {
		return tr, err
	}
	tr.Next = next.outcome
	if f.Wrapped != nil { // some come with the next transfer
		text, err := os.ReadFile(t.faultLog(f.Wrapped.hits(s)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return tr, err
		}
		tr.Fired = len(text) > 0
	}
	if now := t.instance(prefill); now != nil && now == was {
		tr.Lost, err = t.lost(ctx, fresh[prefill].Free)
	}
	if t.missing(nil) != "" {
		tr.Next = Crashed
	}
	if f.Name == leave && tr.Outcome != Crashed {
		tr.Outcome = map[bool]Outcome{true: Leak, false: Right}[tr.Lost != 0]
	}
	return tr, err
}

// ordeal has a prompt go its way, with a fault or without.
func (t *turn) ordeal(ctx context.Context, f *Fault, number int) (*ordeal, error) {
	before, err := t.counters(ctx)
	if err != nil {
		return nil, err
	}
	x := t.newExchange(number, trialPrompts[number])
	o := &ordeal{x: x, fault: f, want: t.mono[x.id], limit: t.cfg.Timeout}
	began, sent := time.Now(), t.place.sent()
	acts, err := o.begin(0)
	for {
		for _, a := range acts {
			if a.order == nil {
				o.moved = t.place.sent() - sent
				err = errors.Join(err, t.do(f.Do, x.id))
			} else if i := t.instance(a.to); i != nil {
				err = errors.Join(err, i.send(*a.order))
			}
		}
		if o.outcome != "" || err != nil {
			break
		}
		timer := time.NewTimer(time.Until(began.Add(o.due())))
		select {
		case a := <-t.arrivals:
			acts, err = o.take(a.at.Sub(began), a)
			t.forget(a)
		case <-timer.C:
			acts = o.tick(time.Since(began))
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
	}
	if err != nil {
		return nil, err
	}
	if i := t.instance(prefill); i != nil {
		i.Signal(syscall.SIGCONT) // if it was stopped
	}
	if o.outcome == Hang { // its client goes
		for _, i := range t.instances {
			err = errors.Join(err, i.send(order{Do: "cancel", ID: x.id}))
		}
	}
	after, e := t.counters(ctx)
	if i := t.instance(decode); i != nil {
		o.settle(after[decode].Computed - before[decode].Computed)
	}
	return o, errors.Join(err, e)
}

// do has the deed be done.
func (t *turn) do(d deed, id string) error {
	switch d {
	case killP, killD:
		r := map[deed]role{killP: prefill, killD: decode}[d]
		if i := t.instance(r); i != nil {
			i.Signal(syscall.SIGKILL)
		}
	case freezeP:
		t.instance(prefill).Signal(syscall.SIGSTOP)
	case cutLink:
		return t.place.lab.Cut(0)
	case loseAll:
		return t.place.lab.BlackHole(0)
	case flipBit:
		return t.instance(prefill).send(order{Do: "flip", ID: id})
	}
	return nil
}

// fired says that the fault has come, and at its moment.
func (t *turn) fired(o *ordeal) bool {
	if t.fault.When != underWay || t.place.lab == nil {
		return o.struck
	}
	kv := int64(len(o.x.prompt)/t.ready.BlockTokens) * t.ready.BlockBytes
	return o.struck && o.moved > kv/100 && o.moved < kv
}

// counters asks all instances for theirs. One that does not answer is ended: it would not take another
// prompt either.
func (t *turn) counters(ctx context.Context) (map[role]event, error) {
	all := map[role]event{}
	for _, i := range t.instances {
		if err := i.send(order{Do: "count"}); err != nil {
			return nil, err
		}
	}
	deadline := time.After(t.cfg.Timeout)
	for slices.ContainsFunc(t.instances, func(i *instance) bool { _, ok := all[i.role]; return !ok }) {
		select {
		case a := <-t.arrivals:
			if a.Event == saysCounted {
				all[a.from] = a.event
			}
			t.forget(a)
		case <-deadline:
			for _, i := range slices.Clone(t.instances) {
				if _, ok := all[i.role]; !ok {
					t.drop(i)
				}
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return all, nil
}

// forget takes an instance that has ended out of those that are there.
func (t *turn) forget(a arrival) {
	if a.over == nil && a.Event != saysError {
		return
	}
	if i := t.instance(a.from); i != nil {
		t.drop(i)
	}
}

// drop ends an instance and takes it out of those that are there, and what it has said with it.
func (t *turn) drop(i *instance) {
	i.end(true)
	for range len(t.arrivals) {
		if a := <-t.arrivals; a.from != i.role {
			t.arrivals <- a
		}
	}
	t.instances = slices.DeleteFunc(t.instances, func(one *instance) bool { return one == i })
}

// missing says which instance has ended, or does not answer any more, that the fault has not killed: "" if none.
func (t *turn) missing(f *Fault) string {
	for _, r := range t.setting.roles() {
		killed := f != nil && (r == prefill && f.Do == killP || r == decode && (f.Do == killD || f.Name == leave))
		if t.instance(r) == nil && !killed {
			return fmt.Sprintf("%v ended, or did not answer any more, after the prompt's outcome", r)
		}
	}
	return ""
}

// mend starts what was killed, and makes the link whole.
func (t *turn) mend(ctx context.Context) error {
	if t.fault.Do == cutLink || t.fault.Do == loseAll {
		if err := t.place.lab.Clear(0); err != nil {
			return err
		}
	}
	for _, r := range t.setting.roles() {
		if t.instance(r) == nil {
			if err := t.begin(r, t.fault.Name+"-again"); err != nil {
				return err
			}
			if err := t.readies(ctx, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// lost is how many of P's blocks are not given back, of those that were free before.
func (t *turn) lost(ctx context.Context, before int) (int, error) {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for limit := time.After(t.cfg.settle); ; {
		now, err := t.counters(ctx)
		if err != nil {
			return 0, err
		}
		p, there := now[prefill]
		if lost := before - p.Free; lost <= 0 || !there {
			return lost, nil
		}
		select {
		case <-tick.C:
		case <-limit:
			return before - p.Free, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
