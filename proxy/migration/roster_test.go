package migration

import (
	"fmt"
	"testing"

	"kvferry/placement"
)

// TestRoster: who is to go is woken once, with where to; who cannot, has gone or has left is not.
func TestRoster(t *testing.T) {
	r := New(placement.MigrationConfig{Policy: placement.Periodic}.WithDefaults())
	woken := map[int]int{}
	var all []*Entry
	for i := range 8 {
		e := r.Join("", func() { woken[i]++ })
		e.Set("a", 100+i, 500, 0)
		all = append(all, e)
	}
	all[0].Set("", 100, 500, 0) // cannot be moved now
	all[1].Leave()
	step := func() {
		nodes := []placement.Node{
			{Candidate: placement.Candidate{ID: "a", InFlight: 7}, FreeBlocks: 1000},
			{Candidate: placement.Candidate{ID: "b"}, FreeBlocks: 1000},
		}
		r.Step([][]placement.Node{nodes}, 16)
	}
	step()
	if got := fmt.Sprint(woken); got != "map[2:1 3:1 4:1]" {
		t.Errorf("woken: %v", got)
	}
	if to := all[2].Take(); to != "b" || all[2].Take() != "" {
		t.Errorf("request 2 goes to %q", to)
	}
	all[2].Set("b", 100, 500, 1)
	step() // 3 and 4 are still on their way
	if got := fmt.Sprint(woken); got != "map[2:1 3:1 4:1 5:1 6:1 7:1]" {
		t.Errorf("woken then: %v", got)
	}
}

// TestNoRoster: where no request moves, nothing is kept and nothing done.
func TestNoRoster(t *testing.T) {
	r := New(placement.MigrationConfig{}.WithDefaults())
	if r != nil {
		t.Fatal("a roster for no policy")
	}
	e := r.Join("", nil)
	e.Set("a", 1, 2, 3)
	if e != nil || e.Take() != "" {
		t.Error("an entry without a roster")
	}
	e.Leave()
	r.Run(t.Context(), nil)
}
