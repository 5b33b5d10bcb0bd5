package engine

import (
	"errors"
	"time"
)

// A Scheduler says which sequences share a step, and which of them have blocks. It is a
// pure state machine: no clock, no goroutine, no lock; its driver is one goroutine. Package
// batching has those of this module; package enginetest has what every one must do.
//
// An engine that brings its own scheduler implements this, or has a thin one that follows
// it: sequences come as Add, and what the engine did with them goes out in Ready.
type Scheduler interface {
	// Step applies events in order, then launches the next step if none is under way and
	// now is not before notBefore, and says what leaves. now never goes back. What it
	// returns is valid until the next Step, but a launched step until its Done.
	Step(now, notBefore time.Duration, events ...Event) *Ready
	// Current is the step under way, or nil.
	Current() *Step
	// Load is the state after the last Step.
	Load() Load
}

// A Repeater is a Scheduler that goes through steps which are all alike for less than Step takes.
// A simulation has millions of them.
type Repeater interface {
	Scheduler
	// Steady is how many ends of steps from the one under way on, limit at most, would change no
	// more than this, if nothing else came: each sequence has one more token, none of them its last, and
	// the next step decodes the same sequences.
	Steady(limit int) int
	// Again is Step with the Done of a step that is steady, at the time of the Done. The step that
	// is launched is the same Step; its Outputs are those of Done, in order of its Works.
	Again(done Done)
}

// An AdapterTeller is a Scheduler that says which LoRA adapters its requests are for. It has to look
// through them, so it is not a part of Load.
type AdapterTeller interface {
	// AskedAdapters are, by name, those of requests that have blocks, and those of requests that wait
	// for some. One may be among both.
	AskedAdapters() (running, waiting []string)
}

// MaxLag is how far back a launch, the end of a step or a part of a hand-off may be
// dated: to the moment it became possible or was due. A driver wakes a fraction of a
// millisecond late, and on a machine with a busy neighbour some milliseconds now and then;
// dating the step back keeps the schedule absolute, so lateness never adds up. At 2 ms, 1024/q2 fell behind by 7 ms in
// a burst, which was enough for v0 to take another course. Beyond it something else
// held the machine up, and the step starts when it starts. In virtual time nothing is
// late.
const MaxLag = 5 * time.Millisecond

// Why a request can never be served here; Refusal.Err wraps one of them.
var (
	ErrEmptyPrompt = errors.New("prompt is empty")
	ErrTooLong     = errors.New("prompt and max_tokens exceed the model's length")
	ErrPoolSize    = errors.New("prompt and max_tokens exceed the KV pool")
	ErrDuplicate   = errors.New("request id is in use")
)

// Load is what a placement policy wants to know.
type Load struct {
	Running, Waiting int
	WaitingTokens    int // prompt tokens not computed yet
	Preemptions      uint64
	// Room is how many more sequences would get blocks at once, as long as the pool has them:
	// 0 while one waits for its own, or if the scheduler cannot say.
	Room int
	// Adapters are the LoRA adapters in slots; the slice never changes. AdapterSlots is how many
	// slots there are, 0 for any number, AdapterLoads how often one was loaded, and AdapterLoading
	// how long steps took more for that. AdapterSwitches is how often another was merged into the
	// model's weights, or none.
	Adapters        []string
	AdapterSlots    int
	AdapterLoads    uint64
	AdapterLoading  time.Duration
	AdapterSwitches uint64
}
