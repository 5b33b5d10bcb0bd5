package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"

	"kvferry/bench/document"
	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/load"
	"kvferry/sim"
)

// A Result is one cluster under one load, as it stands in summary.json
// and sweep.json. Everything in it is modelled.
type Result struct {
	Clock   string            `json:"clock"` // "virtual"
	Params  map[string]string `json:"params,omitempty"`
	Cluster cluster.Record    `json:"cluster"`
	Load    LoadRecord        `json:"load"`

	Requests  int                      `json:"requests"`
	Failed    int                      `json:"failed_requests"`
	Failure   string                   `json:"first_failure,omitempty"`
	see       string                   // the flag that Failure is about
	Beyond    int                      `json:"beyond_model_len,omitempty"` // requests longer than the model of the profile takes
	DurationS float64                  `json:"duration_s"`
	Latency   map[string]stats.Summary `json:"latency_ms"` // ttft, tpot, itl, e2el

	RequestThroughput float64 `json:"request_throughput"`      // requests/s
	OutputThroughput  float64 `json:"output_token_throughput"` // tokens/s
	PromptTokens      int64   `json:"prompt_tokens"`
	OutputTokens      int64   `json:"output_tokens"`
	CachedTokens      int64   `json:"cached_tokens"` // prompt tokens not computed again

	SLO        stats.SLO `json:"slo"`
	Good       int       `json:"good_requests"`   // kept the SLO
	Attained   float64   `json:"attained"`        // share of all requests that did
	Goodput    float64   `json:"request_goodput"` // good requests/s
	GoodputGPU float64   `json:"goodput_per_gpu"` // good requests/s a GPU
	KVBytes    int64     `json:"kv_bytes"`        // moved between nodes by hand-offs
	// Of requests that went on on other nodes: how often that was, the bytes that were moved for
	// it, and the time in which none of its tokens came, each time and at most.
	Migrations       int       `json:"migrations,omitempty"`
	MigratedBytes    int64     `json:"migrated_bytes,omitempty"`
	MigrationPauseMS float64   `json:"migration_pause_ms,omitempty"`
	MigrationMaxMS   float64   `json:"migration_pause_max_ms,omitempty"`
	Overload         *Overload `json:"overload,omitempty"`
	Roles            []Role    `json:"roles"`             // nodes of a kind, together
	Events           uint64    `json:"simulation_events"` // of the simulation
	WallS            float64   `json:"simulation_wall_s"` // it took

	Nodes []sim.NodeStats `json:"nodes"`

	TTFT, TPOT *stats.Histogram `json:"-"`
}

// LoadRecord is what the cluster was asked to do.
type LoadRecord struct {
	Kind       string  `json:"kind,omitempty"` // of package load, but random and trace, which the fields tell
	Trace      string  `json:"trace,omitempty"`
	Speed      float64 `json:"speed,omitempty"`
	Requests   int     `json:"requests"`
	Rate       float64 `json:"request_rate,omitempty"` // requests/s; 0: all at once
	Burstiness float64 `json:"burstiness,omitempty"`
	InputLen   int     `json:"random_input_len,omitempty"`
	OutputLen  int     `json:"random_output_len,omitempty"`
	RangeRatio float64 `json:"random_range_ratio,omitempty"`
	PrefixLen  int     `json:"random_prefix_len,omitempty"`
	Seed       uint64  `json:"seed"`
	InFlight   int     `json:"max_concurrency,omitempty"` // requests under way at once; 0: any number
	// Adapters are the LoRA adapters that requests are for, AdapterChoice how each gets one.
	Adapters      []string `json:"adapters,omitempty"`
	AdapterChoice string   `json:"adapter_choice,omitempty"`
}

func (l *LoadRecord) String() string {
	s := l.asked()
	if n := len(l.Adapters); n > 0 {
		s += fmt.Sprintf(", for %d LoRA adapters (%s)", n, cmp.Or(l.AdapterChoice, load.AdapterRandom))
	}
	if l.InFlight > 0 {
		s += fmt.Sprintf(", at most %d at once", l.InFlight)
	}
	return s
}

func (l *LoadRecord) asked() string {
	if l.Trace != "" {
		return fmt.Sprintf("%d requests of %s at %g times its speed", l.Requests, l.Trace, l.Speed)
	}
	if l.Kind != "" && l.InputLen == 0 {
		return fmt.Sprintf("%d requests of %s, seed %d", l.Requests, l.Kind, l.Seed)
	}
	rate := "all at once"
	if l.Rate > 0 {
		rate = fmt.Sprintf("%g requests/s, burstiness %g", l.Rate, l.Burstiness)
	}
	kind := ""
	if l.Kind != "" {
		kind = " of " + l.Kind
	}
	s := fmt.Sprintf("%d requests%s, %s, %d prompt and %d output tokens", l.Requests, kind, rate, l.InputLen, l.OutputLen)
	if l.RangeRatio > 0 {
		s += fmt.Sprintf(" +-%g %%", 100*l.RangeRatio)
	}
	if l.PrefixLen > 0 {
		s += fmt.Sprintf(" after a common prefix of %d", l.PrefixLen)
	}
	return s + fmt.Sprintf(", seed %d", l.Seed)
}

// A Role is the nodes of a kind. Shares are of the run's duration or of the
// capacity, from 0 to 1; mean and the busiest node's.
type Role struct {
	Role        string  `json:"role"`
	Nodes       int     `json:"nodes"`
	Busy        float64 `json:"busy"` // the GPU computes
	BusyMax     float64 `json:"busy_max"`
	Prefill     float64 `json:"prefill_busy"` // computes prompts, alone or with decodes
	Decode      float64 `json:"decode_busy"`
	Pool        float64 `json:"pool"` // KV blocks held, over time
	PoolMax     float64 `json:"pool_max"`
	PoolPeak    float64 `json:"pool_peak"` // at once
	Preemptions uint64  `json:"preemptions"`
	// AdapterLoads is how often a LoRA adapter was loaded into a slot.
	AdapterLoads uint64 `json:"adapter_loads,omitempty"`
	// AdapterS is how long steps waited for that.
	AdapterS float64 `json:"adapter_load_s,omitempty"`
	// AdapterSwitches is how often another was merged into the model's weights, or none.
	AdapterSwitches uint64  `json:"adapter_switches,omitempty"`
	Sent            float64 `json:"nic_sent"` // of what the NICs could
	SentMax         float64 `json:"nic_sent_max"`
	Received        float64 `json:"nic_received"`
	ReceivedMax     float64 `json:"nic_received_max"`
	PrefixAsked     uint64  `json:"prefix_query_tokens"`
	PrefixHits      uint64  `json:"prefix_hit_tokens"`
	HostHits        uint64  `json:"host_hit_tokens,omitempty"` // of those that the prefix cache did not have
	DiskHits        uint64  `json:"disk_hit_tokens,omitempty"`
	LoadedGB        float64 `json:"loaded_gb,omitempty"` // from host memory to the GPU; the next, back
	StoredGB        float64 `json:"stored_gb,omitempty"`
	ReadGB          float64 `json:"disk_read_gb,omitempty"`
	WrittenGB       float64 `json:"disk_written_gb,omitempty"`
}

func newResult(s *Simulation, sum *summary, st *sim.Stats) *Result {
	duration := st.Duration.Seconds()
	perSecond := func(n float64) float64 {
		if duration == 0 {
			return 0
		}
		return n / duration
	}
	r := &Result{
		Clock:    clock,
		Cluster:  s.Record(),
		Load:     s.loadRecord(),
		Requests: st.Requests, Failed: sum.Failed, DurationS: stats.Round(duration, 6),
		Latency: map[string]stats.Summary{
			"ttft": sum.TTFT.Summary().Rounded(), "tpot": sum.TPOT.Summary().Rounded(), "itl": sum.ITL.Summary().Rounded(), "e2el": sum.E2EL.Summary().Rounded(),
		},
		RequestThroughput: perSecond(float64(st.Ended - sum.Failed)), OutputThroughput: perSecond(float64(sum.OutputTokens)),
		PromptTokens: sum.PromptTokens, OutputTokens: sum.OutputTokens, CachedTokens: sum.CachedTokens,
		SLO: s.SLO, Good: sum.Good, Goodput: perSecond(float64(sum.Good)), KVBytes: st.KVBytes, Events: st.Events, Nodes: st.Nodes,
	}
	if s.Proxy.Migration.Migrates() {
		r.Migrations, r.MigratedBytes = st.Migrations, st.MigratedBytes
		r.MigrationPauseMS = stats.Round(sum.Paused.Seconds()*1e3/float64(max(st.Migrations, 1)), 4)
		r.MigrationMaxMS = stats.Round(sum.PausedMax.Seconds()*1e3, 4)
	}
	if sum.FirstFailure != nil {
		r.Failure, r.see = sum.FirstFailure.Error(), see(sum.FirstFailure)
	}
	r.Beyond = sum.Beyond
	if st.Requests > 0 {
		r.Attained = float64(sum.Good) / float64(st.Requests)
	}
	r.GoodputGPU = r.Goodput / float64(r.Cluster.Nodes()*r.Cluster.NodeGPUs)
	r.Roles = roles(st.Nodes, duration, r.Cluster.NIC().BytesPerSecond*float64(max(s.NICs, 1)), float64(r.Cluster.Costs.KVGeometry.BlockBytes())/1e9)
	if s.Load.InFlight == 0 && !s.Load.Takes("max-delay") { // requests come when they come
		r.Overload = sum.Growth.overload(st.Duration, r.Roles)
	}
	return r
}

func (s *Simulation) loadRecord() LoadRecord {
	l := s.Load
	if l.Kind == load.Traced {
		return LoadRecord{Trace: l.File, Speed: l.Speed, Requests: l.Requests, InFlight: l.InFlight, Adapters: l.Adapters.Names, AdapterChoice: l.Adapters.Choice}
	}
	r := LoadRecord{Requests: l.Requests, Seed: l.Seed, InFlight: l.InFlight, Adapters: l.Adapters.Names, AdapterChoice: l.Adapters.Choice}
	if l.Kind != load.Random {
		r.Kind = l.Kind
	}
	if l.Takes("request-rate") {
		r.Rate, r.Burstiness = l.Rate, l.Burstiness
	}
	if l.Takes("random-input-len") {
		r.InputLen, r.OutputLen, r.RangeRatio, r.PrefixLen = l.InputLen, l.OutputLen, l.RangeRatio, l.PrefixLen
	}
	if math.IsInf(r.Rate, 1) {
		r.Rate = 0 // JSON has no infinity
	}
	return r
}

func roles(nodes []sim.NodeStats, duration, nicRate, blockGB float64) []Role {
	var all []Role
	at := map[string]int{}
	share := func(part, whole float64) float64 {
		if whole == 0 {
			return 0
		}
		return part / whole
	}
	sum := func(v []float64) (s float64) {
		for _, x := range v {
			s += x
		}
		return s
	}
	for i := range nodes {
		n := &nodes[i]
		k, ok := at[n.Role]
		if !ok {
			k = len(all)
			at[n.Role] = k
			all = append(all, Role{Role: n.Role})
		}
		r := &all[k]
		prefill, decode := share(n.PrefillBusy.Seconds(), duration), share(n.DecodeBusy.Seconds(), duration)
		pool := share(n.BlockSeconds, duration*float64(n.Blocks))
		sent, received := share(sum(n.Sent), duration*nicRate), share(sum(n.Received), duration*nicRate)
		r.Nodes++
		r.Prefill, r.Decode, r.Busy = r.Prefill+prefill, r.Decode+decode, r.Busy+prefill+decode
		r.BusyMax = max(r.BusyMax, prefill+decode)
		r.Pool, r.PoolMax, r.PoolPeak = r.Pool+pool, max(r.PoolMax, pool), max(r.PoolPeak, float64(n.PeakBlocks)/float64(n.Blocks))
		r.Sent, r.SentMax = r.Sent+sent, max(r.SentMax, sent)
		r.Received, r.ReceivedMax = r.Received+received, max(r.ReceivedMax, received)
		r.Preemptions += n.Preemptions
		r.AdapterLoads, r.AdapterSwitches = r.AdapterLoads+n.AdapterLoads, r.AdapterSwitches+n.AdapterSwitches
		r.AdapterS += n.AdapterTime.Seconds()
		r.PrefixAsked, r.PrefixHits = r.PrefixAsked+n.PrefixQueries, r.PrefixHits+n.PrefixHits
		r.HostHits, r.DiskHits = r.HostHits+n.Tiers.HostHits, r.DiskHits+n.Tiers.DiskHits
		r.LoadedGB, r.StoredGB = r.LoadedGB+float64(n.Tiers.Loaded)*blockGB, r.StoredGB+float64(n.Tiers.Stored)*blockGB
		r.ReadGB, r.WrittenGB = r.ReadGB+float64(n.Tiers.Read)*blockGB, r.WrittenGB+float64(n.Tiers.Written)*blockGB
	}
	for i := range all {
		r := &all[i]
		for _, mean := range []*float64{&r.Busy, &r.Prefill, &r.Decode, &r.Pool, &r.Sent, &r.Received} {
			*mean /= float64(r.Nodes)
		}
	}
	return all
}

var latencyNames = []string{"ttft", "tpot", "itl", "e2el"}

func percent(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

func (r *Result) tables() []document.Table {
	lat := document.Table{Title: "latency (ms)", Left: 1, Head: []string{"metric", "mean", "p50", "p90", "p95", "p99", "max"}}
	for _, name := range latencyNames {
		row := []string{strings.ToUpper(name)}
		if l, any := r.latency(name); any {
			for _, v := range []float64{l.Mean, l.Median, l.P90, l.P95, l.P99, l.Max} {
				row = append(row, document.Fixed(v, 1))
			}
		}
		lat.Add(row...)
	}
	use := document.Table{Title: "utilisation (%)", Left: 1, Head: []string{
		"role", "nodes", "GPU busy", "busiest", "prefill", "decode", "KV pool", "peak", "preempted", "NIC sent", "most", "received", "most",
	}}
	for _, k := range r.Roles {
		row := []string{
			k.Role, fmt.Sprint(k.Nodes), percent(k.Busy), percent(k.BusyMax), percent(k.Prefill), percent(k.Decode), percent(k.Pool), percent(k.PoolPeak),
			fmt.Sprint(k.Preemptions),
		}
		if r.Cluster.MovesKV() {
			row = append(row, percent(k.Sent), percent(k.SentMax), percent(k.Received), percent(k.ReceivedMax))
		}
		use.Add(row...)
	}
	return []document.Table{lat, use}
}

// lines are the rest of the report.
func (r *Result) lines() []string {
	out := []string{
		fmt.Sprintf("goodput      %.2f requests/s, %.3f a GPU: %.1f %% of the requests kept %s", r.Goodput, r.GoodputGPU, 100*r.Attained, sloText(r.SLO)),
		fmt.Sprintf("throughput   %.2f requests/s, %.0f output tokens/s, over %.1f s", r.RequestThroughput, r.OutputThroughput, r.DurationS),
	}
	if r.Overload != nil {
		out = append(out, "overloaded   "+r.Overload.String())
	}
	if r.Cluster.MovesKV() {
		out = append(out, fmt.Sprintf("KV moved     %.2f GB", float64(r.KVBytes)/1e9))
	}
	if n := r.adapterLoads(); n > 0 {
		text := fmt.Sprintf("adapters     %d loads into slots, for which steps waited %.1f s", n, r.adapterSeconds())
		if n := r.adapterSwitches(); n > 0 {
			text += fmt.Sprintf(", %d changes of the merged one", n)
		}
		out = append(out, text)
	}
	if r.Cluster.Proxy.Migration.Migrates() {
		out = append(out, fmt.Sprintf("migration    %d times a running request went on on another node, %.2f GB moved, paused %.1f ms on average, %.1f ms at most", r.Migrations, float64(r.MigratedBytes)/1e9, r.MigrationPauseMS, r.MigrationMaxMS))
	}
	if r.Cluster.Node.PrefixCaching {
		out = append(out, fmt.Sprintf("prefix cache %.1f %% of the prompt tokens were not computed again", 100*float64(r.CachedTokens)/max(float64(r.PromptTokens), 1)))
	}
	out = append(out, r.tierLines()...)
	if r.Failed > 0 {
		out = append(out, fmt.Sprintf("refused      %d of %d requests, the first: %s", r.Failed, r.Requests, r.failure()))
	}
	if r.Beyond > 0 {
		out = append(out, fmt.Sprintf("too long     %d of %d requests for the profile's max_model_len: a real server of that model would refuse them", r.Beyond, r.Requests))
	}
	return append(out, fmt.Sprintf("simulation   %.2f s for %d requests, %.2f million events a second", r.WallS, r.Requests, float64(r.Events)/max(r.WallS, 1e-9)/1e6))
}

// failure is the first one, with the flag that it is about.
func (r *Result) failure() string { return r.Failure + r.see }

// see names the flag that has a request refused.
func see(err error) string {
	switch {
	case errors.Is(err, engine.ErrTooLong):
		return " (see --max-model-len)"
	case errors.Is(err, engine.ErrPoolSize):
		return " (see --kv-blocks)"
	}
	return ""
}

// adapterLoads, adapterSeconds and adapterSwitches sum over all nodes the loads into slots, the time that steps
// waited for these, and the changes of the merged adapter.
func (r *Result) adapterLoads() uint64 {
	return total(r.Roles, func(k Role) uint64 { return k.AdapterLoads })
}

func (r *Result) adapterSeconds() float64 {
	return total(r.Roles, func(k Role) float64 { return k.AdapterS })
}

func (r *Result) adapterSwitches() uint64 {
	return total(r.Roles, func(k Role) uint64 { return k.AdapterSwitches })
}

func total[N uint64 | float64](roles []Role, of func(Role) N) (sum N) {
	for _, k := range roles {
		sum += of(k)
	}
	return sum
}

// greatest returns the greatest value of any role, 0 if there are no roles.
func greatest(roles []Role, of func(Role) float64) (most float64) {
	for _, k := range roles {
		most = max(most, of(k))
	}
	return most
}

// sloText names the limits of an SLO.
func sloText(s stats.SLO) string {
	return cmp.Or(s.Text("<=", " and "), "the SLO, which has no limits")
}
