package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"kvferry/load"
)

// A published duration is the schedule's end or, if that is later, the last
// answer. The last request's own times were not published; a median request's
// stand in for them. 1024-token cells of a loaded server may be off by the
// queue that the last request met: half a second of 99. Another seed would be
// off by about 7 %.
func TestScheduleExplainsPublishedDurations(t *testing.T) {
	cells := published()
	if len(cells) != 25 {
		t.Fatalf("%d published cells, want 25", len(cells))
	}
	for key, p := range cells {
		rows, err := ParseRows(key[0])
		if err != nil {
			t.Fatal(err)
		}
		requests, err := load.Collect(rows[0].Load(p.Successful, 0, "0", 10))
		if err != nil {
			t.Fatal(err)
		}
		last := requests[len(requests)-1].At + time.Duration((p.MedianTTFTMS+5*p.MedianTPOTMS)*1e6)
		want := max(rows[0].End(p.Successful, 0), last).Seconds()
		tolerance := 0.1
		if rows[0].InputLen == 1024 {
			tolerance = 0.5
		}
		if math.Abs(p.DurationS-want) > tolerance {
			t.Errorf("%s %s: published %.2f s, schedule says %.2f", key[0], key[1], p.DurationS, want)
		}
	}
}

func TestParseLists(t *testing.T) {
	rows, err := ParseRows("1024/q2, 256/q4")
	if err != nil || len(rows) != 2 || rows[0].Name != "1024/q2" || rows[1].QPS != 4 {
		t.Fatalf("rows = %v, %v", rows, err)
	}
	if rows, err = ParseRows("all"); err != nil || len(rows) != 5 {
		t.Fatalf("all = %v, %v", rows, err)
	}
	settings, err := ParseSettings("tcp,layerwise")
	if err != nil || len(settings) != 2 || settings[1].Handoff != "layerwise" || settings[1].Link != "tcp" {
		t.Fatalf("settings = %v, %v", settings, err)
	}
	for _, c := range []struct {
		list string
		want []string
	}{
		{"256/q9", []string{`"256/q9"`, "256/q8", "all"}},
		{"256/q8,,256/q2", []string{"empty row", "256/q8,,256/q2"}},
		{"", []string{"empty row"}},
		{"256/q8,256/q8", []string{"twice"}},
	} {
		_, err := ParseRows(c.list)
		wantError(t, c.list, err, c.want...)
	}
	_, err = ParseSettings("tcp,rmda")
	wantError(t, "tcp,rmda", err, `"rmda"`, "nondisagg, chunked, rdma, rdma2, tcp, pull, push, layerwise")
}

func wantError(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: error %q does not say %q", what, err, p)
		}
	}
}
