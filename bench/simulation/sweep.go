package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"kvferry/bench/document"
	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/internal/config"
)

// A Sweep is a simulation run once for each combination of the values of its
// parameters.
type Sweep struct {
	Base   Simulation
	Params []SweepParam // one or two: the x axis, and the curves
}

// A SweepParam is a parameter and the values it takes.
type SweepParam struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// knobs are the parameters of the cluster: all that its model takes.
var knobs = cluster.Knobs.For(cluster.Sim)

// Special parameters are not one knob of the cluster's.
const (
	sweepNodes = "nodes" // prefill and decode nodes
	sweepRate  = "rate"  // of the load
	sweepSpeed = "speed" // of the trace
)

// sweepExamples show values of parameters whose knobs do not list theirs.
var sweepExamples = []string{
	sweepNodes + "=1:7,2:6,4:4 (prefill:decode)", "prefill=1,2,4", "decode=1,2,4", "both=4,8,16", sweepRate + "=4,8,16 (requests/s)", sweepSpeed + "=0.5,1,2 (of the trace)",
	"link=1GB/s,2.5GB/s,12.5GB/s (of one NIC)", "nics=1,2,4", "oversubscription=1,2,4 (of the leaf switches)", "kv-blocks=2000,4000 (of a node)",
	"kv-offloading-size=0,16,64 (GiB of host memory)", "max-local-disk-size=0,256,1024 (GiB of disk)", "conditional-disaggregation=0,256,512", "max-loras=4,8,16 (slots of a node)",
}

// SweepExamples shows every parameter, with values where those have a form of their own.
func SweepExamples() []string {
	out := slices.Clone(sweepExamples)
	shown := func(name string) bool {
		return slices.ContainsFunc(out, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	for _, k := range knobs {
		switch {
		case shown(k.Name):
		case k.Values != nil:
			out = append(out, k.Name+"="+strings.Join(k.Values(), ","))
		default:
			out = append(out, k.Name+"=...")
		}
	}
	return out
}

// Names returns the flags that say the same as the parameter, which are refused beside it.
func (p SweepParam) Names() []string {
	switch p.Name {
	case sweepNodes:
		return []string{"prefill", "decode"}
	case sweepRate:
		return []string{"request-rate"}
	}
	return []string{p.Name}
}

// known reports whether there is a parameter of that name.
func (p SweepParam) known() bool {
	return slices.Contains([]string{sweepNodes, sweepRate, sweepSpeed}, p.Name) || knobs.Lookup(p.Name) != nil
}

// set sets the parameter of a simulation.
func (p SweepParam) set(s *Simulation, v string) error {
	switch p.Name {
	case sweepNodes:
		prefill, decode, ok := strings.Cut(v, ":")
		if !ok {
			return fmt.Errorf("%q: write prefill:decode, such as 2:6", v)
		}
		return errors.Join(knobs.Set(&s.Spec, "prefill", prefill), knobs.Set(&s.Spec, "decode", decode))
	case sweepRate:
		switch {
		case s.Load.Takes("speed"):
			return errors.New("a trace has its own arrivals: sweep speed")
		case !s.Load.Takes("request-rate"):
			return fmt.Errorf("%s has its own arrivals: sweep something else", s.Load.Kind)
		}
		return setNumber(&s.Load.Rate, v)
	case sweepSpeed:
		if !s.Load.Takes("speed") {
			return errors.New("only a trace has a speed: sweep rate")
		}
		return setNumber(&s.Load.Speed, v)
	case "link":
		if strings.HasPrefix(v, "latency=") { // the comma of rate=..,latency=.. is the list's
			return fmt.Errorf("%q: name rates alone, such as link=1GB/s,25gbit", v)
		}
		base := s.Record()
		if err := knobs.Set(&s.Spec, p.Name, v); err != nil {
			return err
		}
		link, err := s.PacedLink()
		if latency := base.NIC().Latency; err == nil && link != nil && link.Latency == 0 && latency > 0 {
			s.Link = fmt.Sprintf("rate=%gB/s,latency=%v", link.BytesPerSecond, latency)
		}
		return err
	case "both":
		s.Prefill, s.Decode = 0, 0
	}
	return knobs.Set(&s.Spec, p.Name, v)
}

func setNumber(field *float64, v string) error {
	x, err := strconv.ParseFloat(v, 64)
	if err != nil || !(x > 0) {
		return fmt.Errorf("%q: write a number above 0", v)
	}
	*field = x
	return nil
}

// sets reports whether the parameter sets a field, or what it is in.
func (p SweepParam) sets(field string) bool {
	fields := map[string][]string{sweepNodes: {"Prefill", "Decode"}, sweepRate: {"Load.Rate"}, sweepSpeed: {"Load.Speed"}}[p.Name]
	if k := knobs.Lookup(p.Name); k != nil {
		fields = k.Fields
	}
	return slices.ContainsFunc(fields, func(f string) bool {
		return field == f || strings.HasPrefix(field, f+".") || strings.HasPrefix(field, f+"[")
	})
}

// ParseSweep reads name=value,value,...
func ParseSweep(text string) (SweepParam, error) {
	name, list, ok := strings.Cut(text, "=")
	p := SweepParam{Name: knobs.Canonical(name)}
	if name == "request-rate" {
		p.Name = sweepRate
	}
	if !ok || !p.known() {
		return SweepParam{}, fmt.Errorf("%q: write one of %s", text, strings.Join(SweepExamples(), "; "))
	}
	for v := range strings.SplitSeq(list, ",") {
		v = strings.TrimSpace(v)
		if v == "" || slices.Contains(p.Values, v) {
			return SweepParam{}, fmt.Errorf("%q: each value once, and none empty", text)
		}
		p.Values = append(p.Values, v)
	}
	return p, nil
}

// points are the simulations with the values that each has, the second parameter
// changing fastest.
func (w *Sweep) points() ([]Simulation, []map[string]string, error) {
	var bad config.Faults
	sims, params := []Simulation{w.Base}, []map[string]string{{}}
	for _, p := range w.Params {
		sims, params = w.vary(p, sims, params, &bad)
	}
	if len(bad) > 0 {
		return nil, nil, bad.Err("simulation.Sweep")
	}
	w.check(sims, params, &bad)
	return sims, params, bad.Err("simulation.Sweep")
}

// vary gives each of the simulations each of a parameter's values.
func (w *Sweep) vary(p SweepParam, sims []Simulation, params []map[string]string, bad *config.Faults) (varied []Simulation, values []map[string]string) {
	for i := range sims {
		for _, v := range p.Values {
			s := sims[i]
			if err := p.set(&s, v); err != nil && i == 0 {
				bad.Check("Params", fmt.Errorf("%s=%s: %w", p.Name, v, err))
			}
			of := maps.Clone(params[i])
			of[p.Name] = v
			varied, values = append(varied, s), append(values, of)
		}
	}
	return varied, values
}

// check notes what is wrong with a simulation, under the parameter that sets it. What is
// wrong with all of them is said once.
func (w *Sweep) check(sims []Simulation, params []map[string]string, bad *config.Faults) {
	seen := map[string]bool{}
	for i := range sims {
		var faults config.Faults
		faults.Check("Base", sims[i].Validate())
		for _, f := range faults {
			for _, p := range w.Params {
				if p.sets(strings.TrimPrefix(f.Field, "Base.")) {
					f = &config.Fault{Field: "Params", Err: fmt.Errorf("%s=%s: %w", p.Name, params[i][p.Name], f.Err)}
				}
			}
			if text := f.Error(); !seen[text] {
				seen[text] = true
				*bad = append(*bad, f)
			}
		}
	}
}

// Validate lists every fault of every point, as a [config.Invalid].
func (w *Sweep) Validate() error {
	var bad config.Faults
	switch len(w.Params) {
	case 1:
	case 2:
		a, b := w.Params[0], w.Params[1]
		if a.Name == b.Name {
			bad.Add("Params", a.Name, "given twice: sweep another parameter beside it, or leave it out")
			break
		}
		// The second would overwrite the first and its labels be wrong.
		if slices.ContainsFunc(a.Names(), func(name string) bool { return slices.Contains(b.Names(), name) }) {
			bad.Add("Params", b.Name, "%s is swept too, and sets the same: sweep one of them", a.Name)
		}
	default:
		bad.Add("Params", len(w.Params), "sweep one parameter, or two")
	}
	if len(bad) > 0 {
		return bad.Err("simulation.Sweep")
	}
	_, _, err := w.points()
	return err
}

func (w *Sweep) label(params map[string]string) string {
	var parts []string
	for _, p := range w.Params {
		parts = append(parts, p.Name+"="+params[p.Name])
	}
	return strings.Join(parts, " ")
}

// SweepResult is sweep.json.
type SweepResult struct {
	Clock      string       `json:"clock"` // "virtual"
	Params     []SweepParam `json:"params"`
	Attainment float64      `json:"attainment"`
	Points     []*Result    `json:"points"`
	Best       int          `json:"best"` // index of a point, -1 for none
	Why        string       `json:"why"`
}

// Run simulates the points, as many at a time as there are cores. A point is the
// same whatever runs beside it. done is told of each in their order, with the sweep so
// far, once those before it have ended too, progress how many requests have ended in all. When ctx is done the points
// that ended are returned with its error; a point that cannot be run stops the others.
func (w *Sweep) Run(ctx context.Context, progress func(ended int), done func(r *Result, sofar *SweepResult)) (*SweepResult, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	sims, params, err := w.points()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results := make([]*Result, len(sims))
	told := 0 // results that done has been told of
	var ended atomic.Int64
	var next atomic.Int64
	var mu sync.Mutex
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(sims)) {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(sims) {
					return
				}
				before := 0
				r, err := sims[i].Run(ctx, func(n int) {
					progress(int(ended.Add(int64(n - before))))
					before = n
				})
				if r == nil {
					if ctx.Err() == nil {
						stop(fmt.Errorf("%s: %w", w.label(params[i]), err))
					}
					return
				}
				// A point where everything was refused is a result like others.
				r.Params, r.Nodes = params[i], nil
				progress(int(ended.Add(int64(r.Requests - before))))
				mu.Lock()
				results[i] = r
				for ; told < len(results) && results[told] != nil; told++ {
					done(results[told], w.result(results[:told+1]))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	r := w.result(results)
	return r, errors.Join(context.Cause(ctx), r.refused())
}

// result is the sweep of the points that have ended; the others are nil.
func (w *Sweep) result(points []*Result) *SweepResult {
	r := &SweepResult{Clock: clock, Params: w.Params, Attainment: w.Base.Attainment}
	for _, p := range points {
		if p != nil {
			r.Points = append(r.Points, p)
		}
	}
	r.choose()
	return r
}

// refused is an error if no point served a request: the table would have nothing
// to say.
func (r *SweepResult) refused() error {
	for _, p := range r.Points {
		if p.Failed < p.Requests {
			return nil
		}
	}
	if len(r.Points) == 0 {
		return nil
	}
	return fmt.Errorf("every request of every point was refused, the first because: %s", r.Points[0].failure())
}

// latency is a metric's figures in ms, false where no request has the metric:
// a 0 would look better than any other point.
func (r *Result) latency(name string) (stats.Summary, bool) {
	l, ok := r.Latency[name]
	return l, ok && l.Max > 0
}

func (r *SweepResult) label(p *Result) string {
	return (&Sweep{Params: r.Params}).label(p.Params)
}

// table has a line a point, the best marked; E2EL where the SLO limits it.
func (r *SweepResult) table() document.Table {
	cols := document.Cols[*Result]{{"", func(p *Result) string { return map[bool]string{true: "*"}[r.Best >= 0 && p == r.Points[r.Best]] }}}
	add := func(head string, cell func(*Result) string) {
		cols = append(cols, document.Cols[*Result]{{head, cell}}...)
	}
	for _, q := range r.Params {
		add(q.Name, func(p *Result) string { return p.Params[q.Name] })
	}
	latency := func(name, head string, digits int) {
		figure := func(of func(stats.Summary) float64) func(*Result) string {
			return func(p *Result) string {
				if l, ok := p.latency(name); ok {
					return document.Fixed(of(l), digits)
				}
				return ""
			}
		}
		add(head+" mean", figure(func(l stats.Summary) float64 { return l.Mean }))
		add("P99 ms", figure(func(l stats.Summary) float64 { return l.P99 }))
	}
	latency("ttft", "TTFT", 0)
	latency("tpot", "TPOT", 1)
	if len(r.Points) > 0 && r.Points[0].SLO.Limit("e2el") > 0 {
		latency("e2el", "E2EL", 0)
	}
	most := func(of func(Role) float64) func(*Result) string {
		return func(p *Result) string { return percent(greatest(p.Roles, of)) }
	}
	add("goodput/s", func(p *Result) string { return document.Fixed(p.Goodput, 2) })
	add("attained %", func(p *Result) string { return percent(p.Attained) })
	add("a GPU", func(p *Result) string { return document.Fixed(p.GoodputGPU, 3) })
	add("prefill busy %", most(func(k Role) float64 { return k.Prefill }))
	add("decode busy %", most(func(k Role) float64 { return k.Decode }))
	add("NIC most %", most(func(k Role) float64 { return max(k.SentMax, k.ReceivedMax) }))
	add("KV GB", func(p *Result) string { return document.Fixed(float64(p.KVBytes)/1e9, 1) })
	if slices.ContainsFunc(r.Points, func(p *Result) bool { return p.Cluster.Node.Tiers.Asked() }) {
		for i, head := range []string{"hits GPU %", "host %", "disk %"} {
			add(head, func(p *Result) string { gpu, host, disk := p.hits(); return percent([]float64{gpu, host, disk}[i]) })
		}
	}
	counted := func(head string, count func(*Result) uint64) {
		if slices.ContainsFunc(r.Points, func(p *Result) bool { return count(p) > 0 }) {
			add(head, func(p *Result) string { return fmt.Sprint(count(p)) })
		}
	}
	counted("adapter loads", (*Result).adapterLoads)
	counted("switches", (*Result).adapterSwitches)
	t := cols.Table("virtual time, everything modelled", len(r.Params)+1, r.Points)
	t.Best = r.Best + 1
	return t
}
