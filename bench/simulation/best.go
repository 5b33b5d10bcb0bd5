package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// near is how much goodput a cheaper network may cost and still be the better
// buy.
const near = 0.01

// best is the best point of those that count: of those where enough requests keep the SLO, the
// one with the most goodput a GPU; of those within 1 % of it the one with the
// least network, and of equal networks the one with the most goodput. It is -1 where there is none,
// and closest is where most requests keep the SLO.
func (r *SweepResult) best(counts func(*Result) bool) (chosen, closest int) {
	chosen, closest = -1, -1
	most := 0.0
	for i, p := range r.Points {
		if !counts(p) {
			continue
		}
		if closest < 0 || p.Attained > r.Points[closest].Attained {
			closest = i
		}
		if p.Attained >= r.Attainment {
			most = max(most, p.GoodputGPU)
		}
	}
	for i, p := range r.Points {
		if !counts(p) || p.Attained < r.Attainment || p.GoodputGPU < most*(1-near) || p.GoodputGPU == 0 {
			continue
		}
		if chosen >= 0 {
			b := r.Points[chosen]
			if order := cmp.Or(cmp.Compare(p.Cluster.Bandwidth(), b.Cluster.Bandwidth()), cmp.Compare(b.GoodputGPU, p.GoodputGPU)); order >= 0 {
				continue
			}
		}
		chosen = i
	}
	return chosen, closest
}

// loads are the parameters that are the load's and not the cluster's.
var loads = []string{sweepRate, sweepSpeed}

// bestAt names the best point at each load, where a load and a parameter of the cluster are swept:
// the best of all has the load that suits it. It is empty elsewhere.
func (r *SweepResult) bestAt() string {
	i := slices.IndexFunc(r.Params, func(p SweepParam) bool { return slices.Contains(loads, p.Name) })
	if i < 0 || len(r.Params) < 2 {
		return ""
	}
	load, other := r.Params[i].Name, r.Params[1-i].Name
	var said []string
	for _, v := range r.Params[i].Values {
		what := "none keeps the SLO"
		if best, _ := r.best(func(p *Result) bool { return p.Params[load] == v }); best >= 0 {
			what = other + "=" + r.Points[best].Params[other]
		}
		said = append(said, fmt.Sprintf("%s=%s: %s", load, v, what))
	}
	return "best at each " + load + ": " + strings.Join(said, "; ")
}

// choose marks the best point of all.
func (r *SweepResult) choose() {
	var closest int
	r.Best, closest = r.best(func(*Result) bool { return true })
	switch {
	case len(r.Points) == 0:
		r.Why = "no point was simulated to its end"
	case r.Best >= 0:
		p := r.Points[r.Best]
		r.Why = fmt.Sprintf("%s: the most goodput a GPU (%.3f requests/s) where at least %g %% of the requests keep %s%s",
			r.label(p), p.GoodputGPU, 100*r.Attainment, sloText(p.SLO), r.leastNetwork())
	default:
		p := r.Points[closest]
		r.Why = fmt.Sprintf("at no point do %g %% of the requests keep %s; the closest is %s with %.1f %%",
			100*r.Attainment, sloText(p.SLO), r.label(p), 100*p.Attained)
	}
}

// leastNetwork says how the best point was chosen by its network, where points have unequal ones.
func (r *SweepResult) leastNetwork() string {
	for _, p := range r.Points {
		if p.Cluster.Bandwidth() != r.Points[0].Cluster.Bandwidth() {
			return fmt.Sprintf("; within %g %% of it, the least network", 100*near)
		}
	}
	return ""
}

// lines are what is said below the table: the best at each load, which points were overloaded.
func (r *SweepResult) lines() (said []string) {
	for _, line := range []string{r.bestAt(), r.overloaded()} {
		if line != "" {
			said = append(said, line)
		}
	}
	return said
}
