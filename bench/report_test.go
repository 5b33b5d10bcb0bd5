package bench

import (
	"bytes"
	"strings"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/document/documenttest"
)

// TestIncompleteRecord: a record without usage is a fault of its cell.
func TestIncompleteRecord(t *testing.T) {
	c := Cell{Records: []Record{{Record: client.Record{Index: 7, TokenTimes: []float64{1}}}}}
	c.measure(1)
	c.judgeRequests()
	if len(c.Faults) != 1 || !strings.Contains(c.Faults[0], "request 7") || !strings.Contains(c.Faults[0], "no usage") {
		t.Errorf("faults = %q", c.Faults)
	}
}

func TestRelErr(t *testing.T) {
	e := relErr(client.Figures{MeanTTFTMS: 110, P99ITLMS: 90}, client.Figures{MeanTTFTMS: 100, P99ITLMS: 100})
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
	if err := WriteReport(&ok, &client.Metrics{Counts: p.Counts, Figures: p.Figures}); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "report.golden", ok.Bytes())
	if err := WriteReport(&failed, &client.Metrics{Counts: p.Counts, Figures: p.Figures, Failed: 3, Interrupted: 2}); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "report_failed.golden", failed.Bytes())
}
