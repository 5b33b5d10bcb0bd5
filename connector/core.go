package connector

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// Config of a Core.
type Config struct {
	Scheduler engine.Scheduler
	Pool      *kvcache.Pool
	Profile   *engine.Profile
	// Transfers is where transfer IDs count up from. A node that may be taken for its
	// predecessor at the same address starts somewhere else than that: a release meant
	// for one of its transfers could end another's hold.
	Transfers uint64
	// Secret, unless it is zero, seeds all but the low 24 bits of transfer IDs. Who has the ID may
	// release the blocks, so that an ID must not follow from another one.
	Secret [32]byte
}

// Core is one node's scheduler and its side of every hand-off. See the package
// comment. Not safe for concurrent use.
type Core struct {
	cfg   Config
	v0    engine.V0Costs
	sched engine.Scheduler
	again engine.Repeater // the same, nil if it is none

	reqs      map[uint64]*request
	transfers map[uint64]*request // offered, by transfer ID
	next      uint64              // transfer ID, the last one; without a secret
	secret    *rand.ChaCha8       // nil: transfer IDs count up
	deadlines deadlines

	producer producer // prefill side of hand-offs in a step
	receiver receiver // decode side of these
	front    frontEnd

	queued int64 // bytes of KV that are still to cross the link; see link.go
	now    time.Duration
	toRun  []engine.Event // for the scheduler in this Step
	rouse  time.Duration  // when the scheduler asked to be called, 0 for not
	act    Actions
	totals Totals
}

// Totals count since the start of the node.
type Totals struct {
	Transfers, Failed uint64
	Bytes             uint64 // moved by this node
	Checked, Bad      uint64 // blocks
}

type state uint8

const (
	running   state = iota // the scheduler has it, nothing is moving
	offered                // prefill side: computed, waiting for who reads it
	moving                 // KV is on its way in or out
	checking               // all there, being checked
	closing                // the window is being closed; then the sequence goes on or ends
	ending                 // all is computed, and the last token waits for a check of the blocks
	abandoned              // failed or cancelled; waiting for moves and the window to end
)

// A request is one leg on this node.
type request struct {
	Submit
	state state
	ready time.Duration // schedulable
	seq   *engine.Sequence
	pairs []kvcache.Pair // of its moves, once there was one

	ended    bool   // reported as Prefilled; only blocks are still held
	released bool   // the producer has been told
	transfer uint64 // offered under this ID
	open     bool   // the other side may touch our blocks
	shutting bool   // Close has been asked for
	moves    int    // in flight
	parts    int    // parts arrived (decode) or moved (prefill)
	arrived  []bool // decode side that is written to, by part: an immediate counts once
	checks   int    // in flight
	looked   int    // of a request that comes here: its blocks that were checked, or are being, the first ones
	first    kvcache.Token
	expires  time.Duration
	heap     int             // place in the heap of those, plus one
	freed    bool            // abandoned, and its blocks let go
	verdict  error           // abandoned, and reported as this unless a Cancel comes first
	given    []kvcache.Token // of the answer, that came with its KV
	out      *outgoing       // its way to the node that takes it over; nil: none does
	layers   []time.Duration // came ahead: when each was computed, from the first on

	queued                  int64           // bytes of its KV that are still to cross the link
	emitted                 bool            // a token has been computed
	told                    bool            // and has left
	last                    engine.Output   // computed ahead: the token that waits
	again                   int             // checks of blocks that were checked before, in flight
	looking                 bool            // the first output has come: see Checks.First
	early                   bool            // the check that is due with an output to come has begun: see stepRead
	held                    bool            // outputs wait for these checks
	outputs                 []engine.Output // which do
	since, doubt            bool            // tokens have left since the last check began, or before it since the last that went well
	landed, checked, usable time.Duration   // the last part; then the sequence
	b                       Breakdown
}

// NewCore returns a node with nothing to do.
func NewCore(cfg Config) (*Core, error) {
	var faults []error
	if cfg.Scheduler == nil {
		faults = append(faults, errors.New("connector: Scheduler is nil"))
	}
	if cfg.Pool == nil {
		faults = append(faults, errors.New("connector: Pool is nil"))
	}
	if cfg.Profile == nil {
		faults = append(faults, errors.New("connector: Profile is nil"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	c := &Core{
		cfg: cfg, v0: cfg.Profile.Disagg.V0, sched: cfg.Scheduler,
		reqs: make(map[uint64]*request), transfers: make(map[uint64]*request), next: cfg.Transfers,
	}
	c.again, _ = cfg.Scheduler.(engine.Repeater)
	if cfg.Secret != [32]byte{} {
		c.secret = rand.NewChaCha8(cfg.Secret)
	}
	c.producer.gap = millis(c.v0.LaunchGapMS)
	c.front.in, c.front.out = millis(cfg.Profile.Costs.FrontEndInMS), millis(cfg.Profile.Costs.FrontEndOutMS)
	return c, nil
}

// Computing reports whether the executor has a step under way. A step that fetches KV is
// not one: it waits for other nodes.
func (c *Core) Computing() bool {
	step := c.sched.Current()
	return step != nil && step.Kind != engine.Receive
}

// Load is the scheduler's. Requests whose KV is on its way count as waiting.
func (c *Core) Load() engine.Load { return c.sched.Load() }

// AskedAdapters are the LoRA adapters of the scheduler's requests that run, and of those that wait; none
// if it does not say.
func (c *Core) AskedAdapters() (running, waiting []string) {
	if t, ok := c.sched.(engine.AdapterTeller); ok {
		return t.AskedAdapters()
	}
	return nil, nil
}

// Totals returns the counts so far.
func (c *Core) Totals() Totals { return c.totals }

// Requests is the number of requests that have not been dropped.
func (c *Core) Requests() int { return len(c.reqs) + c.front.ends }

// Step applies events in order and returns what is to be done. now never goes
// back.
func (c *Core) Step(now time.Duration, events ...Event) *Actions {
	a := &c.act
	*a = Actions{
		Tokens: a.Tokens[:0], Reserved: a.Reserved[:0], Prefilled: a.Prefilled[:0], Migrated: a.Migrated[:0], Finished: a.Finished[:0],
		Failed: a.Failed[:0], Ask: a.Ask[:0], Answer: a.Answer[:0], Moves: a.Moves[:0], Checks: a.Checks[:0],
		Copies: a.Copies[:0], Halt: a.Halt[:0], Close: a.Close[:0], Drop: a.Drop[:0],
	}
	c.now = now
	for _, ev := range events {
		c.event(ev)
	}
	c.expire()
	c.produce()
	c.receive()
	c.schedule()
	c.producer.start(c.now)
	c.front.hold(c.now, a)
	c.wake()
	return a
}

func (c *Core) event(ev Event) {
	switch ev := ev.(type) {
	case Submit:
		c.submit(ev)
	case Direct:
		c.direct(ev)
	case Migrate:
		c.migrate(ev)
	case Resume:
		c.resume(ev.ID)
		if ev.Doubt {
			c.doubted(ev.ID)
		}
	case Continue:
		c.goOn(ev)
	case Cancel:
		c.front.forget(ev.ID)
		if r := c.reqs[ev.ID]; r != nil {
			r.verdict = nil // the proxy knows more
			c.abandon(r, nil)
			c.settle(r)
		}
	case StepDone:
		c.producer.stepDone(ev.At)
		c.toRun = append(c.toRun, engine.Done{At: ev.At, Tokens: ev.Tokens})
	case StepRead:
		c.stepRead()
	case LayerDone:
		c.layerDone(ev)
	case Copied:
		c.toRun = append(c.toRun, engine.Copied(ev))
	case Produce:
		c.producerAsked(ev.Transfer)
	case Release:
		c.released(ev.Transfer)
	case Produced:
		c.receiver.produced(ev.ID, ev.Tensor, c.now)
	case Gone:
		c.gone(ev)
	case Moved:
		c.moved(ev)
	case Arrived:
		c.arrivedPart(ev)
	case Checked:
		c.checked(ev)
	case Closed:
		c.closed(ev.ID)
	case Lapsed:
		c.lapsed(ev.ID)
	default:
		panic(fmt.Sprintf("connector: unknown event %T", ev))
	}
}

// submit hands the leg to the scheduler, to be looked at once the modelled front
// end is through with it.
func (c *Core) submit(ev Submit) {
	if c.reqs[ev.ID] != nil { // no Drop: the one that has the ID goes on
		c.act.Failed = append(c.act.Failed, Failed{ID: ev.ID, Err: fmt.Errorf("%w: %w: %d", ErrInvalid, engine.ErrDuplicate, ev.ID)})
		return
	}
	r := &request{Submit: ev, first: ev.Remote.FirstToken}
	wait := max(millis(c.cfg.Profile.Costs.RequestMS)-ev.Age, 0)
	req := engine.Request{
		ID: ev.ID, Prompt: ev.Prompt, Prefix: ev.Prefix, Adapter: ev.Adapter, AdapterRank: ev.AdapterRank, Salt: ev.Salt, Variant: ev.Variant, Words: ev.Words, MaxTokens: ev.MaxTokens,
		// Only the prefill side of a hand-off in a step waits for a launch, see V0Costs.
		AtOnce: ev.Leg == handoff.DecodeLeg || ev.Leg == handoff.PrefillLeg && !ev.Handoff.InStep,
	}
	switch {
	case ev.Reserve != 0 && !ev.Handoff.Running:
		c.refuse(ev.ID, fmt.Errorf("%w: reserve is %d: a %v leg of hand-off %q gets blocks for its prompt only", ErrInvalid, ev.Reserve, ev.Leg, ev.Handoff))
		return
	case ev.Leg == handoff.PrefillLeg && !ev.Handoff.Running:
		req.MaxTokens, req.Keep = 1, ev.Handoff != handoff.None
	case ev.Leg == handoff.DecodeLeg && ev.Handoff.InStep:
		req.KV = engine.Blocking
		wait = millis(c.v0.HopMS)
	case ev.Leg == handoff.DecodeLeg && ev.Handoff != handoff.None:
		// The prompt went through the front end on the prefill side, or is about to.
		req.KV, wait = engine.Await, 0
		if req.Reserve = ev.Reserve; ev.Handoff.Offers(ev.Leg) && !ev.Handoff.Running {
			r.arrived = make([]bool, ev.Handoff.Parts.Count(c.layers()))
		}
	case ev.Leg == handoff.FullLeg && ev.Handoff == handoff.None:
	default:
		c.refuse(ev.ID, fmt.Errorf("%w: leg %v does not go with hand-off %q", ErrInvalid, ev.Leg, ev.Handoff))
		return
	}
	if ev.Ahead && (ev.Leg != handoff.PrefillLeg || !ev.Handoff.Moves(ev.Leg)) {
		c.refuse(ev.ID, fmt.Errorf("%w: a %v leg of hand-off %q does not go ahead", ErrInvalid, ev.Leg, ev.Handoff))
		return
	}
	if ev.Handoff.Moves(ev.Leg) && !ev.Ahead {
		if err := c.matches(ev); err != nil {
			c.refuse(ev.ID, err)
			return
		}
	}
	req.Keep = req.Keep || ev.keeps()
	req.Ready = c.now + wait
	if ev.Leg != handoff.DecodeLeg {
		req.Ready = c.front.enter(c.now) + wait
		r.b.Proxy = ev.Age // of a decode leg it contains the prefill leg
	}
	r.ready = req.Ready
	r.b.Proxy += req.Ready - c.now
	c.reqs[ev.ID] = r
	if ev.Leg == handoff.DecodeLeg {
		c.queue(r, 1, 1)
	}
	c.deadlines.set(r, ev.Deadline)
	c.toRun = append(c.toRun, engine.Add{Request: req})
}

// refuse fails a request that was not taken.
func (c *Core) refuse(id uint64, err error) {
	c.act.Failed = append(c.act.Failed, Failed{ID: id, Err: err})
	c.act.Drop = append(c.act.Drop, id)
}

// schedule lets the scheduler move, until there is nothing more to tell it.
func (c *Core) schedule() {
	if len(c.toRun) == 0 && c.sched.Current() != nil && (c.rouse == 0 || c.now < c.rouse) {
		return // a layer more or a part that moved: nothing to the scheduler while a step is under way
	}
	c.runScheduler()
	for len(c.toRun) > 0 { // a request has ended with its output, and its blocks are free
		c.runScheduler()
	}
}

// runScheduler steps the scheduler once with the events in toRun and acts on what it says.
func (c *Core) runScheduler() {
	rd := c.sched.Step(c.now, c.producer.notBefore(c.now), c.toRun...)
	c.toRun = c.toRun[:0]
	for _, f := range rd.Refused {
		if r := c.reqs[f.ID]; r != nil { // else it was cancelled together with its Submit
			c.act.Failed = append(c.act.Failed, Failed{ID: r.ID, Err: fmt.Errorf("%w: %w", ErrInvalid, f.Err), Breakdown: r.breakdown()})
			c.drop(r)
		}
	}
	c.act.Copies = append(c.act.Copies, rd.Copies...)
	for _, q := range rd.Allocated {
		c.allocated(c.reqs[q.ID], q)
	}
	for _, q := range rd.Suspended {
		c.suspended(c.reqs[q.ID])
	}
	out := c.front.take(c.now, len(rd.Outputs))
	for _, o := range rd.Outputs {
		c.output(o, out)
	}
	if step := rd.Launch; step != nil {
		c.launch(step)
	}
	c.rouse = rd.Wake
}

func (c *Core) launch(step *engine.Step) {
	for _, w := range step.Works {
		if r := c.reqs[w.Seq.ID]; w.Prompt && r.seq == nil {
			r.seq = w.Seq
			r.b.Queue = step.At - r.ready
			if step.Kind != engine.Receive { // which checks all that it has
				c.hit(r)
			}
		}
	}
	if step.Kind == engine.Receive {
		c.startReceive(step)
		return
	}
	prompt := false
	for _, w := range step.Works {
		r := c.reqs[w.Seq.ID]
		c.act.Read = c.act.Read || r != nil && r.due(w)
		if !w.Prompt || r.Leg != handoff.PrefillLeg {
			continue
		}
		prompt = true
		if r.Handoff.InStep {
			step.Extra += millis(c.v0.ExtractMSPerMB * c.megabytes(w.N))
		}
		c.act.Layers = c.act.Layers || r.Handoff.Parts == handoff.Layers
	}
	if prompt {
		c.producer.launched()
	}
	c.act.Launch = step
}

// peer is the other node of a request's transfer as errors name it, if it is known: who
// offers has not been told.
func (r *request) peer() string {
	if r.Remote.Node == "" {
		return ""
	}
	return " from " + r.Remote.Node
}

// drop forgets a request whose blocks the scheduler has released or will release
// on the events already in toRun.
func (c *Core) drop(r *request) {
	c.queue(r, 0, 1)
	c.deadlines.remove(r)
	delete(c.reqs, r.ID)
	delete(c.transfers, r.transfer)
	c.act.Drop = append(c.act.Drop, r.ID)
}

func (c *Core) closed(id uint64) {
	r := c.reqs[id]
	if r == nil {
		return
	}
	r.open = false
	switch r.state {
	case abandoned:
		c.settle(r)
	case closing:
		if r.Leg == handoff.DecodeLeg {
			c.land(r)
			return
		}
		c.toRun = append(c.toRun, engine.Free{ID: r.ID})
		c.drop(r)
	}
}

// shut closes the window of a request whose transfer is over; Closed goes on
// with it.
func (c *Core) shut(r *request) {
	c.queue(r, 0, 1)
	r.state = closing
	if !r.open {
		c.closed(r.ID)
		return
	}
	r.shutting = true
	c.act.Close = append(c.act.Close, r.ID)
}

func (c *Core) wake() {
	c.act.Wake = c.rouse
	soonest := func(at time.Duration) {
		if at > 0 && (c.act.Wake == 0 || at < c.act.Wake) {
			c.act.Wake = at
		}
	}
	soonest(c.producer.wake())
	soonest(c.receiver.wake(c.now))
	soonest(c.deadlines.first())
	soonest(c.front.wake())
}

func (c *Core) layers() int { return c.cfg.Profile.KVGeometry.Layers }

// megabytes is the published payload of tokens: K, V and hidden states.
func (c *Core) megabytes(tokens int) float64 {
	g := c.cfg.Profile.KVGeometry
	return float64(tokens*(g.TokenBytes()+g.HiddenTokenBytes())) / 1e6
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
