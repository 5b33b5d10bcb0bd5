package health

import (
	"testing"
	"time"

	"kvferry/proto"
)

// TestProgress goes through what a node may do with what it owes. Of the model: a step
// takes 50 ms, and 0.25 ms more a prompt token; 10,000 of these fit one.
func TestProgress(t *testing.T) {
	info := &proto.NodeInfo{StepUs: 50_000, PromptTokenNs: 250_000, MaxModelLen: 10_000}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	step := func(p *Progress, at, us int, count uint64) {
		p.Load(ms(at), &proto.Load{StepUs: uint32(us), Progress: count})
	}
	for _, tc := range []struct {
		name  string
		does  func(p *Progress)
		any   int // ms, when any node of the cluster last got on
		alive int // ms, the last time at which it is not stalled
		ever  bool
	}{
		{name: "owes nothing", does: func(p *Progress) { step(p, 0, 0, 0) }, ever: true},
		{name: "has done all", does: func(p *Progress) { p.Owe(0, 100); p.Word(ms(30)); p.Settle(100) }, ever: true},
		{name: "never answers a decode leg", does: func(p *Progress) { p.Owe(0, 0) }, alive: 1000 + 75},
		{name: "never answers a prompt of 256", does: func(p *Progress) { p.Owe(0, 256) }, alive: 1000 + 171},
		{name: "never answers a flood", does: func(p *Progress) {
			for range 10_000 {
				p.Owe(0, 256)
			}
		}, alive: 1000 + 3825},
		{name: "was idle for long", does: func(p *Progress) { p.Owe(0, 9); p.Settle(9); p.Owe(ms(5000), 0) }, alive: 5000 + 1075},
		{name: "a step ends late", does: func(p *Progress) { p.Owe(0, 256); step(p, 10, 100_000, 1) }, alive: 10 + 1000 + 150},
		{name: "a long step", does: func(p *Progress) { p.Owe(0, 256); step(p, 10, 2_600_000, 1) }, alive: 10 + 1000 + 3900},
		{name: "a step without end", does: func(p *Progress) { p.Owe(0, 256); step(p, 10, 4_294_967_295, 1) }, alive: 10 + 1000 + 97_650},
		{name: "steps end, however long the queue", does: func(p *Progress) {
			for range 1000 {
				p.Owe(0, 256)
			}
			for i := range 100 {
				step(p, 1000*i, 500_000, uint64(i+1))
			}
		}, alive: 99_000 + 1000 + 750},
		{name: "the same load again is no progress", does: func(p *Progress) {
			p.Owe(0, 256)
			for i := range 50 {
				step(p, 10+20*i, 100_000, 1)
			}
		}, alive: 10 + 1000 + 150},
		{name: "a token is a word", does: func(p *Progress) { p.Owe(0, 256); step(p, 10, 100_000, 1); p.Word(ms(700)) }, alive: 700 + 1000 + 150},
		{name: "waits, and others get on", does: func(p *Progress) {
			p.Owe(0, 256)
			p.Load(ms(10), &proto.Load{Waits: true})
		}, any: 20_000, alive: 20_000 + 15_000},
		{name: "waits, and nobody gets on", does: func(p *Progress) {
			p.Owe(0, 256)
			p.Load(ms(10), &proto.Load{Waits: true})
		}, alive: 15_000},
		{name: "waited, then launched", does: func(p *Progress) {
			p.Owe(0, 256)
			p.Load(ms(10), &proto.Load{Waits: true})
			step(p, 9000, 100_000, 0)
		}, alive: 9000 + 1000 + 150},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := NewProgress(info)
			tc.does(&p)
			if tc.ever {
				if p.Stalled(time.Hour, 0) {
					t.Error("stalled")
				}
				return
			}
			if at := ms(tc.alive); p.Stalled(at, ms(tc.any)) {
				t.Errorf("stalled at %v", at)
			}
			if at := ms(tc.alive) + time.Microsecond; !p.Stalled(at, ms(tc.any)) {
				t.Errorf("not stalled at %v", at)
			}
		})
	}
}
