package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"kvferry/bench/stats"
	"kvferry/load"
	"kvferry/load/dispatch"
)

// Run asks the server what the load says: each request when it is due and there is room
// for it (see [dispatch.Queue]), whatever the others do. It returns how long the run was, once
// all requests are over and l.End has passed. done is told of each request when it is
// over, of one at a time; the record is done's to keep.
//
// When ctx is done nothing more is sent, what is under way is given up, and the error is
// ctx's. An error of the load ends the run when the requests before it are over. Run takes
// up to 64 requests from the load before they are due, from a goroutine of its own, and has
// stopped when it returns; the load is the caller's to close.
func (c *Client) Run(ctx context.Context, model string, l load.Load, done func(*Record)) (time.Duration, error) {
	if c.err != nil {
		return 0, c.err
	}
	if l.InFlight < 0 || l.InFlight > load.MaxInFlight {
		return 0, fmt.Errorf("%d requests in flight: use 0 to %d", l.InFlight, load.MaxInFlight)
	}
	alarm, err := c.newAlarm()
	if err != nil {
		return 0, err
	}
	defer alarm.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e := c.encoder(model)
	from := &drawing{source: l.Source, encode: func(r *load.Request) ([]byte, error) { return e.encode(r, nil), nil }}
	from.begin(ctx)
	defer from.drawers.Wait()
	defer stop()
	<-from.ready // nothing is late because it was not yet drawn

	l.Source = from
	r := &run{
		client: c, encoder: e, drawn: from, queue: dispatch.New(l), start: c.clock.Now(), alarm: alarm, done: done,
		ends: make(chan ended, 256),
	}
	err = r.loop(ctx)
	if err == nil {
		err = alarm.wait(ctx, r.start+l.End)
	}
	r.finish()
	if err == nil {
		err = ctx.Err() // the last answers may have been given up
	}
	return c.clock.Now() - r.start, err
}

// A run is one that goes on.
type run struct {
	client *Client
	*encoder
	drawn *drawing
	queue *dispatch.Queue
	start time.Duration
	alarm *alarm
	ends  chan ended     // requests that are over
	sent  sync.WaitGroup // requests that are not over

	telling sync.Mutex
	done    func(*Record)
}

// ended is what the queue is told of a request that is over.
type ended struct {
	index  int
	at     time.Duration // since the run's start
	answer dispatch.Answer
	failed bool
}

// loop sends what the queue lets go, until there is no more or ctx is done.
func (r *run) loop(ctx context.Context) error {
	for {
		now := r.client.clock.Now() - r.start
		s, ok, err := r.queue.Next(now)
		switch {
		case err != nil:
			return err
		case ok:
			if err := r.send(ctx, s); err != nil {
				return err
			}
			select { // a burst must not keep those that ended from being seen
			case e := <-r.ends:
				r.over(e)
			default:
			}
			continue
		case r.queue.Done():
			return nil
		}
		var due <-chan struct{}
		var busy <-chan time.Time
		if at := r.queue.Wake(now); at != dispatch.Never {
			due, busy = r.alarm.set(r.start + at)
		}
		select {
		case <-due:
		case <-busy:
		case e := <-r.ends:
			r.over(e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *run) over(e ended) { r.queue.Ended(e.index, e.at, e.answer, e.failed) }

// finish waits for all requests that are under way.
func (r *run) finish() {
	over := make(chan struct{})
	go func() { r.sent.Wait(); close(over) }()
	for {
		select {
		case <-r.ends: // nobody follows any more
		case <-over:
			return
		}
	}
}

var errSkipped = errors.New("not sent: a request that it follows failed")

// send sends a request. It does not wait for the answer.
func (r *run) send(ctx context.Context, s dispatch.Sending) error {
	c := r.client
	body := r.drawn.take(s.Index)
	rec := &Record{
		Index: s.Index, RequestID: s.ID, PromptTokens: len(s.Conversation()), MaxTokens: s.MaxTokens,
		Intended: stats.Seconds(s.Due), Room: stats.Seconds(s.Room), Adapter: s.Adapter, Group: s.Group, After: s.After, Skipped: s.Skipped,
	}
	if c.answers > 1 {
		rec.Answers = c.answers
	}
	if rec.RequestID == "" {
		rec.RequestID = fmt.Sprintf("%s-%d", c.name, s.Index)
	}
	if s.Skipped {
		rec.end(errSkipped)
		r.tell(rec)
		return nil
	}
	rec.TokenTimes = make([]float64, 0, min(s.MaxTokens, 4096)) // a trace may ask for a billion
	r.sent.Go(func() {
		if body == nil { // it had to wait for the answer that it continues
			body = r.encode(&s.Request, s.History)
			if r.unanswered(s.History, &s.Request) {
				rec.note(NoteNoAnswer)
			}
		}
		answer, err := c.complete(ctx, r.encoder, r.start, rec, &s, body)
		rec.end(err)
		rec.Error = c.hide(rec.Error)
		r.ends <- ended{index: rec.Index, at: c.clock.Now() - r.start, answer: answer, failed: err != nil}
		r.tell(rec)
	})
	return nil
}

// tell hands a record over.
func (r *run) tell(rec *Record) {
	r.telling.Lock()
	defer r.telling.Unlock()
	if r.done != nil {
		r.done(rec)
	}
}
