package rail

import (
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/transport"
)

// A Result is a run: its conditions and its points.
type Result struct {
	Command     []string                `json:"command"`
	Started     time.Time               `json:"started"`
	Protocol    int                     `json:"protocol"` // of the control connection; its version is the bench's
	Settings    Settings                `json:"settings"`
	Initiator   End                     `json:"initiator"`
	Target      End                     `json:"target"`
	Points      []Point                 `json:"points"`
	References  []Reference             `json:"references,omitempty"` // measured beside the points
	Notes       []string                `json:"notes,omitempty"`
	Interrupted bool                    `json:"interrupted,omitempty"`
	Error       string                  `json:"error,omitempty"` // why the run ended before its last point
	limit       func(count int) float64 // of so many rails, bytes a second; not above 0 is unknown
}

// Settings are a run's flags that all points share.
type Settings struct {
	Rails       []string `json:"rails"`
	DurationS   float64  `json:"duration_s,omitempty"`
	Iterations  int      `json:"iterations,omitempty"`
	WarmupS     float64  `json:"warmup_s"`
	Segment     int64    `json:"segment_bytes"`
	Slice       int      `json:"slice_bytes"`
	TimeoutS    float64  `json:"timeout_s"`
	Check       bool     `json:"check"`
	Seed        uint64   `json:"seed"`
	Latency     bool     `json:"latency,omitempty"` // of one batch at a time, as its caller sees it
	KV          []KVSize `json:"kv_sizes,omitempty"`
	LimitGBps   *float64 `json:"limit_gb_per_s"`         // nil is unknown
	LimitSource string   `json:"limit_source,omitempty"` // "--limit", or the NICs
}

// An End is the initiator or the target of a run.
type End struct {
	Where   string          `json:"where"`
	Rails   []string        `json:"rails"` // with their addresses
	Machine observe.Machine `json:"machine"`
}

// A Point is what was measured of one combination.
type Point struct {
	Op      string `json:"op"`
	Block   int64  `json:"block_bytes"`
	Batch   int    `json:"batch"`
	Threads int    `json:"threads"`
	Depth   int    `json:"depth"`
	Count   int    `json:"rail_count"` // of the run's rails, from the first
	Select  string `json:"select"`
	Peers   int    `json:"initiators"`
	Imm     bool   `json:"immediate"`

	Seconds   float64  `json:"seconds"` // of the interval, or of all iterations
	Batches   int64    `json:"batches"`
	Blocks    int64    `json:"blocks"`
	Bytes     int64    `json:"bytes"`
	GBps      float64  `json:"gb_per_s"`
	PeakGBps  float64  `json:"peak_gb_per_s"` // of the best slot that was whole
	LimitPct  *float64 `json:"limit_percent"` // nil without a limit
	OpsPerS   float64  `json:"ops_per_s"`     // blocks
	Latency   Latency  `json:"batch_latency"`
	PostUS    float64  `json:"post_us"` // mean of a Submit
	PostP99US float64  `json:"post_p99_us"`
	CPU       CPU      `json:"cpu"`
	// Fairness is between initiators; nil of one.
	Fairness *stats.Fairness `json:"fairness,omitempty"`

	Errors  int    `json:"errors"` // batches
	Error   string `json:"error,omitempty"`
	Checked *int64 `json:"checked"` // blocks; nil without Config.Check
	Bad     *int64 `json:"bad"`
	BadAt   string `json:"bad_at,omitempty"` // the first

	SlotS       float64   `json:"slot_s"`
	SlotBytes   []int64   `json:"slot_bytes"` // completed in each slot
	RailsS      float64   `json:"rails_s"`    // between the two readings of them
	Rails       []RailUse `json:"rails"`
	Interrupted bool      `json:"interrupted,omitempty"`
}

// Latency is of a batch, from Submit to applied at the destination; with Settings.Latency from the
// call of Submit until the caller knows it.
type Latency struct {
	MinUS  float64 `json:"min_us"`
	MeanUS float64 `json:"mean_us"`
	P50US  float64 `json:"p50_us"`
	P90US  float64 `json:"p90_us"`
	P99US  float64 `json:"p99_us"`
	P999US float64 `json:"p99_9_us"`
	MaxUS  float64 `json:"max_us"`
}

// CPU is the CPU time of the processes between two marks around the interval, and
// the bytes that completed between them.
type CPU struct {
	Initiator float64 `json:"initiator_s"`
	Target    float64 `json:"target_s"` // 0 if it is the initiator's process
	Bytes     int64   `json:"bytes"`
	PerGB     float64 `json:"s_per_gb"` // of both ends
}

// RailUse is a rail's part in a point, by slices, between two readings at the edges
// of the interval. That is finer than whole batches, where few fit in. Errors, Retries
// and Resent are with those of the warm-up.
type RailUse struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Slices  int64  `json:"slices"`
	Errors  int64  `json:"errors"`
	Retries int64  `json:"retries"`
	Resent  int64  `json:"resent_bytes"` // of slices that were posted again
}

// Failures counts failed batches and bad blocks.
func (r *Result) Failures() (errors int, bad int64) {
	for i := range r.Points {
		errors += r.Points[i].Errors
		if b := r.Points[i].Bad; b != nil {
			bad += *b
		}
	}
	return errors, bad
}

// record fills in what the load has counted over d.
func (p *Point) record(l *load, d time.Duration, limit float64) {
	t := l.sum()
	p.Seconds = d.Seconds()
	p.Batches, p.Blocks, p.Bytes = t.batches, t.blocks, t.bytes
	if d > 0 {
		p.GBps = float64(t.bytes) / p.Seconds / 1e9
		p.OpsPerS = float64(t.blocks) / p.Seconds
	}
	if l.meter != nil {
		rate, _ := l.meter.Rate()
		p.GBps, p.Bytes, p.OpsPerS = rate/1e9, int64(rate*p.Seconds), rate/float64(p.Block)
	}
	p.SlotS, p.SlotBytes = l.slot.Seconds(), t.slots
	p.PeakGBps = p.GBps
	for i, n := range t.slots {
		if time.Duration(i+1)*l.slot <= d {
			p.PeakGBps = max(p.PeakGBps, float64(n)/p.SlotS/1e9)
		}
	}
	if limit > 0 {
		pct := 100 * p.GBps * 1e9 / limit
		p.LimitPct = &pct
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	h := &t.latency
	p.Latency = Latency{
		MinUS: us(h.Min()), MeanUS: us(h.Mean()), P50US: us(h.Percentile(50)), P90US: us(h.Percentile(90)),
		P99US: us(h.Percentile(99)), P999US: us(h.Percentile(99.9)), MaxUS: us(h.Max()),
	}
	p.PostUS, p.PostP99US = us(t.post.Mean()), us(t.post.Percentile(99))
	p.Fairness = stats.Shares(l.byInitiator())
	var err error
	if p.Errors, err = l.errors(); err != nil {
		p.Error = err.Error()
	}
}

// An interval is the rails' counts when the interval begins and ends.
type interval struct {
	opened, shut time.Duration // by the engine's clock
	first, last  []transport.RailStats
}

// railUse is what the rails did; before and after are readings around the point.
func railUse(before, after []transport.RailStats, w *interval) []RailUse {
	if len(w.first) == 0 || len(w.last) == 0 {
		w.first, w.last = before, before // there was none
	}
	use := make([]RailUse, len(after))
	for i, a := range after {
		b, first, last := before[i], w.first[i], w.last[i]
		use[i] = RailUse{
			Name:   a.Name,
			Bytes:  last.Write.Bytes + last.Read.Bytes - first.Write.Bytes - first.Read.Bytes,
			Slices: last.Write.Slices + last.Read.Slices - first.Write.Slices - first.Read.Slices,
			Errors: a.Errors - b.Errors, Retries: a.Retries - b.Retries, Resent: a.Resent - b.Resent,
		}
	}
	return use
}
