package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/document/documenttest"
	"kvferry/bench/observe"
)

// publishedRun is a run whose every cell measured what was published, except
// for layerwise, which nobody published.
func publishedRun() *Results {
	r := &Results{
		Config:  RunConfig{NumPrompts: 200, Settings: MeasuredSettings(), Workloads: []string{"256/q8"}, Started: time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC), Arrivals: "published arrivals"},
		Machine: observe.Machine{CPU: "Test CPU", Cores: 2, Threads: 2, MemoryBytes: 8 << 30, OS: "linux/amd64", Kernel: "6.1", Go: "go1.26"},
	}
	for i, s := range MeasuredSettings() {
		cfg := Config{}.withDefaults()
		c := newCell(cfg, cfg.Workloads[0], s, 0)
		c.Link = Link{Clock: "real", Compute: "modelled", Transfer: "paced", Label: "compute modelled, transfer paced 1.29 GB/s"}
		m := client.Metrics{Figures: client.Figures{DurationS: 25, MeanTTFTMS: 101.3, MedianTTFTMS: 63, P99TTFTMS: 318, MeanTPOTMS: 12, MedianTPOTMS: 11.7, P99TPOTMS: 14.1}}
		if c.Published != nil {
			m.Figures, m.Counts = c.Published.Figures, c.Published.Counts
			m.MeanTTFTMS *= 1.02
			c.RelErr = relErr(m.Figures, c.Published.Figures)
		}
		m.Stages = &client.Stages{Proxy: 4, Queue: 30, Prefill: 60, Wire: float64(i), FirstDecode: 12}
		if s.Mode == ModeDisagg {
			m.KVBytes, m.KVBlocksChecked = 49054*57344, 3200
		}
		c.Metrics = &m
		for j := range 20 {
			c.Records = append(c.Records, Record{Record: client.Record{Sent: float64(j), FirstToken: float64(j) + 0.05 + float64(i*j)/100, TokenTimes: []float64{1}, Usage: &client.Usage{CompletionTokens: 1}}})
		}
		r.Cells = append(r.Cells, *c)
	}
	r.Cells[3].fault("1 of 200 requests failed | on purpose")
	r.Cells[4].note("the client was late")
	r.Cells[1].Disturbance = &observe.Disturbance{
		LateMeanMS: 3.21, LateP99MS: 41.5, LateTimersPct: 12.3, CPU: &observe.CPUUse{CPUs: 2, OwnPct: 14, OthersPct: 61, StealPct: 0.2, Daemons: true},
	}
	r.Cells[1].Disturbance.Judge()
	return r
}

func TestTableGolden(t *testing.T) {
	var text, md bytes.Buffer
	if err := publishedRun().document().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "table.golden", text.Bytes())
	if err := publishedRun().document().WriteMarkdown(&md); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "table_md.golden", md.Bytes())
	for line := range strings.SplitSeq(text.String(), "\n") {
		if len(line) > 140 && !strings.HasPrefix(line, "layerwise against") {
			t.Errorf("%d columns are too wide for a terminal: %s", len(line), line)
		}
	}
}

// A run with both clocks has a table of each, sets them side by side, and speaks
// of what was measured.
func TestBothClocks(t *testing.T) {
	r := publishedRun()
	for _, c := range r.Cells[:2] {
		m := *c.Metrics
		m.MeanTTFTMS, m.MeanTPOTMS = m.MeanTTFTMS*1.02, m.MeanTPOTMS*0.98
		c.Metrics, c.Clock, c.Label, c.Faults, c.Notes = &m, ClockVirtual, "virtual time", nil, nil
		r.Cells = append(r.Cells, c)
	}
	r.Cells[1].Repeat = 1 // of two repeats one is not there
	var b bytes.Buffer
	if err := r.document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"256/q8 virtual TTFT (ms)", "256/q8 virtual what was computed", "virtual time", "256/q8 clocks: real against virtual (ms)",
		"nondisagg           122.8    125.3       -2.0%            43.0     42.1       +2.0%",
		"layerwise against nondisagg: at 256/q8 mean TTFT",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := r.document().WriteHTML(&b); err != nil || !strings.Contains(b.String(), "clocks: real against virtual") {
		t.Errorf("%v, page of %d bytes", err, b.Len())
	}
}

var external = regexp.MustCompile(`(?i)(src|href)\s*=\s*"[^#]|url\(|@import|<script`)

func TestHTMLIsSelfContained(t *testing.T) {
	var b bytes.Buffer
	r := publishedRun()
	r.Cells[3].Faults[0] = "<script>alert(1)</script>"
	if err := r.document().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if found := external.FindString(strings.ReplaceAll(page, `xmlns:xlink="http://www.w3.org/1999/xlink"`, "")); found != "" {
		t.Errorf("page loads or runs something: %s", found)
	}
	if n := strings.Count(page, "<svg"); n != 6 {
		t.Errorf("%d plots, want 6", n)
	}
	for _, want := range []string{"Mean TTFT (ms)", "layerwise", "first decode", "num_prompts", "Test CPU", "&lt;script&gt;"} {
		if !strings.Contains(page, want) {
			t.Errorf("page does not have %q", want)
		}
	}
	for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1) {
		dec := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("plot is not well-formed: %v", err)
			}
		}
		if strings.Contains(svg, "NaN") {
			t.Error("plot has NaN in it")
		}
	}
}

// A run of which nothing worked must still give a page and a table.
func TestReportsOfNothing(t *testing.T) {
	r := publishedRun()
	r.Cells = r.Cells[:1]
	r.Cells[0].Metrics, r.Cells[0].RelErr, r.Cells[0].Records = nil, nil, nil
	r.Cells[0].fault("cluster did not start")
	for name, write := range map[string]func(*document.Document, io.Writer) error{
		"table": (*document.Document).WriteText, "markdown": (*document.Document).WriteMarkdown, "html": (*document.Document).WriteHTML,
	} {
		var b bytes.Buffer
		if err := write(r.document(), &b); err != nil || !strings.Contains(b.String(), "cluster did not start") {
			t.Errorf("%s: %v, %d bytes", name, err, b.Len())
		}
		b.Reset()
		if err := write((&Results{}).document(), &b); err != nil {
			t.Errorf("%s of no cells: %v", name, err)
		}
	}
}

// TestVerdictOfDisturbed: what is said in a sentence carries the mark of the rows it is made of.
func TestVerdictOfDisturbed(t *testing.T) {
	r := publishedRun()
	if v := r.Verdict(); v == "" || strings.Contains(v, "~") {
		t.Errorf("undisturbed: %s", v)
	}
	for i := range r.Cells {
		if r.Cells[i].Setting == "nondisagg" {
			r.Cells[i].Disturbance = &observe.Disturbance{Why: []string{"other programs"}}
		}
	}
	if v := r.Verdict(); !strings.Contains(v, "(~ the machine disturbed nondisagg: measure again before you quote this)") {
		t.Errorf("disturbed: %s", v)
	}
}
