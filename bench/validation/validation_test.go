package validation

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
	"time"

	"kvferry/bench/document"
	"kvferry/bench/document/documenttest"
	"kvferry/engine"
	"kvferry/engine/datasheet"
	"kvferry/internal/model"
)

// TestPage: docs/validation.md is what the command writes, and no set is worse than its limit.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	var printed bytes.Buffer
	r, err := Run(t.Context(), Config{Out: out, Stdout: &printed})
	if err != nil {
		t.Error(err)
	}
	table, err := os.ReadFile(filepath.Join(out, document.TableFile))
	if err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "../../../docs/validation.md", table)
	figures := 0
	for _, s := range r.Sets {
		figures += s.Figures
		if !strings.Contains(printed.String(), s.Profile) {
			t.Errorf("%s is not printed", s.Profile)
		}
	}
	records, err := os.ReadFile(filepath.Join(out, document.RecordsFile))
	if err != nil || bytes.Count(records, []byte("\n")) != figures {
		t.Errorf("%d figures, and %d records: %v", figures, bytes.Count(records, []byte("\n")), err)
	}
	var read Results
	summary, err := os.ReadFile(filepath.Join(out, document.SummaryFile))
	if err = errors.Join(err, json.Unmarshal(summary, &read)); err != nil || len(read.Sets) != len(r.Sets) || len(read.Contention.Rows) != 8 {
		t.Errorf("summary.json: %v, %d sets", err, len(read.Sets))
	}
	report, err := os.ReadFile(filepath.Join(out, document.ReportFile))
	if plots, want := bytes.Count(report, []byte("<svg")), 2*len(r.sources())+2; err != nil || plots != want || want < 2*6+2 {
		t.Errorf("report.html has %d plots, want %d: %v", plots, want, err)
	}
	for _, name := range engine.Profiles() {
		if name != "zero" && name != "itl10" && !bytes.Contains(table, []byte(" "+name+" ")) { // these have no GPU in mind
			t.Errorf("%s ships, and is beside nothing that was published", name)
		}
	}
}

// TestDatasheets: the profiles that nothing was fitted to are what package datasheet makes today, and what
// kvferry profile says of how far they are off is what comes out.
func TestDatasheets(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	t.Parallel()
	for _, c := range []struct {
		model, gpu, engine string
		gpus, length       int
		sets               []string // of datasheets that were published of this GPU, by the end of their table, and what is said of each
	}{
		{"qwen2.5-7b-gptq-int4", "A10", engine.VLLMV0, 1, 10000, []string{", means"}},
		{"deepseek-v3", "H200", engine.SGLang, 8, 16384, []string{"#870, four runs, mean TPOT", "#3288, five runs, mean TPOT"}},
		{"deepseek-v3", "B200", engine.SGLang, 8, 16384, []string{"#3363, seven runs, mean TPOT", "median ITL", "mean TTFT (beyond a datasheet)"}},
		{"deepseek-v3", "MI300X", engine.SGLang, 8, 16384, nil},
	} {
		s := server(t, c.model, c.gpu)
		s.Engine, s.TensorParallel, s.MaxModelLen = c.engine, c.gpus, c.length
		profile := c.model + "-" + strings.ToLower(c.gpu)
		text := estimated(t, s, profile).String()
		if lines := strings.Count(text, ": median error "); len(c.sets) > 0 && lines != len(c.sets) || strings.Contains(text, "published runs on "+c.gpu+": never.") != (len(c.sets) == 0) {
			t.Errorf("%d sets of %s are said: %s", lines, c.gpu, text)
		}
		for _, end := range c.sets {
			i := slices.IndexFunc(datasheets(), func(d check) bool { return d.profile == profile && strings.HasSuffix(d.table, end) })
			if i < 0 {
				t.Fatalf("%s has no set of %q", profile, end)
			}
			check := datasheets()[i]
			set, _, err := check.compute(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if said := fmt.Sprintf(": median error %.0f %%, worst %+.0f %%\n", 100*set.Median, 100*set.Worst); !strings.Contains(text, said) {
				t.Errorf("%s does not say %q of %s", text, said, set.Table)
			}
		}
	}
}

// estimated is the estimate for a server, whose profile ships under that name.
func estimated(t *testing.T, s *datasheet.Server, profile string) *datasheet.Estimate {
	t.Helper()
	e, err := s.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := document.WriteJSON(&b, e.Profile); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "../profiles/"+profile+".json", b.Bytes())
	return e
}

// TestAnchored: the profiles that were given a figure are what package datasheet makes today, and give it.
func TestAnchored(t *testing.T) {
	t.Parallel()
	for i, a := range []struct {
		profile string
		known   datasheet.Known
	}{
		// One request of 512 tokens in and out, 46.75 tokens a second.
		{of6111, datasheet.Known{ITL: 21400 * time.Microsecond, Context: 768}},
		// The mean of 922 tokens in, and the middle of as many out.
		{of3363, datasheet.Known{ITL: 7180 * time.Microsecond, Context: 1383}},
	} {
		s := server(t, deepSeek, "B200")
		s.Engine, s.TensorParallel, s.MaxModelLen, s.Known = engine.SGLang, 8, 16384, a.known
		e := estimated(t, s, a.profile)
		if got := anchored()[i].profile; got != a.profile {
			t.Errorf("%s has a set, %s is made", got, a.profile)
		}
		works := []engine.Work{{From: a.known.Context - 1, N: 1}}
		took := engine.NewCostModel(e.Profile.Costs, e.Profile.KVGeometry).Run(&engine.Step{Kind: engine.Decode, Tokens: 1, Works: works})
		if off := float64(took)/float64(a.known.ITL) - 1; math.Abs(off) > 1e-4 {
			t.Errorf("%s takes %v a token, was given %v", a.profile, took, a.known.ITL)
		}
	}
}

// TestDeepSeekGPUs: every GPU of the table of which eight hold the model has its set, and no other.
func TestDeepSeekGPUs(t *testing.T) {
	t.Parallel()
	var holding []string
	for _, name := range datasheet.Names() {
		s := server(t, deepSeek, name)
		s.Engine, s.TensorParallel, s.MaxModelLen = engine.SGLang, 8, 2048 // 1,000 tokens in and 1,000 out
		if _, err := s.Estimate(); err == nil {
			holding = append(holding, strings.ToLower(name))
		}
	}
	var listed []string
	for _, gpu := range deepSeekGPUs {
		listed = append(listed, gpu.name)
	}
	if !slices.Equal(holding, listed) {
		t.Errorf("%q hold the model, and %q have a set", holding, listed)
	}
}

// server is what kvferry profile makes a profile of: a model on a GPU of the table.
func server(t *testing.T, name, gpuName string) *datasheet.Server {
	t.Helper()
	config, err := model.Read("../../internal/model/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	shape, err := config.Shape()
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := datasheet.ReadGPU(gpuName)
	if err != nil {
		t.Fatal(err)
	}
	return &datasheet.Server{Name: name, Model: shape, GPU: gpu, MemoryUtilization: 0.9, KVElemBytes: 2, MaxNumSeqs: 256, BlockTokens: 16}
}

// TestFits: a search begins where nothing was fitted, comes closer, and what it writes are profiles;
// those in the folder are of the runs that they are named by.
func TestFits(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	t.Parallel()
	dir := t.TempDir()
	var printed strings.Builder
	if err := fitAll(t.Context(), dir, 3, &printed); err != nil {
		t.Fatal(err)
	}
	for _, c := range crossFits() {
		p, err := engine.LoadProfile(filepath.Join(dir, c.profile()+".json"))
		if err != nil {
			t.Fatal(err)
		}
		kept, err := loadProfile(c.profile())
		if err != nil {
			t.Fatal(err)
		}
		if kept.Name != p.Name || kept.Engine.Scheduler != p.Engine.Scheduler || kept.Costs.Experts != p.Costs.Experts || kept.Costs.TensorParallel != p.Costs.TensorParallel {
			t.Errorf("%s: %+v in the folder, %+v of a search", c.profile(), kept, p)
		}
	}
	if n := strings.Count(printed.String(), "median error"); n != len(searches()) || n != len(crossFits())+1 {
		t.Errorf("%d fits are printed:\n%s", n, &printed)
	}
}

// TestWorse: a set that is worse than its limit is an error, and says in what.
func TestWorse(t *testing.T) {
	t.Parallel()
	good := Set{Table: "t", Profile: "p", Figures: 10, Median: 0.03, P90: 0.10, Within: 9, Limit: Limit{Median: 0.03, P90: 0.10, Within: 9}}
	for want, spoil := range map[string]func(*Set){
		"":                            func(*Set) {},
		"the median error is 3.1 %":   func(s *Set) { s.Median = 0.031 },
		"the 90th percentile is 11.0": func(s *Set) { s.P90 = 0.11 },
		"8 figures are within 10 %":   func(s *Set) { s.Within = 8 },
	} {
		s := good
		spoil(&s)
		r := &Results{Sets: []*Set{&good, &s}}
		err := r.worse()
		if verdict, row := r.verdict(), s.row(); (want == "") != strings.HasPrefix(verdict, "ok: 2 sets") || (want == "") != (row[len(row)-1] == "ok") || want != "" && !strings.HasPrefix(verdict, "FAIL: 1 of 2") {
			t.Errorf("%q, %q of %q", verdict, row, want)
		}
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrWorse) || !strings.Contains(err.Error(), "t, p: "+want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// calls is a context that is done after so many questions.
type calls struct {
	context.Context
	left int
}

func (c *calls) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestStopped: what was done is kept, and the cause is returned; where nothing was, there is no folder.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, left := range []int{0, 100} {
		out := filepath.Join(t.TempDir(), "out")
		r, err := Run(&calls{context.Background(), left}, Config{Out: out})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		_, kept := os.Stat(filepath.Join(out, document.TableFile))
		if some := left > 0; (kept == nil) != some || (r != nil && len(r.Sets) > 0 && r.Contention == nil) != some {
			t.Errorf("%d questions: %+v, %v", left, r, kept)
		}
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, document.SummaryFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Config{Out: out}); err == nil || !strings.Contains(err.Error(), "it has results already") {
		t.Error(err)
	}
}
