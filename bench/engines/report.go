package engines

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/document"
	"kvferry/lab"
)

// document returns the report of the result.
func (r *Result) document() *document.Document {
	if r.Timeout > 0 {
		return &document.Document{
			Title: "kvferry lab connectors --faults", Made: document.When("Measured", r.Started), Head: []string{r.head()}, Notes: r.faultNotes(), Data: r,
			Sections: []document.Section{{Tables: r.outcomes()}}, Extra: []document.File{document.Records(r.Trials)},
		}
	}
	return &document.Document{
		Title: "kvferry lab connectors", Made: document.When("Measured", r.Started), Head: []string{r.head()}, Notes: r.notes(), Data: r, Extra: []document.File{document.Records(r.Samples)},
		Sections: []document.Section{{Tables: r.tables(), Plots: []document.Plot{
			r.plot("Median TTFT (ms)", func(row *Row) (float64, bool) { return row.Metrics.TTFT, true }),
			r.plot("TTFT over mono (ms)", r.over),
			r.plot("KV (GB/s)", func(row *Row) (float64, bool) { return row.Metrics.KV, row.Metrics.KV > 0 }),
			r.plot("CPU seconds a prompt", func(row *Row) (float64, bool) { return row.Metrics.CPU, true }),
		}}},
	}
}

// tables are the times, and what there is to say that they are those of a transfer.
func (r *Result) tables() []document.Table {
	times := document.Table{
		Title: "compute measured, transfer measured; medians, CPU is the mean of all instances",
		Left:  2, Head: []string{"setting", "rail", "prompt tokens", "prompts", "TTFT ms", "over mono", "P99 TTFT ms", "TPOT ms", "KV GB/s", "CPU s"},
	}
	proof := document.Table{
		Title: "what D was given: its own tokens of the prompts (at most one each), KV bytes, KV equal in P and D by digest, answers like mono's and like those of the first connector",
		Left:  2, Head: []string{"setting", "rail", "prompt tokens", "D computed", "KV MB", "KV equal", "like mono", "like others", ""},
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		name, at, m := row.Setting, strconv.Itoa(row.PromptTokens), row.Metrics
		mark := "ok"
		if row.Error != "" {
			name, mark = "* "+name, "FAILED"
		}
		if r.Disturbed[row.setting()] != "" {
			name += " ~"
		}
		if row.Prompts == 0 {
			times.Add(name, row.Rail, at, "0")
			proof.Add(name, row.Rail, at, "", "", "", "", "", mark)
			continue
		}
		over, kv := "", ""
		if ms, ok := r.over(row); ok {
			over = fmt.Sprintf("%+.1f", ms)
		}
		if m.KV > 0 {
			kv = fmt.Sprintf("%.3f", m.KV)
		}
		times.Add(
			name, row.Rail, at, strconv.Itoa(row.Prompts), fmt.Sprintf("%.1f", m.TTFT), over, fmt.Sprintf("%.1f", m.P99TTFT), fmt.Sprintf("%.2f", m.TPOT), kv, fmt.Sprintf("%.3f", m.CPU),
		)
		if row.Setting == Mono && row.Error == "" {
			continue // it takes no KV, and is what the others are held to
		}
		equal := "yes"
		if !row.DigestsEqual {
			equal = "NO"
		}
		proof.Add(
			name, row.Rail, at, strconv.Itoa(row.Computed), fmt.Sprintf("%.1f", float64(row.KVBytes)/1e6), equal, fmt.Sprintf("%d of %d", row.Identical, row.Prompts), fmt.Sprintf("%d of %d", row.LikeOthers, row.Prompts), mark,
		)
	}
	return []document.Table{times, r.parts(), proof}
}

// parts says where TTFT goes.
func (r *Result) parts() document.Table {
	t := document.Table{
		Title: "where TTFT goes, ms, medians: P's answer, from there to D's first token, and of that, as kvferry's connector says it, the transfer",
		Left:  2, Head: []string{"setting", "rail", "prompt tokens", "P", "hand-off", "queue", "post", "wire", "land", "wire, % of P", "blocks checked", "bad"},
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Times == nil {
			continue
		}
		line := []string{row.Setting, row.Rail, strconv.Itoa(row.PromptTokens), fmt.Sprintf("%.1f", row.Times.Prefill), fmt.Sprintf("%.1f", row.Times.Handoff)}
		if p := row.Times.Parts; p != nil {
			for _, us := range []float64{p.Queue, p.Post, p.Wire, p.Land} {
				line = append(line, fmt.Sprintf("%.2f", us/1e3))
			}
			line = append(line, fmt.Sprintf("%.0f", p.Wire/1e3/row.Times.Prefill*100), strconv.Itoa(p.BlocksChecked), strconv.Itoa(p.BlocksBad))
		}
		t.Add(line...)
	}
	return t
}

// over is how much longer the median TTFT of a row is than mono's, in milliseconds; below 0 where it is shorter. Mono's own has none.
func (r *Result) over(row *Row) (ms float64, ok bool) {
	for i := range r.Rows {
		if mono := &r.Rows[i]; mono.Setting == Mono && mono.PromptTokens == row.PromptTokens && mono.Prompts > 0 {
			return row.Metrics.TTFT - mono.Metrics.TTFT, row.Setting != Mono
		}
	}
	return 0, false
}

// notes are why rows fail, each reason once, and what disturbed some.
func (r *Result) notes() (notes document.Notes) {
	for _, row := range r.Rows {
		text := fmt.Sprintf("%s, %d tokens: %s", strings.TrimSpace(row.Setting+" "+row.Rail), row.PromptTokens, row.Error)
		if r.Errors[row.setting()] != "" { // of all lengths
			text = fmt.Sprintf("%s: %s", strings.TrimSpace(row.Setting+" "+row.Rail), row.Error)
		}
		if n := (document.Note{Level: document.Fault, Text: text}); row.Error != "" && !slices.Contains(notes, n) {
			notes = append(notes, n)
		}
	}
	for _, setting := range slices.Sorted(maps.Keys(r.Disturbed)) {
		notes.Addf(document.Doubt, "%s was disturbed: %s", setting, r.Disturbed[setting])
	}
	if !r.Judged {
		notes.Add(document.Info, "Tokens are not held to mono's with this model, but to the first connector's: D computes the last token of a prompt alone, mono computes it with the others, and sums that are rounded to few bits then differ.")
	}
	return notes
}

// head says what was run where.
func (r *Result) head() string {
	if r.Timeout > 0 {
		return fmt.Sprintf("model %s, link of %s, seed %d, a hang is %.0f s; %s, %.0f s", r.Model, lab.FormatRate(r.Link), r.Seed, r.Timeout, r.Machine.String(), r.Seconds)
	}
	over := ""
	if r.Link > 0 {
		over = fmt.Sprintf(", P and D joined by links of %s", lab.FormatRate(r.Link))
	}
	rounds := "1 round"
	if r.Rounds > 1 {
		rounds = fmt.Sprintf("%d rounds", r.Rounds)
	}
	return fmt.Sprintf("model %s, %s, one core an instance%s; %s, %.0f s", r.Model, rounds, over, r.Machine.String(), r.Seconds)
}

// plot returns a figure over the length of the prompt, with a curve per setting.
func (r *Result) plot(title string, of func(*Row) (value float64, ok bool)) document.Plot {
	c := document.Chart{Title: title, X: document.Axis{Label: "prompt tokens", Max: 1.1 * float64(Lengths[len(Lengths)-1])}, Style: document.Points}
	for i := range r.Rows {
		row := &r.Rows[i]
		y, ok := of(row)
		if row.Prompts == 0 || !ok {
			continue
		}
		k := slices.IndexFunc(c.Curves, func(o document.Curve) bool { return o.Name == row.setting() })
		if k < 0 {
			k = len(c.Curves)
			c.Curves = append(c.Curves, document.Curve{Name: row.setting()})
		}
		c.Curves[k].Add(float64(row.PromptTokens), y)
	}
	return c
}
