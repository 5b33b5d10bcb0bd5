package matrix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var (
	eventNames = []string{"begin", "ready", "no-server", "done", "failed", "lost", "gone", "stopped", "interrupt"}
	actNames   = []string{"start", "await", "run", "stop", "finish"}
	stateNames = []string{"pending", "skipped", "done", "failed", "interrupted"}
)

// play gives a schedule its events and writes down what it asks for, and of which pair.
func play(s *schedule, events string) string {
	var out []string
	say := func(a action) {
		if a == finish {
			out = append(out, "finish")
			return
		}
		out = append(out, fmt.Sprintf("%s %d", actNames[a], s.at))
	}
	say(s.next())
	for _, name := range strings.Fields(events) {
		say(s.Step(event(slices.Index(eventNames, name))))
	}
	return strings.Join(out, ", ")
}

func states(s *schedule) string {
	var out []string
	for _, st := range s.state {
		out = append(out, stateNames[st])
	}
	return strings.Join(out, " ")
}

func newSchedule(servers, clients int, shared, runs bool) *schedule {
	return &schedule{clients: clients, shared: slices.Repeat([]bool{shared}, servers), runs: slices.Repeat([]bool{runs}, servers), state: make([]pairState, servers*clients)}
}

// TestSchedule: transcripts of two servers and two clients.
func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		name, events string
		shared, runs bool
		before       []pairState
		want, states string
	}{
		{
			"a server a pair", "ready done stopped ready failed stopped ready done stopped ready done stopped", false, true, nil,
			"start 0, run 0, stop 0, start 1, run 1, stop 1, start 2, run 2, stop 2, start 3, run 3, stop 3, finish", "done failed done done",
		},
		{
			"one server for its clients", "ready done done stopped ready done done stopped", true, true, nil,
			"start 0, run 0, run 1, stop 1, start 2, run 2, run 3, stop 3, finish", "done done done done",
		},
		{
			"servers that run already", "ready done ready done ready failed ready done", false, false, nil,
			"await 0, run 0, await 1, run 1, await 2, run 2, await 3, run 3, finish", "done done failed done",
		},
		{"one of these that is down", "no-server ready done no-server", false, false, nil, "await 0, await 2, run 2, await 3, finish", "failed failed done failed"},
		{"interrupted while it waits for one", "interrupt", false, false, nil, "await 0, finish", "interrupted pending pending pending"},
		{
			"one that does not come up", "no-server ready done stopped ready done stopped", false, true, nil,
			"start 0, start 2, run 2, stop 2, start 3, run 3, stop 3, finish", "failed failed done done",
		},
		{
			"one that dies under a client", "ready lost ready done stopped no-server", true, true, nil,
			"start 0, run 0, start 1, run 1, stop 1, start 2, finish", "failed done failed failed",
		},
		{
			"one that dies between clients", "ready done gone ready done stopped ready done done stopped", true, true, nil,
			"start 0, run 0, run 1, start 1, run 1, stop 1, start 2, run 2, run 3, stop 3, finish", "done done done done",
		},
		{
			"resumed", "ready done stopped ready done stopped", false, true,
			[]pairState{skipped, pending, skipped, pending},
			"start 1, run 1, stop 1, start 3, run 3, stop 3, finish", "skipped done skipped done",
		},
		{"all done before", "", false, true, slices.Repeat([]pairState{skipped}, 4), "finish", "skipped skipped skipped skipped"},
		{"interrupted while a server starts", "interrupt", false, true, nil, "start 0, finish", "interrupted pending pending pending"},
		{"interrupted under a client", "ready done stopped ready interrupt stopped", false, true, nil, "start 0, run 0, stop 0, start 1, run 1, stop 1, finish", "done interrupted pending pending"},
		{"interrupted, no server of ours", "ready done ready interrupt", false, false, nil, "await 0, run 0, await 1, run 1, finish", "done interrupted pending pending"},
	} {
		s := newSchedule(2, 2, c.shared, c.runs)
		if c.before != nil {
			copy(s.state, c.before)
		}
		if got := play(s, c.events); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
		if got := states(s); got != c.states {
			t.Errorf("%s: pairs %s, want %s", c.name, got, c.states)
		}
	}
}

// TestScheduleEnds: whatever happens, in any order that is possible, each pair is run at most
// once and by a server that is up, no server is left, and all pairs come to an end.
func TestScheduleEnds(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		servers, clients := 1+rng.IntN(4), 1+rng.IntN(4)
		s := newSchedule(servers, clients, false, false)
		for i := range servers {
			s.shared[i], s.runs[i] = rng.IntN(2) == 0, rng.IntN(3) > 0
		}
		for p := range s.state {
			s.state[p] = pairState(rng.IntN(5) / 4) // some are done before
		}
		before := slices.Clone(s.state)
		up, stopped, ran := -1, false, map[int]int{} // the server that is up; interrupted; by pair
		what := s.next()
		steps := 0
		for ; what != finish; steps++ {
			if steps > 10*len(s.state)+10 {
				t.Fatalf("seed %d: no end", seed)
			}
			var choices []event
			server := s.server(s.at)
			switch what {
			case startServer:
				if up >= 0 || !s.runs[server] {
					t.Fatalf("seed %d: server %d is started while %d is up", seed, server, up)
				}
				choices = []event{serverReady, serverFailed, interrupt}
			case awaitServer:
				if up >= 0 || s.runs[server] {
					t.Fatalf("seed %d: server %d is awaited, of ours is %d up", seed, server, up)
				}
				choices = []event{serverReady, serverFailed, interrupt}
			case runClient:
				if s.runs[server] != (up == server) || s.state[s.at] != pending {
					t.Fatalf("seed %d: pair %d (%s) runs while server %d is up", seed, s.at, stateNames[s.state[s.at]], up)
				}
				ran[s.at]++
				if choices = []event{clientDone, clientFailed, interrupt}; s.runs[server] {
					choices = append(choices, serverLost)
				}
			case stopServer:
				choices = []event{serverStopped}
			}
			e := choices[rng.IntN(len(choices))]
			if e == interrupt && rng.IntN(4) > 0 {
				e = choices[0]
			}
			stopped = stopped || e == interrupt
			switch e {
			case serverReady:
				if s.runs[server] {
					up = server
				}
			case serverLost, serverStopped:
				up = -1
			}
			what = s.Step(e)
		}
		if up >= 0 {
			t.Fatalf("seed %d: server %d is left", seed, up)
		}
		for p, state := range s.state {
			if ran[p] > 1 || before[p] == skipped && (ran[p] > 0 || state != skipped) || state == pending && !stopped {
				t.Fatalf("seed %d: pair %d ran %d times, was %s and is %s", seed, p, ran[p], stateNames[before[p]], stateNames[state])
			}
		}
	}
}
