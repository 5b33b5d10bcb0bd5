package simulation

import (
	"cmp"
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
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/placement"
	"kvferry/sim"
)

// A Sweep is a simulation run once for each combination of the values of its
// parameters.
type Sweep struct {
	Base   Simulation
	Params []SweepParam // one or two: the x axis, and the curves
	// ParseNIC reads a value of the parameter link.
	ParseNIC func(string) (sim.NIC, error)
}

// A SweepParam is a parameter and the values it takes.
type SweepParam struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

type sweepSetter struct {
	name, example string
	fields        []string // of a Simulation
	set           func(w *Sweep, s *Simulation, value string) error
}

// sweepable sets parameters on a simulation, by name. Each says what its values
// look like, and which fields they go into.
var sweepable = []sweepSetter{
	{"nodes", "nodes=1:7,2:6,4:4 (prefill:decode)", []string{"Prefill", "Decode"}, func(_ *Sweep, s *Simulation, v string) error {
		p, d, ok := strings.Cut(v, ":")
		if !ok {
			return fmt.Errorf("%q: write prefill:decode, such as 2:6", v)
		}
		return errors.Join(setCount(&s.Prefill, p), setCount(&s.Decode, d))
	}},
	{"prefill", "prefill=1,2,4", []string{"Prefill"}, func(_ *Sweep, s *Simulation, v string) error { return setCount(&s.Prefill, v) }},
	{"decode", "decode=1,2,4", []string{"Decode"}, func(_ *Sweep, s *Simulation, v string) error { return setCount(&s.Decode, v) }},
	{"both", "both=4,8,16", []string{"Nondisagg"}, func(_ *Sweep, s *Simulation, v string) error {
		s.Prefill, s.Decode = 0, 0
		return setCount(&s.Nondisagg, v)
	}},
	{"rate", "rate=4,8,16 (requests/s)", []string{"Load.Rate"}, func(_ *Sweep, s *Simulation, v string) error {
		switch {
		case s.Load.Reads("Speed"):
			return errors.New("a trace has its own arrivals: sweep speed")
		case !s.Load.Reads("Rate"):
			return fmt.Errorf("%s has its own arrivals: sweep something else", s.Load.Kind)
		}
		return setNumber(&s.Load.Rate, v)
	}},
	{"speed", "speed=0.5,1,2 (of the trace)", []string{"Load.Speed"}, func(_ *Sweep, s *Simulation, v string) error {
		if !s.Load.Reads("Speed") {
			return errors.New("only a trace has a speed: sweep rate")
		}
		return setNumber(&s.Load.Speed, v)
	}},
	{"link", "link=1GB/s,2.5GB/s,12.5GB/s (of one NIC)", []string{"NIC"}, func(w *Sweep, s *Simulation, v string) error {
		if strings.HasPrefix(v, "latency=") { // the comma of rate=..,latency=.. is the list's
			return fmt.Errorf("%q: name rates alone, such as link=1GB/s,25gbit", v)
		}
		nic, err := w.ParseNIC(v)
		config.Default(&nic.Latency, s.NIC.Latency)
		s.NIC = nic
		return err
	}},
	{"nics", "nics=1,2,4", []string{"NICs"}, func(_ *Sweep, s *Simulation, v string) error { return setCount(&s.NICs, v) }},
	{"oversubscription", "oversubscription=1,2,4 (of the leaf switches)", []string{"Oversubscription"}, func(_ *Sweep, s *Simulation, v string) error { return setNumber(&s.Oversubscription, v) }},
	{"kv-offloading-size", "kv-offloading-size=0,16,64 (GiB of host memory)", []string{"Tiers.HostGiB"}, func(_ *Sweep, s *Simulation, v string) error { return setSize(&s.Tiers.HostGiB, v) }},
	{"max-local-disk-size", "max-local-disk-size=0,256,1024 (GiB of disk)", []string{"Tiers.DiskGiB"}, func(_ *Sweep, s *Simulation, v string) error { return setSize(&s.Tiers.DiskGiB, v) }},
	{"handoff", "handoff=" + strings.Join(handoff.Names(), ","), []string{"Handoff"}, func(_ *Sweep, s *Simulation, v string) error { s.Handoff = v; return nil }},
	{"conditional", "conditional=0,256,512 (--conditional-disaggregation)", []string{"ConditionalDisaggregation"}, func(_ *Sweep, s *Simulation, v string) (err error) {
		s.ConditionalDisaggregation, err = strconv.Atoi(v)
		return err
	}},
	{"migration", "migration=" + strings.Join(placement.Migrations(), ","), []string{"Migration.Policy"}, func(_ *Sweep, s *Simulation, v string) error { s.Migration.Policy = v; return nil }},
	{"scheduler", "scheduler=" + strings.Join(engine.Schedulers(), ","), []string{"Scheduler"}, func(_ *Sweep, s *Simulation, v string) error {
		if s.Scheduler = v; !slices.Contains(engine.Schedulers(), v) {
			return fmt.Errorf("%q: use %s", v, config.Or(engine.Schedulers()))
		}
		return nil
	}},
	{"kv-blocks", "kv-blocks=2000,4000 (of a node)", []string{"KVBlocks"}, func(_ *Sweep, s *Simulation, v string) error { return setCount(&s.KVBlocks, v) }},
	{"max-loras", "max-loras=4,8,16 (slots of a node)", []string{"MaxLoRAs"}, func(_ *Sweep, s *Simulation, v string) error { return setCount(&s.MaxLoRAs, v) }},
	{"merge-loras", "merge-loras=" + strings.Join(engine.Mergings(), ","), []string{"MergeLoRAs"}, func(_ *Sweep, s *Simulation, v string) error {
		if s.MergeLoRAs = engine.Merging(v); !slices.Contains(engine.Mergings(), v) {
			return fmt.Errorf("%q: use %s", v, config.Or(engine.Mergings()))
		}
		return nil
	}},
	{"placement", "placement=" + strings.Join(placement.Names(), ","), []string{"Placement"}, func(_ *Sweep, s *Simulation, v string) error { s.Placement = v; return nil }},
}

// sweepFlags are names of flags that sweep as parameters of shorter names.
var sweepFlags = map[string]string{"request-rate": "rate", "conditional-disaggregation": "conditional"}

// SweepExamples shows every parameter with values.
func SweepExamples() []string {
	var out []string
	for _, p := range sweepable {
		out = append(out, p.example)
	}
	return out
}

func setCount(field *int, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > 1<<20 {
		return fmt.Errorf("%q: write a whole number from 1 to %d", v, 1<<20)
	}
	*field = n
	return nil
}

func setNumber(field *float64, v string) error {
	x, err := strconv.ParseFloat(v, 64)
	if err != nil || !(x > 0) {
		return fmt.Errorf("%q: write a number above 0", v)
	}
	*field = x
	return nil
}

// setter is the parameter's; nil if there is none.
func (p SweepParam) setter() *sweepSetter {
	i := slices.IndexFunc(sweepable, func(s sweepSetter) bool { return s.name == p.Name })
	if i < 0 {
		return nil
	}
	return &sweepable[i]
}

// Fields are those of a Simulation that the parameter sets.
func (p SweepParam) Fields() []string { return p.setter().fields }

// sets reports whether the parameter sets a field, or what it is in.
func (p SweepParam) sets(field string) bool {
	return slices.ContainsFunc(p.Fields(), func(f string) bool { return field == f || strings.HasPrefix(field, f+".") })
}

// ParseSweep reads name=value,value,...
func ParseSweep(text string) (SweepParam, error) {
	name, list, ok := strings.Cut(text, "=")
	p := SweepParam{Name: cmp.Or(sweepFlags[name], name)}
	if !ok || p.setter() == nil {
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
			if err := p.setter().set(w, &s, v); err != nil && i == 0 {
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
		for _, field := range a.Fields() {
			if b.sets(field) {
				bad.Add("Params", b.Name, "%s is swept too, and sets the same: sweep one of them", a.Name)
				break
			}
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
	if slices.ContainsFunc(r.Points, func(p *Result) bool { return p.Cluster.Tiers != nil }) {
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
