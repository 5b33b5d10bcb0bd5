package simulation

import (
	"strings"
	"testing"

	"kvferry/cluster"
)

// TestBestAt: where a load is swept beside a parameter of the cluster, the best of these is named at
// each load, and nowhere else; the network is spoken of where it differs.
func TestBestAt(t *testing.T) {
	point := func(rate, placement string, goodput, attained float64) *Result {
		return &Result{Params: map[string]string{"rate": rate, "placement": placement}, GoodputGPU: goodput, Attained: attained, Cluster: cluster.Record{Spec: cluster.Spec{Nondisagg: 1}}}
	}
	r := SweepResult{
		Params: []SweepParam{{"placement", []string{"round-robin", "least-loaded"}}, {"rate", []string{"1", "2", "4"}}}, Attainment: 0.99,
		Points: []*Result{
			point("1", "round-robin", 1, 1), point("2", "round-robin", 1.5, 1), point("4", "round-robin", 2, 0.5),
			point("1", "least-loaded", 0.9, 1), point("2", "least-loaded", 2, 1), point("4", "least-loaded", 3, 0.5),
		},
	}
	if got, want := strings.Join(r.lines(), "|"), "best at each rate: rate=1: placement=round-robin; rate=2: placement=least-loaded; rate=4: none keeps the SLO"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if r.choose(); r.Best != 4 || strings.Contains(r.Why, "network") {
		t.Errorf("best %d: %s", r.Best, r.Why)
	}
	r.Params[1].Name = "nics"
	if lines := r.lines(); len(lines) > 0 {
		t.Errorf("%q where no load is swept", lines)
	}
}
