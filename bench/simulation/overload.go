package simulation

import (
	"fmt"
	"math"
	"strings"
	"time"

	"kvferry/bench/stats"
	"kvferry/sim"
)

// An Overload says that requests came faster than they were served: how long they waited, and so
// every latency, is a matter of how long the run was.
type Overload struct {
	Came   float64 `json:"came"`   // requests/s
	Served float64 `json:"served"` // requests/s
	Limit  string  `json:"limit"`  // the role that was, or network
	Why    string  `json:"why"`
}

// Limits of what is called overload. Of requests that come λ a second and are served μ a second, one
// after another, the one that comes at t waits t (λ/μ - 1): TTFT grows by the time, and most of what
// it differs by is that. Transfers that share a NIC all wait for each other, and TTFT need not grow:
// there the NIC is busy from beginning to end.
const (
	overloadLeast  = 100  // requests; of fewer a few that come close together are the whole run
	overloadSlower = 0.95 // of the rate at which they came
	overloadSlope  = 0.05 // seconds of TTFT a second
	overloadShare  = 0.5  // of TTFT's variance
	limitBusy      = 0.9  // of a role that is the limit
)

// growth is the least-squares line of TTFT over the time of arrival, in seconds.
type growth struct {
	n, x, y, xx, xy, yy float64
	first, last         float64 // arrivals
}

func (g *growth) add(o *sim.Outcome) {
	x, y := o.Arrived.Seconds(), o.TTFT().Seconds()
	if g.n == 0 {
		g.first = x
	}
	g.n++
	g.first, g.last = min(g.first, x), max(g.last, x)
	g.x, g.y, g.xx, g.xy, g.yy = g.x+x, g.y+y, g.xx+x*x, g.xy+x*y, g.yy+y*y
}

// overload is nil where requests were served as they came.
func (g *growth) overload(duration time.Duration, roles []Role) *Overload {
	if g.n < overloadLeast || g.last <= g.first || duration <= 0 {
		return nil
	}
	came, served := (g.n-1)/(g.last-g.first), g.n/duration.Seconds()
	if served > overloadSlower*came {
		return nil
	}
	o := &Overload{Came: stats.Round(came, 4), Served: stats.Round(served, 4)}
	for _, r := range roles {
		if wire := max(r.Sent, r.Received); wire >= limitBusy {
			o.Limit, o.Why = "network", fmt.Sprintf("NICs of %s nodes busy %s %%", r.Role, percent(wire))
			return o
		}
	}
	xx, xy, yy := g.n*g.xx-g.x*g.x, g.n*g.xy-g.x*g.y, g.n*g.yy-g.y*g.y
	if xy < overloadSlope*xx || xy*xy < overloadShare*xx*yy {
		return nil
	}
	r := roles[len(roles)-1] // they are in the order of a request's way
	if first := roles[0]; first.Role == "prefill" && first.Busy >= limitBusy {
		r = first
	}
	o.Limit, o.Why = r.Role, fmt.Sprintf("GPU busy %s %%, KV pool %s %% held", percent(r.Busy), percent(r.Pool))
	o.Why += fmt.Sprintf("; it takes %.0f %s nodes or more", math.Ceil(float64(r.Nodes)*came/served), o.Limit)
	return o
}

func (o *Overload) String() string {
	limit := o.Limit + " nodes were"
	if o.Limit == "network" {
		limit = "the network was"
	}
	return fmt.Sprintf("%.2f requests/s came and %.2f were served, so latencies say how long the run was; %s the limit (%s)", o.Came, o.Served, limit, o.Why)
}

// overloaded names the points of a sweep where requests came faster than they were served.
func (r *SweepResult) overloaded() string {
	var labels []string
	for _, p := range r.Points {
		if p.Overload != nil {
			labels = append(labels, fmt.Sprintf("%s (%s)", r.label(p), p.Overload.Limit))
		}
	}
	if len(labels) == 0 {
		return ""
	}
	return "overloaded, requests came faster than they were served, and what was the limit: " + strings.Join(labels, "; ")
}
