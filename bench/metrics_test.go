package bench

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPercentileIsNumpys(t *testing.T) {
	// numpy.percentile([1, 2, 4, 8], p).
	x := []float64{1, 2, 4, 8}
	for p, want := range map[float64]float64{0: 1, 25: 1.75, 50: 3, 75: 5, 99: 7.88, 100: 8} {
		if got := percentile(x, p); math.Abs(got-want) > 1e-12 {
			t.Errorf("percentile %v = %v, want %v", p, got, want)
		}
	}
	if got := percentile([]float64{5}, 99); got != 5 {
		t.Errorf("percentile of one value = %v", got)
	}
}

// Two requests worked out by hand, one of a single token (no TPOT, no ITL) and
// one that failed and must count nowhere but in Failed and the send delay.
func TestMeasure(t *testing.T) {
	records := []Record{
		{
			Intended: 0, Sent: 0.001, FirstToken: 0.101, TokenTimes: []float64{0.101, 0.121, 0.151},
			Usage:     &Usage{PromptTokens: 100, CompletionTokens: 3},
			Breakdown: &Breakdown{ProxyUS: 1000, PrefillUS: 40000, WireUS: 2000, KVBytes: 500, KVBlocksChecked: 7},
		},
		{
			Intended: 1, Sent: 1, FirstToken: 1.3, TokenTimes: []float64{1.3},
			Usage:     &Usage{PromptTokens: 50, CompletionTokens: 1},
			Breakdown: &Breakdown{ProxyUS: 3000, PrefillUS: 60000, KVBytes: 250, KVBlocksChecked: 3, KVBlocksBad: 1, Retries: 1},
		},
		{
			Intended: 1.5, Sent: 1.51, FirstToken: 1.6, TokenTimes: []float64{1.6}, Error: "stream ended",
			Usage: nil,
		},
	}
	m := Measure(records, 2)
	want := Metrics{
		Figures: Figures{
			DurationS: 2, RequestThroughput: 1, OutputThroughput: 2, TotalThroughput: 77,
			MeanTTFTMS: 200, MedianTTFTMS: 200, P99TTFTMS: 298,
			MeanTPOTMS: 25, MedianTPOTMS: 25, P99TPOTMS: 25,
			MeanITLMS: 25, MedianITLMS: 25, P99ITLMS: 29.9,
		},
		Counts:  Counts{Successful: 2, InputTokens: 150, GeneratedTokens: 4},
		Failed:  1,
		KVBytes: 750, KVBlocksChecked: 10, KVBlocksBad: 1, Retries: 1,
		P99SendDelayMS: 9.82, MaxSendDelayMS: 10,
	}
	stages := m.Stages
	m.Stages = nil
	if m != want {
		t.Errorf("metrics = %+v\nwant      %+v", m, want)
	}
	if stages == nil || *stages != (Stages{Proxy: 2, Prefill: 50, Wire: 1}) {
		t.Errorf("stages = %+v", stages)
	}
}

// A record may come from a file: one without usage or without tokens is none of a
// request that was served.
func TestMeasureIncompleteRecords(t *testing.T) {
	m := Measure([]Record{
		{TokenTimes: []float64{1}},
		{Usage: &Usage{PromptTokens: 1, CompletionTokens: 2}},
		{},
		{TokenTimes: []float64{1, 2}, FirstToken: 1, Usage: &Usage{PromptTokens: 1, CompletionTokens: 2}},
	}, 1)
	if m.Failed != 3 || m.Successful != 1 || m.MeanTPOTMS != 1000 {
		t.Errorf("metrics = %+v", m)
	}
	c := Cell{Records: []Record{{Index: 7, TokenTimes: []float64{1}}}}
	m = Measure(c.Records, 1)
	c.Metrics = &m
	c.judgeRequests()
	if len(c.Faults) != 1 || !strings.Contains(c.Faults[0], "request 7") || !strings.Contains(c.Faults[0], "no usage") {
		t.Errorf("faults = %q", c.Faults)
	}
}

func TestMeasureNothing(t *testing.T) {
	if m := Measure(nil, 0); m != (Metrics{}) {
		t.Errorf("metrics of no records = %+v", m)
	}
}

func TestRelErr(t *testing.T) {
	e := relErr(Figures{MeanTTFTMS: 110, P99ITLMS: 90}, Figures{MeanTTFTMS: 100, P99ITLMS: 100})
	if e.MeanTTFTMS != 0.1 || e.P99ITLMS != -0.1 || e.DurationS != 0 {
		t.Errorf("rel_err = %+v", e)
	}
}

// The published 256/q8 TCP table, in vLLM's own layout.
func TestReportGolden(t *testing.T) {
	p := PublishedFigures("256/q8", "tcp")
	if p == nil {
		t.Fatal("no published cell 256/q8 tcp")
	}
	var ok, failed bytes.Buffer
	if err := WriteReport(&ok, &Metrics{Counts: p.Counts, Figures: p.Figures}); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.golden", ok.Bytes())
	if err := WriteReport(&failed, &Metrics{Counts: p.Counts, Figures: p.Figures, Failed: 3, Interrupted: 2}); err != nil {
		t.Fatal(err)
	}
	golden(t, "report_failed.golden", failed.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs:\n%s\nwant:\n%s", name, got, want)
	}
}
