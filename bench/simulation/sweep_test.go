package simulation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kvferry/bench/document"
)

var svgText = regexp.MustCompile(`<text[^>]*>([^<]*)</text>`)

// TestSweepPlots: equal curves are named, ticks are whole, and values that crowd an
// axis stand side by side.
func TestSweepPlots(t *testing.T) {
	w := sweep(t, "rate=1,2,30000", "link=1GB/s,100GB/s")
	w.Base.Load.Requests, w.Base.Load.OutputLen = 100, 200
	r, err := w.Run(context.Background(), func(int) {}, func(*Result, *SweepResult) {})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.document().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, m := range svgText.FindAllStringSubmatch(b.String(), -1) {
		got[m[1]]++
	}
	if got["link=1GB/s"] != 11 || got["link=100GB/s (as 1GB/s)"] < 4 || got["link=100GB/s"] < 1 {
		t.Errorf("legends: %v", got)
	}
	for text := range got {
		if strings.HasSuffix(text, ".00") {
			t.Errorf("a tick says %q", text)
		}
	}
	at, ticks := r.axis()
	if at["1"] != 0 || at["2"] != 1 || at["30000"] != 2 || len(ticks) != 3 || ticks[2].Label != "30000" {
		t.Errorf("axis %v, %v", at, ticks)
	}
	r.Params[0].Values = []string{"4", "1", "2"}
	if at, _ := r.axis(); at["4"] != 4 || at["1"] != 1 {
		t.Errorf("numbers with room stand at %v", at)
	}
	b.Reset()
	nothing := document.Document{Sections: []document.Section{{Plots: []document.Plot{r.curves("nothing", func(*Result) float64 { return math.NaN() })}}}}
	if err := nothing.WriteHTML(&b); err != nil || strings.Contains(b.String(), "<svg") {
		t.Errorf("a figure that no point has is drawn: %v", err)
	}
}

// TestSweepAsItGoes: the points that have ended are in sweep.json before the next has.
func TestSweepAsItGoes(t *testing.T) {
	dir := t.TempDir()
	var sofar []int
	progress := writerFunc(func(line []byte) (int, error) {
		text, err := os.ReadFile(filepath.Join(dir, sweepFile))
		var got struct{ Result SweepResult }
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		sofar = append(sofar, len(got.Result.Points)) // the line comes before its point
		return len(line), nil
	})
	if err := Run(t.Context(), Config{Sweep: *sweep(t, "rate=1,2,3"), Out: dir, Progress: progress}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(sofar) != "[0 1 2]" {
		t.Errorf("points in sweep.json as each ended: %v", sofar)
	}
}

// TestSweepOrder: points are told of in their order, whichever ends first.
func TestSweepOrder(t *testing.T) {
	var told []string
	w := sweep(t, "nodes=200:200,1:1,1:2") // the first takes longest
	if _, err := w.Run(t.Context(), func(int) {}, func(r *Result, _ *SweepResult) { told = append(told, r.Params["nodes"]) }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(told) != "[200:200 1:1 1:2]" {
		t.Errorf("told of %v", told)
	}
}

// TestSweepFlags: parameters that are flags' names, and the fields that they set.
func TestSweepFlags(t *testing.T) {
	for text, of := range map[string]func(*Simulation) any{
		"scheduler=vllm-v0,vllm-v1,sglang": func(s *Simulation) any { return s.Scheduler },
		"kv-blocks=2000,4000":              func(s *Simulation) any { return s.Node.KVBlocks },
		"max-loras=4,8":                    func(s *Simulation) any { return s.MaxLoRAs },
		"merge-loras=never,always,dynamic": func(s *Simulation) any { return s.MergeLoRAs },
		"request-rate=2,4":                 func(s *Simulation) any { return s.Load.Rate },
		"conditional-disaggregation=0,64":  func(s *Simulation) any { return s.Proxy.ConditionalDisaggregation },
	} {
		w := sweep(t, text)
		sims, _, err := w.points()
		if err != nil || len(sims) != len(w.Params[0].Values) {
			t.Fatalf("%s: %d points, %v", text, len(sims), err)
		}
		for i, v := range w.Params[0].Values {
			if got := fmt.Sprint(of(&sims[i])); got != v {
				t.Errorf("%s: point %d has %s", text, i, got)
			}
		}
	}
	if err := sweep(t, "scheduler=sglang,orca").Validate(); err == nil || !strings.Contains(err.Error(), `scheduler=orca: "orca": use one of vllm-v0`) {
		t.Error(err)
	}
	if err := sweep(t, "merge-loras=dynamic,now").Validate(); err == nil || !strings.Contains(err.Error(), `merge-loras=now: "now": use never`) {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestBadOutput: results that cannot be kept are printed all the same, and the error
// comes once.
func TestBadOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for table, params := range map[string][]string{"latency (ms)": nil, "goodput/s": {"rate=1,2"}} {
		w := sweep(t, params...)
		var stdout, progress bytes.Buffer
		err := Run(t.Context(), Config{Sweep: *w, Out: filepath.Join(file, "below"), Detailed: true, Stdout: &stdout, Progress: &progress})
		if lost := (*document.OutputError)(nil); !errors.As(err, &lost) || strings.Count(err.Error(), "not a directory") != 1 {
			t.Errorf("err = %v, want one that the folder cannot be made", err)
		}
		if out := stdout.String(); !strings.Contains(out, table) || strings.Contains(out, "results:") || strings.Contains(out, "not a directory") {
			t.Errorf("stdout has no table, or says where nothing is:\n%s", out)
		}
		if said := progress.String(); strings.Count(said, "cannot be kept") != 1 || strings.Contains(said, "not a directory") {
			t.Errorf("progress:\n%s", said)
		}
	}
}
