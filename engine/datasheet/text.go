package datasheet

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// String is the estimate for people: where the memory goes, each parameter and where it comes
// from, and what is left out.
func (e *Estimate) String() string {
	var b strings.Builder
	m, p := e.Memory, &e.Profile
	fmt.Fprintf(&b, "%s\nmemory of a GPU in GiB: %.1f, of which used %.1f: weights %.1f, activations %.1f, engine %.1f, KV %.1f (%d blocks of %d tokens)\n\n",
		p.Name, m.Total/gib, m.Usable/gib, m.Weights/gib, m.Activations/gib, m.Engine/gib, m.KV/gib, p.Blocks(), p.KVGeometry.BlockTokens)
	b.WriteString(outcome(p, e.step) + "\nThe costs are those of one GPU that computes the whole model, as a profile has them:\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "parameter\tvalue\tfrom")
	for _, q := range e.Parameters {
		fmt.Fprintf(w, "%s\t%s\t%s\n", q.Name, q.Value, q.From)
	}
	w.Flush()
	fmt.Fprintf(&b, `
MFU %.2f and MBU %.2f are medians of %d and %d published measurements, the same for all GPUs.
Those measurements differ: MFU from 0.39 to 0.67, MBU from 0.48 to 0.77. So much may this be wrong.
%sPrompts were compared on the A10 and B200 alone; what those of large models with experts take depends on kernels that no datasheet tells of.
Not modelled: pipeline, expert and data parallelism, several machines, the front end, unequal loads of experts.
`, known.MFU, known.MBU, len(known.Prefills), len(known.Decodes), e.checked())
	return b.String()
}

// checked says what profiles of this GPU were set beside, or those of others if it was never.
func (e *Estimate) checked() string {
	gpu, given := e.Profile.GPU, ""
	if e.known != "" {
		given = "The " + e.known + " that was given is not in these comparisons, which are of the datasheet alone:\n"
	}
	var here, elsewhere []string
	for _, e := range known.Evidence {
		line := fmt.Sprintf("%s, %s: median error %.0f %%, worst %+.0f %%\n", e.GPU, e.What, 100*e.Median, 100*e.Worst)
		if e.GPU == gpu {
			here = append(here, line)
		}
		elsewhere = append(elsewhere, line)
	}
	if len(here) > 0 {
		return given + "Beside published runs on this GPU, which nothing was fitted to (docs/validation.md):\n" + strings.Join(here, "")
	}
	return given + "Beside published runs on " + gpu + ": never. On others, which nothing was fitted to (docs/validation.md):\n" + strings.Join(elsewhere, "")
}
