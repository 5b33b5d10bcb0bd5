package health

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// near reports whether got is within 1 % of want.
func near(got, want time.Duration) bool {
	return math.Abs(float64(got-want)) <= 0.01*float64(max(want, time.Millisecond))
}

// TestBacklog follows one node in virtual time.
func TestBacklog(t *testing.T) {
	var b Backlog
	wait := func(at float64) time.Duration { return Wait(seconds(at), 0, []*Backlog{&b}) }
	if got := wait(0); got != 0 {
		t.Errorf("nothing ahead: %v", got)
	}
	b.Enter(seconds(0), 1000)
	if got := wait(0.5); !near(got, seconds(0.49)) { // decayed a little
		t.Errorf("nothing worked off in 0.5 s: %v", got)
	}
	b.Enter(seconds(1), 3000)
	b.Exit(seconds(1), 1000, true) // 1000 a second
	if got := wait(1); !near(got, seconds(3000./1050)) {
		t.Errorf("3000 tokens at 1000 a second: %v", got)
	}
	b.Exit(seconds(1), 3000, false) // the client went away
	if got := wait(1); got != 0 {
		t.Errorf("nothing ahead: %v", got)
	}
	b.Enter(seconds(101), 500) // a hundred idle seconds count for nothing
	if got := wait(101); !near(got, seconds(500./1050)) {
		t.Errorf("500 tokens at 1000 a second: %v", got)
	}
	// It becomes twice as slow: after three times its memory that is what counts.
	for i := range 30 {
		b.Exit(seconds(102+float64(i)), 500, true)
		b.Enter(seconds(102+float64(i)), 500)
	}
	if got := wait(131); got < seconds(0.9) || got > seconds(1.1) {
		t.Errorf("500 tokens at 500 a second: %v", got)
	}
	// It stops: the wait grows by itself.
	if soon, late := wait(132), wait(150); late < 2*soon {
		t.Errorf("%v after a second without progress, %v after nineteen", soon, late)
	}
}

// TestRoleWait is what several nodes make of a queue.
func TestRoleWait(t *testing.T) {
	node := func(tokens int, rate float64) *Backlog { return &Backlog{tokens: tokens, done: rate, busy: 1} }
	for _, tc := range []struct {
		name  string
		ahead int
		nodes []*Backlog
		want  time.Duration
	}{
		{"none", 0, nil, 0},
		{"one", 500, []*Backlog{node(500, 1000)}, time.Second},
		{"two", 0, []*Backlog{node(3000, 1000), node(1000, 1000)}, 2 * time.Second},
		{"unequal", 0, []*Backlog{node(3000, 3000), node(1000, 1000)}, time.Second},
		{"one that is new", 0, []*Backlog{node(4000, 1000), node(0, 0)}, 2 * time.Second},
		{"idle", 0, []*Backlog{node(0, 1000), node(0, 0)}, 0},
		{"new", 9000, []*Backlog{{}, {}}, 0},
		{"new and busy", 0, []*Backlog{{tokens: 10, busy: 3}, {tokens: 10, busy: 2}}, 3 * time.Second},
	} {
		if got := Wait(0, tc.ahead, tc.nodes); !near(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestWaitIsKept simulates twice what a node can do, in virtual time: prompts of 100
// to 1,900 tokens, computed eight at a time as engines do, 20 a second where 10 can be
// served. With a longest wait of 1 s, those admitted wait no longer than that and the
// Step under way; without, the queue grows as long as the load lasts. The node has
// as much to do either way.
func TestWaitIsKept(t *testing.T) {
	const rate, load, horizon = 10_000.0, 20.0, 120.0
	run := func(limit time.Duration) (waits []float64, served int) {
		rng := rand.New(rand.NewPCG(1, 2))
		var b Backlog
		type prompt struct {
			at     float64
			tokens int
		}
		var queue, step []prompt
		next, ends := 0.0, math.Inf(1)
		for now := 0.0; now < horizon; now = min(next, ends) {
			if now == ends {
				for _, p := range step {
					b.Exit(seconds(now), p.tokens, true)
					served++
				}
				ends, step = math.Inf(1), nil
			}
			if now == next {
				p := prompt{now, 100 + rng.IntN(1801)}
				if wait := Wait(seconds(now), 0, []*Backlog{&b}); limit == 0 || wait <= limit {
					b.Enter(seconds(now), p.tokens)
					queue = append(queue, p)
				}
				next = now + rng.ExpFloat64()/load
			}
			if step == nil && len(queue) > 0 {
				n := min(8, len(queue))
				step, queue = queue[:n:n], queue[n:]
				work := 0
				for _, p := range step {
					waits = append(waits, now-p.at)
					work += p.tokens
				}
				ends = now + float64(work)/rate
			}
		}
		slices.Sort(waits)
		return waits, served
	}
	waits, served := run(time.Second)
	if p50, worst := waits[len(waits)/2], waits[len(waits)-1]; p50 > 1.2 || worst > 2.5 {
		t.Errorf("with a limit of 1 s: median wait %.2f s, longest %.2f s", p50, worst)
	}
	free, all := run(0)
	if served < all*95/100 {
		t.Errorf("%d served with a limit, %d without", served, all)
	}
	if worst := free[len(free)-1]; worst < 30 {
		t.Errorf("without a limit the longest wait is %.2f s: this load proves nothing", worst)
	}
}

func TestWaitAlarm(t *testing.T) {
	var a Alarm
	for i, tc := range []struct {
		wait  float64
		news  bool
		level int
	}{
		{0, false, 0},
		{0.9, false, 0},
		{1, true, 1},
		{0.6, false, 1},
		{1.2, false, 1},
		{12, true, 2},
		{6, false, 2},
		{100, true, 3},
		{40, false, 3},
		{29, true, 2},
		{0.4, true, 0},
		{61, true, 3},
		{4, true, 1},
	} {
		if news := a.Step(seconds(tc.wait)); news != tc.news || a.Level != tc.level {
			t.Errorf("step %d, %v s: news %v, level %d, want %v, %d", i, tc.wait, news, a.Level, tc.news, tc.level)
		}
	}
}

// TestFreshQueue: what a node says of itself is its rate until it has shown another, and
// one prompt that has ended, of many that came with it, does not.
func TestFreshQueue(t *testing.T) {
	var b Backlog
	b.Declare(1_000_000) // 1,000 tokens/s
	wait := func(at float64) float64 { return Wait(seconds(at), 0, []*Backlog{&b}).Seconds() }
	for range 10 {
		b.Enter(0, 100)
	}
	if got := wait(0); math.Abs(got-1) > 0.01 {
		t.Errorf("10 prompts of 0.1 s are %.3f s before any has ended", got)
	}
	b.Exit(seconds(0.9), 100, true) // a step of nine
	if got := wait(0.9); got > 1.8 {
		t.Errorf("9 prompts are %.3f s when one has ended after 0.9 s", got)
	}
	for i := range 300 {
		b.Enter(seconds(1+float64(i)/20), 100)
		b.Exit(seconds(1.05+float64(i)/20), 100, true) // twice as fast as it said
	}
	if got := wait(16.1); got < 0.4 || got > 0.55 {
		t.Errorf("9 prompts are %.3f s at 2,000 tokens/s", got)
	}
}
