package engines

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// leaveNumber is the number of the first prompt of those that are left.
const leaveNumber = 1000

// leave asks for many short prompts, and lets P have the trouble: a third is cancelled, half of these at P
// and half at D; a third is never asked of D; a third is given to a D that is killed. The waits of the
// connector then have to end before P has its blocks again.
func (t *turn) leave(ctx context.Context, tr *Trial) error {
	began := time.Now()
	var last []order // that D is given and does not survive
	for n := range leaveRequests {
		x := t.newExchange(leaveNumber+n, trialPrompts[firstPrompt])
		asked, err := x.submit()
		if err != nil {
			return err
		}
		p, d := asked[prefill], asked[decode]
		cancelled := n%3 == 0
		if err := t.send(prefill, p); err != nil {
			return err
		}
		if cancelled && n%2 == 0 {
			if err := t.send(prefill, order{Do: "cancel", ID: x.id}); err != nil {
				return err
			}
			continue
		}
		done, err := t.wait(ctx, prefill, saysDone, x.id)
		if err != nil {
			return err
		}
		if !t.setting.Together {
			if asked, err = x.decode(done.Params); err != nil {
				return err
			}
			d = asked[decode]
		}
		switch {
		case cancelled:
			if err := t.send(decode, d, order{Do: "cancel", ID: x.id}); err != nil {
				return err
			}
		case n%3 == 1:
			last = append(last, d)
		}
	}
	if err := t.send(decode, last...); err != nil {
		return err
	}
	if _, err := t.wait(ctx, decode, saysDone, last[0].ID); err != nil {
		return err
	}
	t.instance(decode).Signal(syscall.SIGKILL)
	answered := 1
	for t.instance(decode) != nil {
		a, err := t.receive(ctx, time.After(t.cfg.Timeout), "say anything", t.cfg.Timeout)
		if err != nil {
			return err
		}
		if a.from == decode && a.Event == saysDone {
			answered++
		}
		t.forget(a)
	}
	tr.Fired = answered < len(last)
	tr.Seconds = time.Since(began).Seconds()
	tr.Text = fmt.Sprintf("%d requests, of which %d were under way when their D was killed", leaveRequests, len(last)-answered)
	return nil
}

// send gives orders to an instance.
func (t *turn) send(r role, all ...order) error {
	i := t.instance(r)
	if i == nil {
		return fmt.Errorf("%v has ended", r)
	}
	for _, o := range all {
		if err := i.send(o); err != nil {
			return err
		}
	}
	return nil
}

// wait returns what an instance says of a request, and passes over all else.
func (t *turn) wait(ctx context.Context, r role, what, id string) (event, error) {
	for {
		a, err := t.receive(ctx, time.After(t.cfg.Timeout), "say anything", t.cfg.Timeout)
		if err != nil {
			return event{}, fmt.Errorf("%s of %s was waited for: %w", what, id, err)
		}
		t.forget(a)
		switch {
		case a.over != nil:
			return event{}, fmt.Errorf("%v ended: %w", a.from, a.over)
		case a.Event == saysError:
			return event{}, fmt.Errorf("%v: %s", a.from, a.Text)
		case a.from == r && a.Event == what && a.ID == id:
			return a.event, nil
		}
	}
}
