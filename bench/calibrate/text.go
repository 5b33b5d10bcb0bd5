package calibrate

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"kvferry/bench/document"
	"kvferry/bench/observe"
)

// vague is an interval's half, as a share of the value, from which on a cost is not known well.
const vague = 0.1

// String is what was found, with what was not.
func (f *Fitted) String() string {
	var b strings.Builder
	t := document.Table{Title: "costs, fitted", Head: []string{"cost", "value", "95 % interval", ""}, Left: 1}
	for _, c := range f.Costs {
		note := ""
		if c.High-c.Low > 2*vague*c.Value {
			note = "not known well"
		}
		t.Rows = append(t.Rows, []string{c.Field, fmt.Sprintf("%.4g", c.Value) + f.Meanwhile.Mark(), fmt.Sprintf("%.4g to %.4g", c.Low, c.High), note})
	}
	t.WriteText(&b)
	b.WriteString(marked(f.Meanwhile))
	for _, a := range f.Absent {
		if math.IsInf(a.AtMost, 1) {
			fmt.Fprintf(&b, "%s is 0: no point of this series shows it on this server.\n", a.Field)
		} else {
			fmt.Fprintf(&b, "%s is 0: not needed; at most %.2g.\n", a.Field, a.AtMost)
		}
	}
	b.WriteString(unseen)
	if f.Told {
		fmt.Fprintf(&b, "By what the server says of itself a first token took %.2f ms more from the client to the engine and back.\nThat is in no cost.\n\n", 2e3*f.RPC.Seconds())
	}
	off := f.figures()
	worst := slices.MaxFunc(off, func(a, b Figure) int {
		if math.Abs(a.Off()) < math.Abs(b.Off()) {
			return -1
		}
		return 1
	})
	fmt.Fprintf(&b, "In sample: %v.\nThe worst is %s:\n%.2f ms, where %.2f were measured.\n", ErrorsOf(off), worst.Name, worst.Got, worst.Want)
	if math.IsNaN(f.Noise) {
		b.WriteString("One round was measured: how far rounds differ is not known, nor then how well anything can be predicted, and\nintervals are too narrow. Use --rounds 5.\n\n")
	} else {
		fmt.Fprintf(&b, "A round differs from the median of its rounds by %.2f %% (median): nothing can be predicted better.\n\n", 100*f.Noise)
	}
	return b.String()
}

// figures are the measures beside the model's.
func (f *Fitted) figures() (all []Figure) {
	for _, r := range f.Residuals {
		all = append(all, Figure{Name: fmt.Sprintf("%v: %s", r.Point, r.Measure), Got: r.Modelled, Want: r.Measured})
	}
	return all
}

// unseen is what no server shows to a series like this.
const unseen = `Not measured, and left at 0: cold_ms, which is over after the first requests; disagg.v0 and links, of
which a server that serves alone has none; tensor_parallel, as costs are those of all the server's
GPUs together; decode_token_ms, which larger batches show. disagg.decode_step_ms is decode_step_ms.

`

// marked is a line that says why what was measured is marked, "" if it is not.
func marked(d *observe.Disturbance) string {
	if !d.Disturbed() {
		return ""
	}
	return fmt.Sprintf("~ this machine did other things too: %v.\n\n", d)
}

// String says how many requests come, and how often.
func (h *HeldBack) String() string {
	return fmt.Sprintf("held back: %d requests, %.3g a second", h.Load.Requests, h.Load.Rate)
}

// verdict is what a check came to, and what the machine did meanwhile.
func verdict(h *HeldBack, all []Comparison, meanwhile *observe.Disturbance) string {
	l, parts := &h.Load, ""
	head := []string{"figure", "measured", "predicted", "error"}
	if h.Parts > 1 {
		parts = fmt.Sprintf(" in %d parts", h.Parts)
		head = append(head, "worst part")
	}
	t := document.Table{
		Title: fmt.Sprintf("%v%s, %d +- %.0f %% tokens in, %d +- %.0f %% out (ms)", h, parts, l.InputLen, 100*l.RangeRatio, l.OutputLen, 100*l.RangeRatio),
		Head:  head, Left: 1,
	}
	for _, c := range all {
		row := []string{c.Name, fmt.Sprintf("%.2f", c.Measured) + meanwhile.Mark(), fmt.Sprintf("%.2f", c.Predicted), fmt.Sprintf("%+.1f %%", 100*c.Off())}
		if h.Parts > 1 {
			row = append(row, fmt.Sprintf("%+.1f %%", 100*c.Worst()))
		}
		t.Rows = append(t.Rows, row)
	}
	return t.Text() + marked(meanwhile)
}
