package engines

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/internal/config"
)

// A Result is what a run came to, as summary.json has it.
type Result struct {
	Started time.Time         `json:"started"`
	Seconds float64           `json:"seconds"`
	Machine observe.Machine   `json:"machine"`
	Model   string            `json:"model"`
	Rounds  int               `json:"rounds"`
	Link    int64             `json:"link_bits_per_s,omitempty"` // of links of the NIC lab between P and D; 0: none
	Judged  bool              `json:"tokens_judged"`             // a row whose tokens are not mono's fails
	Checked bool              `json:"checksums,omitempty"`       // kvferry's connector was told to check each block
	Seed    uint64            `json:"seed,omitempty"`            // of Trials, and so is Timeout
	Timeout float64           `json:"timeout_s,omitempty"`       // an answer that takes longer is a hang
	Trials  []Trial           `json:"trials,omitempty"`
	Rows    []Row             `json:"rows,omitempty"`
	Errors  map[string]string `json:"errors,omitempty"` // why a setting could not run, or not to its end
	// Disturbed says of settings who else had the CPUs, in the last round in which too much was had.
	Disturbed map[string]string `json:"disturbed,omitempty"`
	Samples   []Sample          `json:"-"`
}

// A Row is a setting at one length of prompts.
type Row struct {
	Setting      string  `json:"setting"`
	Rail         string  `json:"rail"`
	PromptTokens int     `json:"prompt_tokens"`
	Prompts      int     `json:"prompts"` // that were answered
	Identical    int     `json:"identical"`
	LikeOthers   int     `json:"like_others"`   // answers that are those of the first connector
	DigestsEqual bool    `json:"digests_equal"` // of all; mono's are held to nothing
	Compute      string  `json:"compute"`
	Transfer     string  `json:"transfer"`
	Computed     int     `json:"d_prompt_tokens"`
	KVBytes      int64   `json:"kv_bytes"`
	Metrics      Metrics `json:"metrics"`
	Times        *Times  `json:"times,omitempty"` // none without a P
	Error        string  `json:"error,omitempty"` // why the row fails
}

// setting is what its setting is called.
func (row *Row) setting() string { return (&Setting{Name: row.Setting, Rail: row.Rail}).String() }

// Metrics of a row. None of a row without answers.
type Metrics struct {
	TTFT    float64 `json:"median_ttft_ms"`
	P99TTFT float64 `json:"p99_ttft_ms"`
	TPOT    float64 `json:"median_tpot_ms"`
	// KV is bytes a second in units of 1e9: of a prompt's KV, by the median time from P's answer to D's
	// first token, less one step of D, which the token takes in any case. Left out where that leaves no time, and
	// where KV is moved while P computes.
	KV  float64 `json:"kv_gb_s,omitempty"`
	CPU float64 `json:"cpu_s"` // of all instances, a prompt
}

// Times are where TTFT goes, medians in milliseconds.
type Times struct {
	Prefill float64 `json:"prefill_ms"`
	Handoff float64 `json:"hand_off_ms"`
	Parts   *Parts  `json:"kvferry,omitempty"` // where the connector says it
}

// measured is how compute and transfer are labelled: nothing here is modelled.
const measured = "measured"

// settle makes the rows of the samples.
func (r *Result) settle(settings []Setting) {
	r.Rows = nil
	if r.Timeout > 0 {
		return // it has trials
	}
	for i := range settings {
		s := &settings[i]
		why := r.Errors[s.String()]
		for _, length := range Lengths {
			var all []Sample
			for _, sample := range r.Samples {
				if sample.Setting == s.Name && sample.Rail == s.Rail && sample.PromptTokens == length {
					all = append(all, sample)
				}
			}
			if len(all) > 0 || why != "" {
				r.Rows = append(r.Rows, r.row(s, length, all, why))
			}
		}
	}
	if r.Link > 0 {
		r.compare()
	}
}

// overlap is what a pull's wire has to be of the prefill for layerwise to be sooner: there is something to hide.
const overlap = 0.2

// compare has layerwise rows fail that are not sooner than the pull over the same link.
func (r *Result) compare() {
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, other := range r.Rows {
			if row.Setting != "kvferry-"+layerwise || other.Setting != "kvferry-"+pull || row.Rail != other.Rail || row.PromptTokens != other.PromptTokens || row.Prompts == 0 {
				continue
			}
			if t := other.Times; t != nil && t.Parts != nil && t.Parts.Wire/1e3 >= overlap*t.Prefill && row.Metrics.TTFT >= other.Metrics.TTFT {
				config.Default(&row.Error, fmt.Sprintf("the first token is no sooner than with %s, %.1f ms, whose wire is %.0f %% of P's time", other.Setting, other.Metrics.TTFT, t.Parts.Wire/10/t.Prefill))
			}
		}
	}
}

// row is what the samples of a setting and a length come to.
func (r *Result) row(s *Setting, length int, all []Sample, why string) Row {
	row := Row{Setting: s.Name, Rail: s.Rail, PromptTokens: length, Prompts: len(all), DigestsEqual: len(all) > 0, Compute: measured, Transfer: measured, Error: why}
	if s.P == "" {
		row.Transfer = "none"
	}
	if len(all) == 0 {
		return row
	}
	for _, sample := range all {
		row.Computed += sample.Computed
		row.KVBytes += sample.KVBytes
		row.DigestsEqual = row.DigestsEqual && sample.DigestsEqual
		if sample.Identical {
			row.Identical++
		}
		if sample.LikeOthers {
			row.LikeOthers++
		}
	}
	var ttft []float64
	for _, sample := range all {
		ttft = append(ttft, sample.TTFT)
	}
	slices.Sort(ttft)
	tpot := medianOf(all, func(s Sample) float64 { return s.TPOT })
	cpu := 0.0
	for _, sample := range all {
		cpu += sample.CPU
	}
	row.Metrics = Metrics{
		TTFT: stats.Round(stats.Percentile(ttft, 50), 3), P99TTFT: stats.Round(stats.Percentile(ttft, 99), 3), TPOT: stats.Round(tpot, 3),
		CPU: stats.Round(cpu/float64(len(all)), 4),
	}
	if took := medianOf(all, func(s Sample) float64 { return s.Handoff }) - tpot; took > 0 && !s.Together {
		row.Metrics.KV = stats.Round(float64(row.KVBytes)/float64(len(all))/took/1e6, 4)
	}
	if s.P != "" {
		row.Times = times(all)
		config.Default(&row.Error, r.fault(s, &row, all))
	}
	return row
}

// times are the medians of samples, of the parts where all have them.
func times(all []Sample) *Times {
	of := func(f func(Sample) float64) float64 { return stats.Round(medianOf(all, f), 3) }
	t := &Times{Prefill: of(func(s Sample) float64 { return s.Prefill }), Handoff: of(func(s Sample) float64 { return s.Handoff })}
	if slices.ContainsFunc(all, func(s Sample) bool { return s.Parts == nil }) {
		return t
	}
	t.Parts = &Parts{
		Queue: of(func(s Sample) float64 { return s.Parts.Queue }), Post: of(func(s Sample) float64 { return s.Parts.Post }),
		Wire: of(func(s Sample) float64 { return s.Parts.Wire }), Land: of(func(s Sample) float64 { return s.Parts.Land }),
	}
	for _, s := range all {
		t.Parts.KVBytes += s.Parts.KVBytes
		t.Parts.BlocksChecked += s.Parts.BlocksChecked
		t.Parts.BlocksBad += s.Parts.BlocksBad
	}
	return t
}

// fault says why what a row shows is no transfer, or not a right one; "" if it is.
func (r *Result) fault(s *Setting, row *Row, all []Sample) string {
	nothing := slices.ContainsFunc(all, func(s Sample) bool { return s.KVBytes == 0 })
	unchecked := slices.ContainsFunc(all, func(s Sample) bool { return s.Parts == nil || s.Parts.BlocksChecked == 0 })
	switch {
	case row.Computed > row.Prompts:
		return fmt.Sprintf("D computed %d tokens of %d prompts itself: at most one a prompt is to be computed there", row.Computed, row.Prompts)
	case nothing:
		return "a prompt was answered for which D received no KV"
	case !row.DigestsEqual:
		return "the KV that D has is not that of P"
	case r.Checked && strings.HasPrefix(row.Setting, "kvferry-") && unchecked:
		return "no block of a prompt was checked, with checksums"
	case r.Judged && row.Identical < row.Prompts:
		return fmt.Sprintf("%d of %d answers are not mono's", row.Prompts-row.Identical, row.Prompts)
	case s.Append == 0 && row.LikeOthers < row.Prompts: // with the same KV each D computes the same token, alone
		return fmt.Sprintf("%d of %d answers are not those of the first connector", row.Prompts-row.LikeOthers, row.Prompts)
	}
	return ""
}

// failed returns the error of rows that fail, or of trials of kvferry's.
func (r *Result) failed() error {
	switch {
	case slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Error != "" }):
		return ErrFailed
	case slices.ContainsFunc(r.Trials, func(tr Trial) bool { return tr.own() && tr.fault() != "" }):
		return ErrFaults
	}
	return nil
}

// medianOf is that of a figure of samples.
func medianOf(all []Sample, f func(Sample) float64) float64 {
	var values []float64
	for _, s := range all {
		values = append(values, f(s))
	}
	return stats.Median(values)
}
