package attempt

import (
	"container/heap"
	"errors"
	"slices"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// TestMigrations has requests go from node to node without a rest, in virtual time, while moves
// and checks fail, nodes die before, while and after they have one, clients leave and deadlines
// pass, as often as the seed likes. In every run: a request that ends well has exactly the tokens
// that one node alone would have drawn, each once, in order; no step reads KV that is not its
// tokens'; no block is given back while a move or a window can still touch it; what is said to
// have moved is all there; and nothing is left over on the nodes that live.
func TestMigrations(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() {
		seeds = 80
	}
	var sum tally
	for seed := range seeds {
		w := newWorld(t, seed)
		w.play()
		sum.Well += w.tally.Well
		sum.Migrated += w.tally.Migrated
		sum.Stayed += w.tally.Stayed
		sum.Retried += w.tally.Retried
		sum.Cancelled += w.tally.Cancelled
		sum.Late += w.tally.Late
		sum.Deaths += w.tally.Deaths
		sum.Preempted += w.tally.Preempted
		sum.Cached += w.tally.Cached
	}
	t.Logf("%+v", sum)
	for name, n := range map[string]int{
		"well": sum.Well, "migrated": sum.Migrated, "stayed": sum.Stayed, "retried": sum.Retried, "cancelled": sum.Cancelled, "late": sum.Late,
		"deaths": sum.Deaths, "preempted": sum.Preempted, "cached": sum.Cached,
	} {
		if n == 0 {
			t.Errorf("no run met: %s", name)
		}
	}
}

// play brings the load and runs until nothing is left to happen.
func (w *world) play() {
	var at time.Duration
	stem := make([]kvcache.Token, 16)
	for id := uint64(1); id <= 24; id++ {
		at += w.some(30 * time.Millisecond)
		j := &job{id: id, prompt: slices.Clone(stem[:w.rng.IntN(16)]), want: 1 + w.rng.IntN(60), deadline: time.Hour}
		for range 1 + w.rng.IntN(10) {
			j.prompt = append(j.prompt, w.rng.Uint32N(26))
		}
		j.answer = alone(w, j.prompt, j.want)
		if w.chance(w.faults.hasty) {
			j.deadline, j.hasty = at+w.some(400*time.Millisecond), true
		}
		w.jobs[id] = j
		w.later(at, func() { w.submit(j) })
		if w.chance(w.faults.cancel) {
			w.later(at+w.some(600*time.Millisecond), func() {
				if !j.over {
					w.tally.Cancelled++
					w.end(j)
				}
			})
		}
	}
	if n := w.nodes[w.rng.IntN(3)]; w.chance(w.faults.death) {
		w.later(w.some(at+200*time.Millisecond), func() { w.die(n) })
	}
	for tick := at / 100; tick < 4*at; tick += 3*time.Millisecond + w.some(20*time.Millisecond) {
		w.later(tick, w.balance)
	}
	for len(w.agenda) > 0 {
		m := heap.Pop(&w.agenda).(moment)
		w.now = m.at
		m.do()
	}
	for _, j := range w.jobs {
		if !j.over {
			w.failf("request %d has %d of %d tokens, at %+v", j.id, len(j.got), j.want, j.attempt)
		}
	}
	w.left()
}

// legs are numbered by job and a count, so that each is another one on its nodes.
func (w *world) newLeg(j *job) uint64 {
	w.n++
	return j.id<<32 | uint64(w.n)
}

func (w *world) byLeg(leg uint64) *job { return w.jobs[leg>>32] }

func (w *world) alive() (nodes []*node) {
	for _, n := range w.nodes {
		if !n.dead {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// submit places what is left of a request.
func (w *world) submit(j *job) {
	if j.over {
		return
	}
	nodes := w.alive()
	j.attempt, j.base, j.leg, j.at = New(handoff.None, j.want-len(j.got)), len(j.got), w.newLeg(j), nodes[w.rng.IntN(len(nodes))]
	w.leg(j.at, j.leg, connector.Submit{Leg: handoff.FullLeg, Prompt: slices.Concat(j.prompt, j.got), MaxTokens: j.attempt.MaxTokens(handoff.FullLeg), Deadline: j.deadline})
}

func (w *world) leg(n *node, id uint64, s connector.Submit) {
	s.ID = id
	if w.seed%7 < 3 {
		s.Checks = connector.Checks{Hit: true, First: w.rng.IntN(4) == 0, Last: w.rng.IntN(2) == 0, Every: w.rng.IntN(8)}
	}
	n.prompts[id] = s.Prompt
	n.tell(s)
}

// balance has a request go somewhere, whoever has the fewest.
func (w *world) balance() {
	var movable []*job
	for id := uint64(1); id <= 24; id++ {
		if j := w.jobs[id]; !j.over && j.attempt != nil && j.attempt.Movable() {
			movable = append(movable, j)
		}
	}
	nodes := w.alive()
	if len(movable) == 0 {
		return
	}
	j, to := movable[w.rng.IntN(len(movable))], nodes[w.rng.IntN(len(nodes))]
	if to == j.at || !j.attempt.Migrate() {
		return
	}
	prompt := slices.Concat(j.prompt, j.got)
	j.target, j.targetLeg, j.known = to, w.newLeg(j), len(prompt)
	left := j.attempt.MaxTokens(handoff.MigrationLeg)
	w.leg(to, j.targetLeg, connector.Submit{
		Leg: handoff.DecodeLeg, Handoff: handoff.Migration, Prompt: prompt, MaxTokens: left, Reserve: w.rng.IntN(min(left, 24) + 1), Deadline: j.deadline,
	})
}

// kindOf is which leg of its job that is, if the job has it still.
func (w *world) kindOf(leg uint64) (*job, handoff.Leg, bool) {
	j := w.byLeg(leg)
	switch {
	case j.over:
	case leg == j.leg:
		return j, handoff.FullLeg, true
	case leg == j.targetLeg && j.target != nil:
		return j, handoff.MigrationLeg, true
	}
	return j, 0, false
}

func (w *world) deliver(j *job, ready []Token) {
	for _, t := range ready {
		at := j.base + t.Position
		if at != len(j.got) || t.ID != j.answer[at] {
			w.failf("request %d: token %d is %d after %d, alone it is %d", j.id, at, t.ID, len(j.got), j.answer[at])
		}
		j.got = append(j.got, t.ID)
	}
}

func (w *world) token(t connector.Token) {
	j, kind, ok := w.kindOf(t.ID)
	if !ok {
		return
	}
	ready, err := j.attempt.Token(nil, kind, Token{Position: t.Position, ID: t.Token, At: w.now})
	w.deliver(j, ready)
	if err != nil {
		w.failf("request %d: %v", j.id, err)
	}
	if j.attempt.Handed() {
		w.tally.Migrated++
		j.at.tell(connector.Cancel{ID: j.leg})
		j.at, j.leg, j.target = j.target, j.targetLeg, nil
	}
}

func (w *world) reserved(leg uint64, r connector.Remote) {
	if j, kind, ok := w.kindOf(leg); ok {
		next, err := j.attempt.Reserved(kind, true)
		if next == Migrate {
			j.transfer = r.Transfer
			j.at.tell(connector.Migrate{ID: j.leg, Remote: r, Known: j.known})
			return
		}
		w.proceed(j, next, err)
	}
}

func (w *world) migrated(m *connector.Migrated) {
	j, kind, ok := w.kindOf(m.ID)
	if !ok || m.Transfer != j.transfer {
		return
	}
	ready, next, err := j.attempt.Migrated(nil, kind, m.Tokens, w.now)
	w.deliver(j, ready)
	if next == Continue {
		to, leg := j.target, j.targetLeg
		to.prompts[leg] = slices.Concat(to.prompts[leg], m.Tokens[:len(m.Tokens)-1])
		to.tell(connector.Continue{ID: leg, Tokens: m.Tokens})
		return
	}
	w.proceed(j, next, err)
}

func (w *world) finished(leg uint64) {
	if j, kind, ok := w.kindOf(leg); ok {
		next, err := j.attempt.Finished(kind)
		w.proceed(j, next, err)
	}
}

func (w *world) failed(f *connector.Failed) {
	if j, kind, ok := w.kindOf(f.ID); ok {
		next, err := j.attempt.Failed(kind, f.Err)
		w.proceed(j, next, err)
	}
}

// proceed does what comes next.
func (w *world) proceed(j *job, next Next, err error) {
	switch {
	case errors.Is(err, ErrBroken):
		w.failf("request %d: %v", j.id, err)
	case errors.Is(err, connector.ErrDeadline) && !j.hasty:
		w.failf("request %d hung until its deadline", j.id)
	case errors.Is(err, connector.ErrDeadline):
		w.tally.Late++
		w.end(j)
	case err != nil:
		w.tally.Retried++
		w.leave(j)
		j.attempt = nil
		w.later(w.some(5*time.Millisecond), func() { w.submit(j) })
	case next == Stay:
		w.tally.Stayed++
		j.at.tell(connector.Resume{ID: j.leg})
		w.leaveTarget(j)
	case next == Done:
		if len(j.got) != j.want {
			w.failf("request %d is done with %d of %d tokens", j.id, len(j.got), j.want)
		}
		w.tally.Well++
		w.leaveTarget(j)
		j.over = true
	}
}

// end is of a request that nobody waits for any more.
func (w *world) end(j *job) {
	if j.attempt != nil {
		w.leave(j)
	}
	j.over = true
}

func (w *world) leave(j *job) {
	j.at.tell(connector.Cancel{ID: j.leg})
	w.leaveTarget(j)
}

func (w *world) leaveTarget(j *job) {
	if j.target != nil {
		j.target.tell(connector.Cancel{ID: j.targetLeg})
		j.target = nil
	}
}

// die ends a node; the proxy hears of it in a while, and of all that it had said before.
func (w *world) die(n *node) {
	w.tally.Deaths++
	n.dead = true
	n.say(func() {
		for id := uint64(1); id <= 24; id++ {
			j := w.jobs[id]
			if !j.over && j.attempt != nil && j.at == n {
				w.failed(&connector.Failed{ID: j.leg, Err: errors.New("lost")})
			}
			if !j.over && j.attempt != nil && j.target == n {
				w.failed(&connector.Failed{ID: j.targetLeg, Err: errors.New("lost")})
			}
		}
	})
}
