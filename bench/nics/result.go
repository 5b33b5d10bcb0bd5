package nics

import (
	"math"
	"slices"
	"time"

	"kvferry/bench/rail"
)

// A Result is all rounds, and the rows that are their medians.
type Result struct {
	outcome
	Points    []Point                `json:"points"`
	Failovers []*rail.FailoverResult `json:"-"` // failover.json of each round has them
	Rows      []Row                  `json:"rows"`
	Steps     []Step                 `json:"faults"`
	Wrong     int64                  `json:"wrong_blocks"` // of all rounds
	Limits    []Figure               `json:"limits"`
}

// A Point is one experiment of one round.
type Point struct {
	Key
	Rate
}

// A Rate is the measured rate of a transfer, beside the ideal one.
type Rate struct {
	Ideal    float64   `json:"ideal_bytes_per_s"`
	GBps     float64   `json:"gb_per_s"`
	CPUPerGB float64   `json:"cpu_s_per_gb,omitempty"`
	Shares   []float64 `json:"shares,omitempty"` // of each rail, 0 to 1
}

// percent returns the rate in percent of the ideal.
func (r *Rate) percent() float64 { return 100 * r.GBps * 1e9 / r.Ideal }

// A Row is an experiment: medians over the rounds.
type Row struct {
	Key
	Rate
	Low     float64 `json:"gb_per_s_low"` // of the rounds
	High    float64 `json:"gb_per_s_high"`
	Percent float64 `json:"percent_of_ideal"`
}

// A Step is a fault of the failover run: medians over the rounds. Infinite is that
// it did not happen in most of them, and in JSON the largest number there is.
type Step struct {
	What      string  `json:"what"`
	DetectMS  float64 `json:"detect_ms"`
	RecoverMS float64 `json:"recover_ms"`
	GapMS     float64 `json:"gap_ms"`
	Worst     float64 `json:"worst_percent"` // of ideal, over 100 ms in the second after it
	ResentMB  float64 `json:"resent_mb"`
	AfterGBps float64 `json:"after_gb_per_s"`
	Percent   float64 `json:"percent_of_ideal"`
}

// never stands for a time that did not come; JSON has no infinity.
const never = math.MaxFloat64

// measuredRate returns the rate of a transfer, by the slices that arrived between the beginning and the end of its interval.
func measuredRate(ideal float64, p *rail.Point) Rate {
	out := Rate{Ideal: ideal, CPUPerGB: p.CPU.PerGB}
	sum := int64(0)
	for _, u := range p.Rails {
		sum += u.Bytes
	}
	if p.RailsS > 0 {
		out.GBps = float64(sum) / p.RailsS / 1e9
	}
	for _, u := range p.Rails {
		out.Shares = append(out.Shares, float64(u.Bytes)/float64(max(sum, 1)))
	}
	return out
}

// settle makes the rows, steps and limits of what there is.
func (r *Result) settle() {
	r.Rows, r.Wrong = nil, 0
	for _, p := range r.Points {
		if !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Key == p.Key }) {
			r.Rows = append(r.Rows, newRow(p.Key, r.Points))
		}
	}
	r.Steps = newSteps(schedule, r.Failovers)
	for _, f := range r.Failovers {
		r.Wrong += f.Bad
		if !f.Sound() && f.Bad == 0 {
			r.Wrong++ // failed batches, or counts that do not agree
		}
	}
	r.judge()
}

// newRow returns the medians over the points of a key, of which there is at least one.
func newRow(k Key, points []Point) Row {
	points = slices.DeleteFunc(slices.Clone(points), func(p Point) bool { return p.Key != k })
	rates := each(points, func(p *Point) float64 { return p.GBps })
	row := Row{Key: k, Low: slices.Min(rates), High: slices.Max(rates)}
	row.Ideal, row.GBps, row.CPUPerGB = points[0].Ideal, median(rates), median(each(points, func(p *Point) float64 { return p.CPUPerGB }))
	row.Percent = row.percent()
	for i := range points[0].Shares {
		row.Shares = append(row.Shares, median(each(points, func(p *Point) float64 { return p.Shares[i] })))
	}
	return row
}

// newSteps returns a Step for each step of the schedule that one of the failovers has come to, with
// medians over those that have.
func newSteps(schedule []happening, failovers []*rail.FailoverResult) (steps []Step) {
	for i, h := range schedule {
		var all []rail.Recovery
		for _, f := range failovers {
			if i < len(f.Recoveries) {
				all = append(all, f.Recoveries[i])
			}
		}
		if len(all) == 0 {
			break
		}
		of := func(f func(*rail.Recovery) float64) float64 { return median(each(all, f)) }
		ideal := Ideal(h.links)
		steps = append(steps, Step{
			What:     h.what,
			DetectMS: of(func(v *rail.Recovery) float64 { return milliseconds(v.Detect) }), RecoverMS: of(func(v *rail.Recovery) float64 { return milliseconds(v.Recover) }),
			GapMS: of(func(v *rail.Recovery) float64 { return milliseconds(&v.Gap) }), ResentMB: of(func(v *rail.Recovery) float64 { return float64(v.Resent) / 1e6 }),
			Worst:     of(func(v *rail.Recovery) float64 { return 100 * v.Worst / ideal }),
			AfterGBps: of(func(v *rail.Recovery) float64 { return v.After / 1e9 }),
			Percent:   of(func(v *rail.Recovery) float64 { return 100 * v.After / ideal }),
		})
	}
	return steps
}

// each returns of(v) for each v of all.
func each[T any](all []T, of func(*T) float64) (values []float64) {
	for i := range all {
		values = append(values, of(&all[i]))
	}
	return values
}

func milliseconds(d *time.Duration) float64 {
	if d == nil {
		return never
	}
	return float64(*d) / 1e6
}

// median of values, the lower of the two in the middle: with two rounds of which one
// never recovered, it did.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
