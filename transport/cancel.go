package transport

import "time"

// Cancel ends the batch without its remaining slices. Slices that are posted run
// out: an endpoint is shared, and is closed only when nothing has completed on it
// for Config.CancelGrace. So the batch is done soon after Cancel, but not at once.
// It may have completed. On a batch that has ended it does nothing.
func (b *Batch) Cancel() {
	if !b.abort(Canceled, ErrCanceled, "", "") {
		return
	}
	b.look(b.e.cfg.CancelGrace)
}

// look has expire run after d, or at the deadline if that comes first.
func (b *Batch) look(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != over {
		b.timer.Reset(min(d, b.deadline-b.e.cfg.Clock.Now()))
	}
}

// expire runs when the batch's time is up, or after Cancel when its slices may be
// taken back.
func (b *Batch) expire() {
	var patience time.Duration
	b.mu.Lock()
	if b.status == Canceled && b.e.cfg.Clock.Now() < b.deadline {
		patience = b.e.cfg.CancelGrace
	}
	b.mu.Unlock()
	if patience == 0 {
		var last error
		for _, p := range b.t.peer.all() {
			if err := p.lastError(); err != nil {
				last = err
			}
		}
		b.abort(TimedOut, because(ErrDeadline, last), "", "")
	}
	var again time.Duration
	for _, p := range b.t.peer.all() {
		again = max(again, p.revoke(b, patience))
	}
	if again > 0 {
		b.look(again)
	}
}
