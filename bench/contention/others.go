package contention

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

//go:embed others.json
var othersJSON []byte

// others is what other simulators say.
var others = func() (o known) {
	if err := json.Unmarshal(othersJSON, &o); err != nil {
		panic(fmt.Sprintf("contention: others.json: %v", err))
	}
	return o
}()

type known struct {
	Measured   string   `json:"measured"` // what MeasuredMS are of
	Notes      []string `json:"notes"`
	Simulators []struct {
		Name       string             `json:"name"`
		Short      string             `json:"short"`
		Rule       string             `json:"rule"`
		Shares     bool               `json:"shares"` // the rule's
		MeasuredMS map[string]float64 `json:"measured_ms"`
	} `json:"simulators"`
}

// rules is what each adds to the TTFT of n transfers that take so many ms alone. One whose
// transfers share a NIC has no switches: then it says nothing of those.
func (o *known) rules(n int, oversubscription, alone float64) map[string]float64 {
	out := map[string]float64{}
	for _, s := range o.Simulators {
		switch {
		case !s.Shares:
			out[s.Short] = alone
		case oversubscription == 1:
			out[s.Short] = alone * float64(n)
		}
	}
	return out
}

// Others says what the rules of other simulators are, and what was measured of them, a line each.
func Others() (lines []string) {
	for _, s := range others.Simulators {
		line := fmt.Sprintf("%s: by its rule, %s", s.Name, s.Rule)
		for i, n := range slices.Sorted(maps.Keys(s.MeasuredMS)) {
			line += fmt.Sprintf("%s%g ms with %s", map[bool]string{true: "; measured ", false: ", "}[i == 0], s.MeasuredMS[n], n)
		}
		lines = append(lines, line)
	}
	return append(append(lines, others.Notes...), "measured of others: "+others.Measured)
}
