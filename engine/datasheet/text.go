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
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "parameter\tvalue\tfrom")
	for _, q := range e.Parameters {
		fmt.Fprintf(w, "%s\t%s\t%s\n", q.Name, q.Value, q.From)
	}
	w.Flush()
	fmt.Fprintf(&b, `
MFU %.2f and MBU %.2f are medians of %d and %d published measurements, the same for all GPUs.
Those measurements differ: MFU from 0.39 to 0.67, MBU from 0.48 to 0.77. So much may this be wrong.
Against published runs that nothing was fitted to (docs/profiles.md): an A10 with vLLM 0.6 comes out
25 %% too fast, median of 30 means; DeepSeek-V3's decode steps 15 to 28 %%, if that was H200.
Not modelled: pipeline, expert and data parallelism, several machines, the front end, GPUs that
slow down when hot, the arithmetic of large decode batches, unequal loads of experts.
`, known.MFU, known.MBU, len(known.Prefills), len(known.Decodes))
	return b.String()
}
