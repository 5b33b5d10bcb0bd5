package sglang

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/report"
	"kvferry/internal/progress"
)

// TestReproduced: the shipped profiles give so many of the published figures within 10 %, and those
// that a run is about.
func TestReproduced(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	var text bytes.Buffer
	if _, err := Run(t.Context(), Config{Out: out, Stdout: &text}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(out, document.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var r Results
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != len(Runs()) {
		t.Fatalf("%d rows of %d runs", len(r.Rows), len(Runs()))
	}
	within, judged := map[string]int{}, map[string]int{}
	for _, row := range r.Rows {
		within[row.Profile] += row.Within
		judged[row.Profile] += row.Judged
		for key, v := range row.RelErr {
			limit := 0.10
			if key == "median_itl_ms" {
				limit = 0.20
			}
			about := strings.HasSuffix(key, "_ttft_ms") || strings.HasSuffix(key, "_e2e_ms") || key == "median_itl_ms"
			if row.Workload == "qwen2.5-0.5b" && about && math.Abs(v) > limit {
				t.Errorf("%s: %s is off by %.1f %%", row.name(), key, 100*v)
			}
		}
		if row.Workload == "lora-trace" {
			limit := 0.05
			if row.Counts.Successful == 100 {
				limit = 0.20
			}
			for _, key := range []string{"duration_s", "mean_e2e_ms", "median_e2e_ms", "p99_e2e_ms"} {
				if v, there := row.RelErr[key]; !there || math.Abs(v) > limit {
					t.Errorf("%s: %s is off by %.1f %%", row.name(), key, 100*v)
				}
			}
			if row.Arrivals != rebuilt || len(row.Remarks) < 4 {
				t.Errorf("%s: arrivals %s, remarks %q", row.name(), row.Arrivals, row.Remarks)
			}
		}
		if row.Source.Known == "" || strings.Count(text.String(), row.Workload+": published: "+row.Source.String()) != 1 {
			t.Errorf("%s: where it was published is not said, or not once", row.name())
		}
		if !strings.Contains(text.String(), row.Setting) {
			t.Errorf("%s is not in what is printed", row.name())
		}
	}
	for _, c := range []struct {
		profile    string
		least, all int
	}{
		{"sglang-deepseek-v3-flashinfer", 27, 28},
		{"sglang-deepseek-v3-triton", 27, 28},
		{"sglang-qwen3-coder-480b", 16, 17},
		{"sglang-qwen2.5-0.5b", 17, 19},
	} {
		if n := within[c.profile]; n < c.least || judged[c.profile] != c.all {
			t.Errorf("%s: %d of %d figures within 10 %%, want %d of %d", c.profile, n, judged[c.profile], c.least, c.all)
		}
	}
	for _, name := range []string{"results.jsonl", document.TableFile, document.ReportFile} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOtherLoad: a run that is another load than its record's has faults.
func TestOtherLoad(t *testing.T) {
	t.Parallel()
	p := Runs()[0]
	p.NumPrompts--
	row, err := timedRun{p, report.ClockVirtual}.run(t.Context(), &Config{}, func(*Record) {})
	if err != nil {
		t.Fatal(err)
	}
	r := Results{Rows: []Row{*row}}
	if len(row.Faults) == 0 || !strings.HasPrefix(r.remarks()[0].String(), "* qwen2.5-0.5b 200 in virtual time: 199 requests were answered, and 200 in the record") {
		t.Errorf("faults %q", row.Faults)
	}
}

// TestTracePath: with the trace of functions the arrivals are its own, and the row says so.
func TestTracePath(t *testing.T) {
	t.Parallel()
	text := "app,func,end_timestamp,duration\n"
	for i, calls := range []int{72, 103, 38, 189} {
		for n := range calls {
			text += fmt.Sprintf("a,f%d,%d,1\n", i, 10*n)
		}
	}
	file := filepath.Join(t.TempDir(), "functions.txt")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Runs()[slices.IndexFunc(Runs(), func(p Published) bool { return p.Trace != nil })]
	arrived := map[string]int{}
	row, err := timedRun{p, report.ClockVirtual}.run(t.Context(), &Config{TracePath: file}, func(r *Record) { arrived[r.Adapter]++ })
	if err != nil || row.Arrivals != recorded || len(row.Faults) > 0 || len(arrived) != 4 || arrived["lora3-1"] < 45 || arrived["lora3-1"] > 60 {
		t.Errorf("%v, %v, %v", row, arrived, err)
	}
	if _, err := (timedRun{p, report.ClockVirtual}).run(t.Context(), &Config{TracePath: "/no/trace"}, func(*Record) {}); err == nil {
		t.Error("no error of a file that there is not")
	}
}

// TestStopped: what was done is kept, and the cause is returned.
func TestStopped(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	stop(cause)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Run(ctx, Config{Out: out}); !errors.Is(err, context.Canceled) && !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	cfg := Config{Runs: []string{"deepseek"}, Clock: "atomic", Profile: "/no/profile", TracePath: "/no/trace"}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"deepseek"`, "deepseek-v3/triton/128x16", `"atomic": use virtual, real or both`, "Profile", "TracePath", "Out"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if err := (&Config{Clock: bothClocks, Out: filepath.Join(t.TempDir(), "out")}).Validate(); err == nil || !strings.Contains(err.Error(), "Start") {
		t.Errorf("nothing starts servers: %v", err)
	}
	cfg = Config{Runs: []string{"deepseek-v3", "qwen2.5-0.5b/200"}}
	if n := len(cfg.chosen(report.ClockReal)); n != 5 {
		t.Errorf("%d runs", n)
	}
	// Without names real time takes what is short.
	var all []string
	for _, p := range new(Config).chosen(report.ClockReal) {
		all = append(all, p.Name())
	}
	if got := strings.Join(all, ", "); got != "qwen2.5-0.5b 200, lora-trace static/100, lora-trace dlora/100" {
		t.Errorf("in real time: %s", got)
	}
}

// TestInstead: with another profile it is not said that the profile was fitted to the records, and a remark that all
// runs of a workload have is there once.
func TestInstead(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	if _, err := Run(t.Context(), Config{Runs: []string{"lora-trace/static/100", "lora-trace/dlora/100"}, Profile: "zero", Out: filepath.Join(t.TempDir(), "out"), Stdout: &text}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "in place of each run's own") || strings.Contains(text.String(), "the shipped profiles were fitted") {
		t.Errorf("%s does not say which profile it was", &text)
	}
	if n := strings.Count(text.String(), "the client took no answer before its end"); n != 1 || !strings.Contains(text.String(), "lora-trace dlora/100: the record counts") {
		t.Errorf("a remark of both runs is there %d times, or one of a single run is not: %s", n, &text)
	}
	if percent(-0.0004) != "+0.0%" || percent(-0.0006) != "-0.1%" {
		t.Errorf("%s, %s", percent(-0.0004), percent(-0.0006))
	}
}

// TestCut: of a run that is not complete the records are kept, and the table and the summary say so.
func TestCut(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	var text bytes.Buffer
	r := &Results{cut: "qwen2.5-0.5b 200 in real time is not complete, and has no row: 60 of 200 requests were answered"}
	folder := document.OpenFolder(out, func(string) {})
	folder.Record(&Record{Workload: "qwen2.5-0.5b"})
	if err := r.finish(Config{Out: out, Stdout: &text}, folder, context.Canceled); !errors.Is(err, context.Canceled) || !strings.Contains(text.String(), "* "+r.cut) {
		t.Errorf("%v: %s", err, &text)
	}
	for _, name := range []string{document.RecordsFile, document.SummaryFile, document.TableFile} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestProgress: in real time a line says when a run begins, and in either time how far it is.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		shown := progress.New(&out, false)
		shown.Start(progress.State{Total: 400, Unit: "requests answered"})
		for _, clock := range []string{report.ClockVirtual, report.ClockReal} {
			run, answered := timedRun{Runs()[0], clock}, 0
			run.show(shown, &answered)
			shown.Update(func(s *progress.State) { answered += 2; s.Done += 2 })
			<-time.After(11 * time.Second)
		}
		shown.Stop()
		lines, name := strings.Split(out.String(), "\n"), Runs()[0].Name()
		if len(lines) != 4 || lines[0] != name+" in virtual time, 2 of 200: 2 of 400 requests answered, 10s" ||
			!strings.HasPrefix(lines[1], name+" in real time: starting its servers") || lines[2] != name+" in real time, 2 of 200: 4 of 400 requests answered, 21s" {
			t.Errorf("%q", lines)
		}
	})
}
