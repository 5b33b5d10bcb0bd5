package validation

import (
	"fmt"
	"strings"

	"kvferry/bench/contention"
	"kvferry/bench/document"
)

const head = `Every figure is computed in virtual time, and set beside the published one: of each published
table and profile the median, the 90th percentile and the worst of the relative errors. Beside them stands
what the first two may be at most, and how many figures have to be within 10 %. These limits are a
little above what comes out today: they say that nothing got worse, not that it is good enough. CI runs
` + "`kvferry reproduce validate`" + `, which makes this page and fails if one of them is beyond it.

In sample: the profile was fitted to these figures. Held back: it was fitted to another run of the same
server, beginning with a profile that these runs had no part in. Datasheet: it was made of the
model's config.json and the GPU's datasheet, and fitted to nothing. Anchored: so it was, and then set to give the time
from token to token of one request alone (` + "`kvferry profile --known-itl`" + `), which was published elsewhere.`

// titles of the tables, a sample each.
var titles = []struct {
	samples []Sample
	title   string
}{
	{[]Sample{InSample, OtherRun}, "profiles fitted to published runs"},
	{[]Sample{Datasheet}, "profiles of datasheets: held back"},
	{[]Sample{Anchored}, "profiles of datasheets and one known figure: held back"},
}

// notes say what is to be known of the tables.
var notes = []string{
	"DeepSeek-V3's record names no GPU. Eight of H200, B200 or MI300X hold the model, none of the other GPUs that kvferry knows. " +
		"What was published picks B200. The record lies beside the change to flashinfer's attention that became sglang#6930, by the same author, and is named after the kernels (cutlass) that this change takes on Blackwell alone. " +
		"Both servers were started with SGLANG_ENABLE_FLASHINFER_GEMM=1, which is for Blackwell and does nothing elsewhere (sglang#6479). " +
		"sglang#6939 measured the model, the triton server and the load of triton/128x16 on eight GPUs that it names as B200: 221.3 s before it tuned the experts' kernel, and the record has 219.2. " +
		"So of the median ITL the row of B200 counts, 38 %. If nothing picked a GPU, it would be that of H200, 13 %.",
	"A datasheet says nothing of the engine's version. DeepSeek-R1 of the same shape on eight B200 took 13.09 ms a token at 16 requests and 16.21 at 32 with SGLang 0.5.12 of 2026 (InferenceX#3363), where the record, of June 2025, has 24.26 and 30.38, or 26.21 and 33.07. " +
		"No profile without a version is within 20 % of both. The datasheet's is nearer to the later one.",
	"A run at one concurrency says nothing of the batch's size: what experts and all-reduces cost stays the datasheet's of B200 in the profiles that are fitted to one run. " +
		"With H200's in their place 3 or 4 of 14 figures of the other run are within 10 %.",
	"No datasheet says what DeepSeek-V3's prompts took in these runs: the profiles that are fitted to them need 0.048 (flashinfer) and 0.065 ms (triton) a token on eight GPUs, B200's datasheet has 0.0040. " +
		"That is a share of 4 and 3 % of the peak in FP8, not 50 %: kernels of experts that were new for Blackwell then. Besides, the first batch took 1.9 and 2.4 s longer (cold), and the front end some 8 ms a request. " +
		"Their mean TTFT is set beside the datasheets' as measured; it says how far they are off with prompts, and counts for no claim. InferenceX's TTFT is not compared.",
	"Anchored: the datasheet's B200 of sglang-6111 was given 21.4 ms a token of one request with 768 tokens of context, which is what sglang#6111 measured in May 2025 with triton on Blackwell (its prompt is in that, so it is a little long). " +
		"That of inferencex-3363 was given the 7.18 ms that InferenceX#3363 measured at one request, and predicts its other runs.",
	"InferenceX is of DeepSeek-R1, #870 with SGLang 0.5.7 and the others with 0.5.12, both of 2026, whose kernels are newer than those that the datasheet's shares were measured on. #3363's server keeps KV in 8 bits, which the profile does not; at 64 requests that is 2 % of a step.",
}

// document returns the report of the results.
func (r *Results) document() *document.Document {
	all := document.Section{Plots: r.plots()}
	d := &document.Document{
		Title: "How close the models are to what was published", Made: document.When("Computed", r.Started), Head: []string{head}, Verdict: r.verdict(), Data: r,
		Extra: []document.File{document.Records(r.records)},
	}
	for _, s := range r.Sets {
		if why := s.fault(); why != "" {
			d.Notes.Add(document.Fault, why)
		}
	}
	for _, part := range titles {
		t := document.Table{
			Title: part.title, Left: 3,
			Head: []string{"published", "profile", "sample", "figures", "median", "90th percentile", "worst", "which", "within 10 %", "at most; at least", ""},
		}
		for _, s := range r.Sets {
			for _, sample := range part.samples {
				if s.Sample == sample {
					t.Add(s.row()...)
				}
			}
		}
		all.Tables = append(all.Tables, t)
	}
	if r.Contention != nil {
		all.Tables = append(all.Tables, r.Contention.Table())
	}
	d.Notes.Add(document.Info, append(notes, contention.Others()...)...)
	d.Sections = []document.Section{all}
	return d
}

// verdict says whether all sets are within their limits.
func (r *Results) verdict() string {
	worse := 0
	for _, s := range r.Sets {
		if s.fault() != "" {
			worse++
		}
	}
	if worse > 0 {
		return fmt.Sprintf("FAIL: %d of %d sets are worse than their limits", worse, len(r.Sets))
	}
	return fmt.Sprintf("ok: %d sets, all within their limits", len(r.Sets))
}

// verdict is that of a row.
func (s *Set) verdict() string {
	if s.fault() != "" {
		return "FAIL"
	}
	return "ok"
}

// row is a line of a table.
func (s *Set) row() []string {
	return []string{
		s.Table, s.Profile, string(s.Sample), fmt.Sprint(s.Figures), fmt.Sprintf("%.1f %%", 100*s.Median), fmt.Sprintf("%.1f %%", 100*s.P90),
		fmt.Sprintf("%+.1f %%", 100*s.Worst), strings.TrimSuffix(s.Which, "_ms"), fmt.Sprintf("%d of %d", s.Within, s.Figures), s.Limit.String(), s.verdict(),
	}
}
