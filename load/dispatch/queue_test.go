package dispatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
	"kvferry/load"
)

// A reply is a server of the tests: request i takes that long.
type reply func(i int) (took time.Duration, failed bool)

// play runs a load to its end, as fast as the queue lets it, and writes a line for each
// thing that happens: times are milliseconds.
func play(t *testing.T, l load.Load, r reply) (lines []string, err error) {
	t.Helper()
	type end struct {
		at     time.Duration
		index  int
		failed bool
	}
	q, now := New(l), time.Duration(0)
	var ends []end
	note := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%4d ", now.Milliseconds())+fmt.Sprintf(format, args...))
	}
	for range 10000 {
		s, ok, err := q.Next(now)
		switch {
		case err != nil:
			return lines, err
		case ok && s.Skipped:
			note("%d skipped", s.Index)
			continue
		case ok:
			text := fmt.Sprintf("%d goes", s.Index)
			if s.Due != now {
				text += fmt.Sprintf(", due %d", s.Due.Milliseconds())
			}
			if s.Room > 0 {
				text += fmt.Sprintf(", room %d", s.Room.Milliseconds())
			}
			if s.History != nil {
				text += fmt.Sprintf(", says %v", s.Conversation())
			}
			note("%s", text)
			took, failed := r(s.Index)
			ends = append(ends, end{now + took, s.Index, failed})
			slices.SortStableFunc(ends, func(a, b end) int { return int(a.at - b.at) })
			continue
		case q.Done():
			if n := len(q.turns) + len(q.waiting) + len(q.goesOn) + len(q.due) + len(q.skipped); n > 0 && l.Until == 0 {
				t.Errorf("the queue keeps %d things of a run that is over", n)
			}
			return lines, nil
		}
		at := q.Wake(now)
		if len(ends) > 0 && ends[0].at <= at {
			e := ends[0]
			ends = ends[1:]
			now = max(now, e.at)
			q.Ended(e.index, e.at, Answer{Tokens: []kvcache.Token{kvcache.Token(100 + e.index)}}, e.failed)
			continue
		}
		if at == Never {
			t.Fatalf("nothing is under way and nothing will come, but it is not done:\n%s", strings.Join(lines, "\n"))
		}
		if at <= now {
			t.Fatalf("at %v nothing goes, and Wake says %v", now, at)
		}
		now = at
	}
	t.Fatal("the run has no end")
	return nil, nil
}

const ms = time.Millisecond

func takes(d time.Duration) reply { return func(int) (time.Duration, bool) { return d, false } }

func TestQueue(t *testing.T) {
	say := func(tokens ...kvcache.Token) []kvcache.Token { return tokens }
	for _, c := range []struct {
		name  string
		load  load.List
		set   load.Load
		reply reply
		want  string
	}{
		{"open loop: nobody waits for another", load.List{{At: 0}, {At: 5 * ms}, {At: 5 * ms}, {At: 9 * ms}}, load.Load{}, takes(time.Second), `
			0 0 goes
			5 1 goes
			5 2 goes
			9 3 goes`},
		{"closed loop: the next goes when one has ended", load.List{{}, {}, {}, {}}, load.Load{InFlight: 2}, func(i int) (time.Duration, bool) { return time.Duration(i+1) * 10 * ms, false }, `
			0 0 goes
			0 1 goes
			10 2 goes, due 0, room 10
			20 3 goes, due 0, room 20`},
		{"room before it is due is not mentioned", load.List{{}, {At: 50 * ms}, {At: 51 * ms}}, load.Load{InFlight: 1}, takes(10 * ms), `
			0 0 goes
			50 1 goes
			60 2 goes, due 51, room 60`},
		{"turns: due some time after the answer, which they carry", load.List{
			{Prompt: say(1)}, {Prompt: say(2), After: []int{0}, Delay: 5 * ms, Continues: true}, {Prompt: say(3), After: []int{1}, Continues: true}, {At: 12 * ms, Prompt: say(4)},
		}, load.Load{}, takes(10 * ms), `
			0 0 goes
			12 3 goes
			15 1 goes, says [1 100 2]
			25 2 goes, says [1 100 2 101 3]`},
		{"a join waits for the last, and not less than At", load.List{{}, {}, {After: []int{0, 1}, Delay: ms}, {At: 90 * ms, After: []int{0}}}, load.Load{}, func(i int) (time.Duration, bool) { return time.Duration(10*i+10) * ms, false }, `
			0 0 goes
			0 1 goes
			21 2 goes
			90 3 goes`},
		{"what follows a failure is skipped, and what follows that", load.List{{}, {After: []int{0}}, {After: []int{1}}, {At: 5 * ms}, {At: 6 * ms, After: []int{0, 3}}}, load.Load{InFlight: 1}, func(i int) (time.Duration, bool) { return 10 * ms, i == 0 }, `
			0 0 goes
			10 1 skipped
			10 2 skipped
			10 3 goes, due 5, room 10
			10 4 skipped`},
		{"a conversation goes on before another begins", load.List{{}, {After: []int{0}}, {After: []int{1}}, {}, {After: []int{3}}}, load.Load{InFlight: 1}, takes(10 * ms), `
			0 0 goes
			10 1 goes
			20 2 goes
			30 3 goes, due 0, room 30
			40 4 goes`},
		{"a turn that waits for others too continues the one it names", load.List{
			{Prompt: say(1)}, {Prompt: say(2), After: []int{0}}, {Prompt: say(3), After: []int{0}}, {Prompt: say(4), After: []int{1, 2}, Continues: true},
		}, load.Load{}, func(i int) (time.Duration, bool) { return time.Duration(10*i+10) * ms, false }, `
			0 0 goes
			10 1 goes
			10 2 goes
			40 3 goes, says [2 101 4]`},
		{"those that were over before are not waited for", load.List{{}, {At: 100 * ms}, {At: 120 * ms}, {After: []int{0}, Delay: 3 * ms}, {At: 130 * ms}}, load.Load{}, takes(10 * ms), `
			0 0 goes
			100 1 goes
			120 2 goes
			120 3 goes, due 13
			130 4 goes`},
		{"nothing is sent from Until on", load.List{{}, {At: 5 * ms}, {At: 10 * ms}, {After: []int{0}}}, load.Load{Until: 10 * ms}, takes(20 * ms), `
			0 0 goes
			5 1 goes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := c.set
			l.Source = &c.load
			got, err := play(t, l, c.reply)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for line := range strings.SplitSeq(strings.TrimSpace(c.want), "\n") {
				at, what, _ := strings.Cut(strings.TrimSpace(line), " ")
				want = append(want, fmt.Sprintf("%4s %s", at, what))
			}
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestQueueRoom: who has room and when, by the order in which requests went out: ends may be
// told late, and out of order.
func TestQueueRoom(t *testing.T) {
	q := New(load.Load{Source: &load.List{{}, {}, {}, {}}, InFlight: 2})
	for range 2 {
		if _, ok, err := q.Next(0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	q.Ended(1, 20*ms, Answer{}, false) // told of first
	q.Ended(0, 10*ms, Answer{}, false)
	for i := range 2 {
		if s, ok, err := q.Next(30 * ms); !ok || err != nil || s.Room != 20*ms {
			t.Errorf("request %d: room since %v, want 20 ms: nobody has room before those that went before (%t, %v)", i+2, s.Room, ok, err)
		}
	}
}

// TestQueueUntil: what is due after the end is not waited for.
func TestQueueUntil(t *testing.T) {
	q := New(load.Load{Source: &load.List{{}, {At: time.Hour}}, Until: 5 * ms})
	if _, ok, err := q.Next(0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if at := q.Wake(0); at != 5*ms {
		t.Errorf("to be asked again at %v, want the end", at)
	}
	if _, ok, err := q.Next(5 * ms); ok || err != nil {
		t.Error("a request goes out after the end", err)
	}
	if q.Done() {
		t.Error("done while one is under way")
	}
	q.Ended(0, 9*ms, Answer{}, false)
	if !q.Done() {
		t.Error("not done")
	}
}

// TestQueueRefuses: what a source must not say ends the run, and names the request.
func TestQueueRefuses(t *testing.T) {
	for _, c := range []struct {
		load load.List
		want string
	}{
		{load.List{{At: 2 * ms}, {At: ms}}, "request 1: the load goes back in time: due at 1ms after 2ms"},
		{load.List{{At: -1}}, "request 0: the load goes back in time: due at -1ns"},
		{load.List{{}, {After: []int{0}, Delay: -1}}, "request 1: due at 0s, -1ns after others"},
		{load.List{{}, {After: []int{1}}}, "request 1: it follows request 1"},
		{load.List{{}, {After: []int{-1}}}, "request 1: it follows request -1"},
		{load.List{{Continues: true}}, "request 0: it continues no request"},
		{load.List{{}, {At: 50 * ms}, {After: []int{0}, Continues: true}}, "request 2: it continues request 0, which has gone"},
	} {
		if _, err := play(t, load.Load{Source: &c.load}, takes(ms)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v: want %s...", err, c.want)
		}
	}
	broken := errors.New("broken")
	if lines, err := play(t, load.Load{Source: failing{broken}}, takes(ms)); !errors.Is(err, broken) || len(lines) > 0 {
		t.Errorf("%v, %v", lines, err)
	}
}

type failing struct{ err error }

func (f failing) Next() (load.Request, bool, error) { return load.Request{}, false, f.err }

// TestQueueAnyLoad: over random loads of roots and followers every request goes out once or is
// skipped, none before it is due, before what it follows, or beyond the room.
func TestQueueAnyLoad(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l load.List
		at := time.Duration(0)
		for i := range 60 {
			r := load.Request{Delay: time.Duration(rng.IntN(5)) * ms}
			if i > 0 && rng.IntN(2) == 0 {
				for range 1 + rng.IntN(3) {
					r.After = append(r.After, rng.IntN(i))
				}
			} else {
				at += time.Duration(rng.IntN(8)) * ms
				r.At = at
			}
			l = append(l, r)
		}
		all := slices.Clone(l)
		ends := make([]time.Duration, len(all))
		failed := make([]bool, len(all))
		for i := range ends {
			ends[i] = -1
			failed[i] = rng.IntN(20) == 0
		}
		inFlight := rng.IntN(4)
		q, now := New(load.Load{Source: &l, InFlight: inFlight}), time.Duration(0)
		var under []int
		gone := 0
		for !q.Done() {
			s, ok, err := q.Next(now)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				gone++
				if s.Skipped {
					if !slices.ContainsFunc(s.After, func(i int) bool { return failed[i] }) {
						t.Fatalf("seed %d: %d is skipped, and nothing failed", seed, s.Index)
					}
					failed[s.Index] = true
					continue
				}
				due := all[s.Index].At
				for _, i := range s.After {
					if ends[i] < 0 || failed[i] {
						t.Fatalf("seed %d: %d goes before %d has ended well", seed, s.Index, i)
					}
					due = max(due, ends[i]+s.Delay)
				}
				if s.Due != due || now < due {
					t.Fatalf("seed %d: %d goes at %v, due %v, want %v", seed, s.Index, now, s.Due, due)
				}
				if under = append(under, s.Index); inFlight > 0 && len(under) > inFlight {
					t.Fatalf("seed %d: %d under way", seed, len(under))
				}
				continue
			}
			if at := q.Wake(now); at != Never && (len(under) == 0 || rng.IntN(2) == 0) {
				now = at
				continue
			} else if len(under) == 0 {
				t.Fatalf("seed %d: stuck at %v with %d of %d gone", seed, now, gone, len(all))
			}
			k := rng.IntN(len(under))
			i := under[k]
			under = slices.Delete(under, k, k+1)
			if at := q.Wake(now); at != Never {
				now += time.Duration(rng.Int64N(int64(at-now) + 1)) // not beyond what is to go
			} else {
				now += time.Duration(rng.IntN(10)) * ms
			}
			ends[i] = now
			q.Ended(i, now, Answer{}, failed[i])
		}
		if gone != len(all) {
			t.Fatalf("seed %d: %d of %d went", seed, gone, len(all))
		}
	}
}
