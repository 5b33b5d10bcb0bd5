package rail

import (
	"fmt"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
)

// CheckFile is what a check leaves in its folder.
const CheckFile = "check.json"

// A Report is what was seen and what is said of it.
type Report struct {
	Seen
	Machine  observe.Machine `json:"machine"`
	Limits   Limits          `json:"limits"`
	Verdicts []Grade         `json:"verdicts"` // one a rail
	Findings []Finding       `json:"findings"`
}

// document returns the report for readers: a row per rail, and the findings.
func (r *Report) document() *document.Document {
	d := &document.Document{
		Title: "kvferry rail check", Made: document.When("Measured", r.Started), Head: []string{"here:  " + r.Here.String()}, Data: r, DataName: CheckFile, Sections: []document.Section{{Tables: []document.Table{r.table()}}},
	}
	if r.Peer != "" {
		d.Head = append(d.Head, "there: "+r.There.String())
	}
	if c := r.Clock; c != nil {
		d.Head = append(d.Head, fmt.Sprintf("clock: theirs is %v ahead, known to %v; round trip %v", c.Offset.Round(time.Microsecond), (c.RoundTrip/2).Round(time.Microsecond), c.RoundTrip.Round(time.Microsecond)))
	}
	for _, f := range r.Findings {
		d.Notes.Add(document.Info, f.String())
	}
	if len(r.Findings) == 0 {
		d.Verdict = "nothing is wrong"
	}
	return d
}

func (r *Report) table() document.Table {
	t := document.Table{Title: "measured; rates are of bytes that have arrived, from when they are steady, and each is compared; \"here/there\" are the two ends, \"probes\" those as large as a frame that came back", Left: 1, Head: []string{
		"rail", "verdict", "write GB/s", "read GB/s", "of line", "of best", "wrong", "MTU here/there", "probes", "way", "congestion", "carrier changes",
	}}
	best := r.best()
	for i := range r.Rails {
		x := &r.Rails[i]
		ofLine, ofBest, probes, way, changes := "", "", "", "own", ""
		if line := x.line(); line > 0 {
			ofLine = fmt.Sprintf("%.2f", x.Rates.least()*1e9/line)
		}
		if best > 0 && len(r.Rails) > 1 {
			ofBest = fmt.Sprintf("%.2f", x.share()/best)
		}
		if x.Full.Sent > 0 {
			probes = fmt.Sprintf("%d/%d of %d", x.Full.Back, x.Full.Sent, x.Full.Size)
		}
		switch {
		case x.Here.NIC == "":
			way = "memory"
		case x.Here.Elsewhere != "" || x.There.Elsewhere != "":
			way = "ANOTHER"
		case x.Here.Routed || x.There.Routed:
			way = "gateway"
		}
		if x.Here.NIC != "" {
			changes = fmt.Sprintf("%d/%d", x.Here.Changes, x.There.Changes)
		}
		t.Add(
			x.Spec, string(r.Verdicts[i]), rateOf(x.Rates.Write.GBps), rateOf(x.Rates.Read.GBps), ofLine, ofBest, wrong(&x.Rates),
			pair(x.Here.MTU, x.There.MTU), probes, way, pairOf(x.Here.Congestion, x.There.Congestion), changes,
		)
	}
	if r.All != nil {
		t.Add(All, string(Verdict(All, r.Findings)), rateOf(r.All.Write.GBps), rateOf(r.All.Read.GBps), "", "", wrong(r.All))
	}
	return t
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

func rateOf(gbps float64) string {
	if gbps == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g", gbps)
}

func wrong(r *Rates) string {
	if r.Write.Checked+r.Read.Checked == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", r.Write.Bad+r.Read.Bad, r.Write.Checked+r.Read.Checked)
}

func pair(a, b int) string {
	if a == 0 && b == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", a, b)
}

// pairOf is one word where both are the same.
func pairOf(a, b string) string {
	if a == b {
		return a
	}
	return a + "/" + b
}
