package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/load"
	"kvferry/proxy"
)

// TestAdapters: a load's adapters are served with the ranks that their names say, slots cost
// what they cost, and the result says both.
func TestAdapters(t *testing.T) {
	t.Parallel()
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	costly := *prof
	costly.LoRA = engine.LoRA{BytesPerRank: 1e6, HostGBS: 1}
	s := Simulation{
		Spec: cluster.Spec{Costs: &costly, Nondisagg: 1},
		Load: load.Spec{
			Requests: 40, Rate: 4, Burstiness: 1, InputLen: 64, OutputLen: 8, Seed: 1,
			Adapters: load.Adapters{Names: []string{"a=64", "b"}, Choice: load.AdapterRoundRobin},
		},
	}
	if err := s.Adapt(&s.Load.Adapters.Names); err != nil || !slices.Equal(s.Proxy.LoRAs, []proxy.LoRA{{Name: "a", Path: "64"}, {Name: "b", Path: strconv.Itoa(engine.DefaultRank)}}) || s.Load.Adapters.Names[0] != "a" {
		t.Fatalf("%v: adapters %v of %q", err, s.Proxy.LoRAs, s.Load.Adapters.Names)
	}
	ttft, loads := map[int]float64{}, map[int]uint64{}
	for _, slots := range []int{1, 2} {
		s.MaxLoRAs = slots
		r, err := s.Run(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ttft[slots], loads[slots] = r.Latency["ttft"].Mean, r.adapterLoads()
		waited := r.adapterSeconds()
		if least := 0.016 * float64(loads[slots]); waited < least || waited > 4*least {
			t.Errorf("%d loads of 16 or 64 ms took %.3f s", loads[slots], waited)
		}
		if said := strings.Join(r.lines(), "\n"); !strings.Contains(said, fmt.Sprintf("adapters     %d loads into slots, for which steps waited %.1f s", loads[slots], waited)) {
			t.Errorf("%d loads, and it says %s", loads[slots], said)
		}
		sweep := SweepResult{Points: []*Result{r}}
		if table := sweep.table(); table.Head[len(table.Head)-1] != "adapter loads" || table.Rows[0][len(table.Head)-1] != fmt.Sprint(loads[slots]) {
			t.Errorf("%d loads, and the table has %v", loads[slots], table)
		}
		if text := r.Cluster.String() + "; " + r.Load.String(); !strings.Contains(text, "slots for LoRA adapters") || !strings.Contains(text, "for 2 LoRA adapters (round-robin)") || r.Cluster.MaxLoRAs != slots {
			t.Errorf("%s", text)
		}
	}
	if loads[2] != 2 || loads[1] < 20 {
		t.Errorf("%d loads into one slot, %d into two", loads[1], loads[2])
	}
	// With one slot nearly each request has its adapter loaded: 64 or 16 ms.
	if ttft[1] < ttft[2]+25 {
		t.Errorf("mean TTFT %.1f ms with one slot, %.1f with two", ttft[1], ttft[2])
	}
	s.Load.Adapters.Names = []string{"a=x"}
	if err := s.Adapt(&s.Load.Adapters.Names); err == nil || !strings.Contains(err.Error(), "NAME=RANK") {
		t.Errorf("%v", err)
	}
}
