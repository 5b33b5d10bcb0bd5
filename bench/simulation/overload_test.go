package simulation

import (
	"math"
	"strings"
	"testing"

	"kvferry/load"
)

// TestOverload: that requests came faster than they were served is said, with what was the limit;
// and of none that wait for no other or all come at once.
func TestOverload(t *testing.T) {
	run := func(change func(*Simulation)) *Result {
		s := simulation(t)
		change(&s)
		return simulated(t, s)
	}
	served := run(func(*Simulation) {})
	for name, r := range map[string]*Result{
		"served":  served,
		"short":   run(func(s *Simulation) { s.Load.Requests, s.Load.Rate, s.Load.InputLen = 50, 20, 1024 }),
		"a burst": run(func(s *Simulation) { s.Load.Rate = math.Inf(1) }),
		"a loop":  run(func(s *Simulation) { s.Load.Rate, s.Load.InFlight = 100, 4 }),
	} {
		if r.Overload != nil {
			t.Errorf("%s: %+v", name, r.Overload)
		}
	}
	for limit, change := range map[string]func(*Simulation){
		"prefill": func(s *Simulation) { s.Load.Rate, s.Load.InputLen, s.Load.OutputLen = 20, 1024, 2 },
		"network": func(s *Simulation) { s.Load.Rate, s.Link = 5, "2MB/s" },
		"decode":  func(s *Simulation) { s.Load.Rate, s.Load.OutputLen, s.Node.KVBlocks, s.Prefill = 4, 400, 200, 4 },
		"nondisagg": func(s *Simulation) {
			s.Prefill, s.Decode, s.Nondisagg, s.Load.Rate, s.Load.InputLen = 0, 0, 1, 20, 1024
		},
	} {
		r := run(change)
		if o := r.Overload; o == nil || o.Limit != limit || !(o.Came > o.Served) || !strings.Contains(strings.Join(r.lines(), "\n"), "overloaded") {
			t.Errorf("%s: %+v, %+v", limit, o, r.Roles)
		}
	}
	sweep := SweepResult{Params: []SweepParam{{Name: "rate"}}, Points: []*Result{served, run(func(s *Simulation) { s.Load.Rate, s.Load.InputLen = 20, 1024 })}}
	sweep.Points[0].Params, sweep.Points[1].Params = map[string]string{"rate": "1"}, map[string]string{"rate": "20"}
	if said := sweep.overloaded(); !strings.HasSuffix(said, ": rate=20 (prefill)") {
		t.Error(said)
	}
}

// TestLatencyOfNone: where no request has a latency, none is shown.
func TestLatencyOfNone(t *testing.T) {
	s := simulation(t)
	s.Load = load.Spec{Kind: load.Random, Requests: 5, Rate: 1, Burstiness: 1, InputLen: 256, OutputLen: 1}
	for _, row := range simulated(t, s).tables()[0].Rows {
		if one := row[0] == "TPOT" || row[0] == "ITL"; (row[1] == "-") != one {
			t.Errorf("%q", row)
		}
	}
}
