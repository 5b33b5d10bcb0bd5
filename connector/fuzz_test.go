package connector

import (
	"testing"
	"time"

	"kvferry/engine/batching"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/kvcache"
)

// FuzzOutside gives a node whatever other machines can send it: requests with any
// prompt, leg, hand-off and description of the other side, questions about
// transfers, answers nobody asked for, immediates. Its own driver behaves. The
// node must not panic, and everything must end and be free by the deadline.
func FuzzOutside(f *testing.F) {
	f.Add([]byte{0, 1, 6, 1, 2, 2, 6, 0, 0, 1, 7, 0, 0, 5, 1, 0, 3, 1, 0})
	f.Add([]byte{0, 2, 5, 2, 2, 3, 0, 0, 0, 7, 0, 0, 6, 1, 1, 6, 1, 0, 2, 1, 0, 1, 1, 0})
	f.Add([]byte{0, 3, 9, 1, 1, 1, 9, 3, 0, 7, 0, 0, 7, 0, 0, 3, 1, 0, 3, 1, 0, 4, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 400 {
			return
		}
		prof := smallProfile()
		prof.KVBytes = 8 * int64(prof.KVGeometry.BlockBytes())
		prof.Costs.FrontEndInMS = 1
		if len(data)%2 == 0 {
			prof.Costs.FrontEndOutMS = 4
		}
		pool := kvcache.NewPool(prof.Blocks(), prof.KVGeometry.BlockTokens, true)
		cfg := batching.ConfigOf(prof, false, pool)
		cfg.PrefixCaching = true
		sched, err := batching.NewScheduler(cfg)
		if err != nil {
			t.Fatal(err)
		}
		core, err := NewCore(Config{Scheduler: sched, Pool: pool, Profile: prof})
		if err != nil {
			t.Fatal(err)
		}
		var now time.Duration
		var mine []Event // of the driver, for the next step
		ended := map[uint64]int{}
		var leases []uint64 // of offered blocks, whether or not somebody came for them
		step := func(events ...Event) *Actions {
			events = append(mine, events...)
			mine = nil
			a := core.Step(now, events...)
			if s := a.Launch; s != nil {
				for l := range prof.KVGeometry.Layers {
					mine = append(mine, LayerDone{Layer: l, At: now})
				}
				if a.Read {
					mine = append(mine, StepRead{})
				}
				ev := StepDone{At: now}
				for _, w := range s.Works {
					if w.Sample {
						ev.Tokens = append(ev.Tokens, w.Seq.NextToken(prof.Vocab))
					}
				}
				mine = append(mine, ev)
			}
			for _, m := range a.Moves {
				mine = append(mine, Moved{ID: m.ID, Part: m.Part, Posted: now, At: now})
			}
			for _, c := range a.Checks {
				mine = append(mine, Checked{ID: c.ID, Part: c.Part, Again: c.Again, Refs: c.Refs})
			}
			for _, id := range a.Close {
				mine = append(mine, Closed{ID: id})
			}
			for _, e := range a.Finished {
				ended[e.ID]++
			}
			for _, e := range a.Prefilled {
				ended[e.ID]++
				if e.Offer != nil {
					leases = append(leases, e.ID)
				}
			}
			for _, e := range a.Failed {
				ended[e.ID]++
			}
			return a
		}
		id := uint64(0)
		next := func() int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b)
		}
		hands := append(handofftest.Every(), handoff.None)
		for len(data) > 0 {
			kind := next()
			switch a, b := next(), next(); kind % 10 {
			case 0:
				id++
				ev := Submit{ID: id, Leg: handoff.Leg(a % 4), Prompt: make([]kvcache.Token, b%40), MaxTokens: next()%40 - 1, Handoff: hands[next()%len(hands)], Deadline: now + 20*time.Millisecond}
				ev.Ahead = kind >= 128
				ev.Checks = Checks{Hit: a >= 128, First: a&16 > 0, Last: a&32 > 0, Every: a & 64 / 32}
				ev.Remote = Remote{Node: "x", Tokens: next(), FirstToken: uint32(next() % 30)}
				for i := range next() % 12 {
					ev.Remote.Blocks = append(ev.Remote.Blocks, kvcache.Entry{Index: i + next()%3 - 1})
				}
				step(ev)
			case 1:
				step(Cancel{uint64(a)})
			case 2:
				step(Produce{uint64(a)})
			case 3:
				step(Release{uint64(a)})
			case 4:
				step(Produced{ID: uint64(a), Tensor: b - 2})
			case 5:
				step(Gone{ID: uint64(a), Err: errWire})
			case 6:
				step(Arrived{ID: uint64(a), Part: b - 2, Token: uint32(b), At: now})
			case 7:
				now += time.Duration(a) * time.Millisecond
				step()
			case 8:
				id++
				step(Submit{ID: id, Leg: handoff.FullLeg, Prompt: make([]kvcache.Token, 1+b%9), MaxTokens: 1 + a%3, Deadline: now + time.Millisecond})
			case 9:
				step(Direct{ID: uint64(a), Remote: Remote{Node: "x", Tokens: b, Blocks: make([]kvcache.Entry, next()%3)}})
			}
		}
		for i := 0; core.Requests() > 0 || len(mine) > 0; i++ {
			if i > 10_000 {
				t.Fatalf("%d requests are left at %v", core.Requests(), now)
			}
			switch a := step(); {
			case len(mine) > 0:
			case a.Wake > 0:
				now = max(now, a.Wake)
			case len(leases) > 0:
				mine, leases = append(mine, Lapsed{leases[0]}), leases[1:]
			case core.Requests() > 0:
				t.Fatalf("%d requests wait for nothing", core.Requests())
			}
		}
		for id, n := range ended {
			if n != 1 {
				t.Fatalf("request %d ended %d times", id, n)
			}
		}
		if pool.Used() != 0 || len(core.transfers) != 0 || len(core.deadlines.h) != 0 {
			t.Fatalf("%d blocks, %d transfers, %d deadlines are left", pool.Used(), len(core.transfers), len(core.deadlines.h))
		}
	})
}
