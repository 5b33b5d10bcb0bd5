package check

import (
	"fmt"
	"io"
	"strings"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
)

// File is what a check leaves in its folder.
const File = "check.json"

// A Report is what was seen and what is said of it.
type Report struct {
	Seen
	Machine  observe.Machine `json:"machine"`
	Limits   Limits          `json:"limits"`
	Verdicts []Grade         `json:"verdicts"` // one a rail
	Findings []Finding       `json:"findings"`
}

func (r *Report) write(cfg *Config) error {
	var b strings.Builder
	r.WriteText(&b)
	if cfg.Out == "" {
		_, err := io.WriteString(cfg.Stdout, b.String())
		return err
	}
	lost := document.WriteFiles(cfg.Out, document.File{Name: File, Write: func(w io.Writer) error { return document.WriteJSON(w, r) }})
	if lost == nil {
		b.WriteString(document.Listing(cfg.Out, File) + "\n")
	}
	if _, err := io.WriteString(cfg.Stdout, b.String()); err != nil {
		return err
	}
	return lost
}

// WriteText prints a row a rail, and the findings.
func (r *Report) WriteText(b *strings.Builder) {
	t := document.Table{Title: "measured; rates are of bytes that have arrived, from when they are steady, and each is compared; \"here/there\" are the two ends, \"probes\" those as large as a frame that came back", Left: 1, Head: []string{
		"rail", "verdict", "write GB/s", "read GB/s", "of line", "of best", "wrong", "MTU here/there", "probes", "way", "congestion", "carrier changes",
	}}
	best := r.best()
	for i := range r.Rails {
		x := &r.Rails[i]
		row := []string{
			x.Spec, string(r.Verdicts[i]), rate(x.Rates.Write.GBps), rate(x.Rates.Read.GBps), "-", "-", wrong(&x.Rates),
			pair(x.Here.MTU, x.There.MTU), "-", "own", pairOf(x.Here.Congestion, x.There.Congestion), "-",
		}
		if line := x.line(); line > 0 {
			row[4] = fmt.Sprintf("%.2f", x.Rates.least()*1e9/line)
		}
		if best > 0 && len(r.Rails) > 1 {
			row[5] = fmt.Sprintf("%.2f", x.share()/best)
		}
		if x.Full.Sent > 0 {
			row[8] = fmt.Sprintf("%d/%d of %d", x.Full.Back, x.Full.Sent, x.Full.Size)
		}
		switch {
		case x.Here.NIC == "":
			row[9] = "memory"
		case x.Here.Elsewhere != "" || x.There.Elsewhere != "":
			row[9] = "ANOTHER"
		case x.Here.Routed || x.There.Routed:
			row[9] = "gateway"
		}
		if x.Here.NIC != "" {
			row[11] = fmt.Sprintf("%d/%d", x.Here.Changes, x.There.Changes)
		}
		t.Rows = append(t.Rows, row)
	}
	if r.All != nil {
		t.Rows = append(t.Rows, []string{All, string(Verdict(All, r.Findings)), rate(r.All.Write.GBps), rate(r.All.Read.GBps), "-", "-", wrong(r.All), "-", "-", "-", "-", "-"})
	}
	t.WriteText(b)
	fmt.Fprintf(b, "here:  %s\n", r.Here)
	if r.Peer != "" {
		fmt.Fprintf(b, "there: %s\n", r.There)
	}
	if c := r.Clock; c != nil {
		fmt.Fprintf(b, "clock: theirs is %v ahead, known to %v; round trip %v\n", c.Offset.Round(time.Microsecond), (c.RoundTrip / 2).Round(time.Microsecond), c.RoundTrip.Round(time.Microsecond))
	}
	b.WriteString("\n")
	for _, f := range r.Findings {
		b.WriteString(f.String() + "\n")
	}
	if len(r.Findings) == 0 {
		b.WriteString("nothing is wrong\n")
	}
	b.WriteString("\n")
}

func (h Host) String() string {
	pin := "any memory may be pinned"
	if h.Memlock >= 0 {
		pin = fmt.Sprintf("%.1f MB may be pinned", float64(h.Memlock)/1e6)
	}
	huge := "huge pages unknown"
	if h.HugePages != "" {
		huge = "transparent huge pages " + h.HugePages
	}
	return fmt.Sprintf("%s, %s and %.1f MB set aside, %.1f GB available", pin, huge, float64(h.HugeFree)/1e6, float64(h.Available)/1e9)
}

func rate(gbps float64) string {
	if gbps == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g", gbps)
}

func wrong(r *Rates) string {
	if r.Write.Checked+r.Read.Checked == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d", r.Write.Bad+r.Read.Bad, r.Write.Checked+r.Read.Checked)
}

func pair(a, b int) string {
	if a == 0 && b == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", a, b)
}

// pairOf is one word where both are the same.
func pairOf(a, b string) string {
	switch {
	case a == "" && b == "":
		return "-"
	case a == b:
		return a
	}
	return a + "/" + b
}
