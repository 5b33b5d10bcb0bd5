package engines

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document"
)

// judgeFakes has faults come to fakes, which have faults of their own, without a lab.
func judgeFakes(t *testing.T, own string, cfg Config) (j Result, stdout string, err error) {
	t.Helper()
	var o bytes.Buffer
	cfg.Stdout, cfg.Out = &o, t.TempDir()
	cfg.Timeout = 20 * time.Second
	if strings.Contains(own, "waits") {
		cfg.Timeout = time.Second
	}
	cfg = cfg.withDefaults()
	cfg.Link, cfg.settle = 0, time.Second
	err = fakes(own, cfg.Out).run(t.Context(), cfg)
	text, e := os.ReadFile(filepath.Join(cfg.Out, document.SummaryFile))
	if e == nil {
		e = json.Unmarshal(text, &j)
	}
	for _, name := range []string{document.RecordsFile, document.ReportFile, document.TableFile} {
		if _, err := os.Stat(filepath.Join(cfg.Out, name)); err != nil {
			t.Error(err)
		}
	}
	if e != nil {
		t.Fatal(e)
	}
	nothingLeft(t, cfg.Out)
	return j, o.String(), err
}

// TestJudge: what was killed is there again for the next prompt; a fault that did not come at its moment is
// marked; P's blocks are counted.
func TestJudge(t *testing.T) {
	t.Parallel()
	cfg := Config{Faults: []string{"kill-p-before", "kill-p-during", "kill-p-after", "flip", leave}, Settings: []string{"kvferry-pull"}}
	j, stdout, err := judgeFakes(t, "", cfg)
	if !errors.Is(err, ErrFaults) || len(j.Trials) != 5 {
		t.Fatalf("%v, %+v", err, j.Trials)
	}
	want := []Trial{
		{Fired: true, Outcome: Right, Computed: 1, Lost: unknown},
		{Outcome: Right, Computed: 1}, // D was too quick
		{Fired: true, Outcome: Right, Computed: 1, Lost: unknown},
		{Fired: true, Outcome: Right, Computed: 1},
		{Fired: true, Outcome: Right, Text: "1000 requests"},
	}
	for i, tr := range j.Trials {
		want[i].Setting, want[i].Rail, want[i].Fault, want[i].Next = "kvferry-pull", tcp, cfg.Faults[i], Right
		if !strings.HasPrefix(tr.Text, want[i].Text) {
			t.Error(tr.Text)
		}
		if tr.Seconds, tr.Text, want[i].Text = 0, "", ""; tr != want[i] {
			t.Errorf("%+v, want %+v", tr, want[i])
		}
	}
	if !strings.Contains(stdout, "* kvferry-pull tcp, kill-p-during: the fault did not come") || strings.Count(stdout, "FAILED") != 2 || !strings.Contains(stdout, "kvferry-pull tcp, flip: a flipped bit was not found") {
		t.Error(stdout)
	}
}

// TestJudgeBad: connectors that do not stand a fault.
func TestJudgeBad(t *testing.T) {
	for own, c := range map[string]struct {
		fault string
		want  Trial
		note  string
	}{
		"D then waits":    {"flip", Trial{Fired: true, Outcome: Hang, Next: Right}, "no answer within 1s"},
		"D then errs":     {"flip", Trial{Fired: true, Outcome: Wrong, Next: Wrong, Computed: 1}, "WRONG D answered"},
		"D then computes": {"flip", Trial{Fired: true, Outcome: Recomputed, Next: Recomputed, Computed: 2048}, ""},
		"D then dies":     {"flip", Trial{Fired: true, Outcome: Crashed, Next: Right}, "CRASH D ended: exit status 9"},
		"D then quits":    {"flip", Trial{Fired: true, Outcome: Crashed, Next: Right}, "CRASH D ended, or did not answer"},
		"P leaks":         {leave, Trial{Fired: true, Outcome: Leak, Next: Right, Lost: 1002}, "P has lost"},
		"D computes":      {"flip", Trial{Lost: unknown}, "before any fault: recomputed"},
		"P breaks":        {leave, Trial{Lost: unknown}, "exit status 3"},
	} {
		t.Run(own, func(t *testing.T) {
			t.Parallel()
			j, stdout, err := judgeFakes(t, "KvferryConnector "+own, Config{Faults: []string{c.fault}, Settings: []string{"kvferry-pull"}})
			if errors.Is(err, ErrFaults) != (c.note != "") || len(j.Trials) != 1 || !strings.Contains(stdout, c.note) {
				t.Fatalf("%v, %+v\n%s", err, j.Trials, stdout)
			}
			c.want.Setting, c.want.Rail, c.want.Fault = "kvferry-pull", tcp, c.fault
			got := j.Trials[0]
			if got.Seconds, got.Text, got.Error = 0, "", ""; got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// TestJudgeFrozen: a P that was stopped goes on, and is not taken for one that does not answer.
func TestJudgeFrozen(t *testing.T) {
	t.Parallel()
	j, stdout, err := judgeFakes(t, "KvferryConnector D then waits", Config{Faults: []string{"freeze-p"}, Settings: []string{"kvferry-pull"}})
	if !errors.Is(err, ErrFaults) || len(j.Trials) != 1 {
		t.Fatalf("%v\n%s", err, stdout)
	}
	if tr := j.Trials[0]; !tr.Fired || tr.Outcome != Hang || tr.Next != Right || tr.Lost != 0 {
		t.Errorf("%+v\n%s", tr, stdout)
	}
}

// TestJudgeDeaf: an instance that reads no more orders ends its trial, not the run.
func TestJudgeDeaf(t *testing.T) {
	t.Parallel()
	_, stdout, err := judgeFakes(t, "KvferryConnector D then waits", Config{Faults: []string{leave}, Settings: []string{"kvferry-pull"}})
	if !errors.Is(err, ErrFaults) || !strings.Contains(stdout, "D does not read its orders within 1s") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// TestJudgeWrapped: the wrapper is told what to wrap and what to do, and says that it has done so; peers are
// not judged.
func TestJudgeWrapped(t *testing.T) {
	t.Parallel()
	j, stdout, err := judgeFakes(t, "", Config{Faults: []string{"notif-drop", "stall"}, Settings: []string{"nixl-ucx"}})
	if err != nil || len(j.Trials) != 2 || !j.Trials[0].Fired || j.Trials[1].Fired || !strings.Contains(stdout, "NOT FIRED") || !strings.Contains(stdout, "bad") {
		t.Errorf("%v, %+v\n%s", err, j.Trials, stdout)
	}
}

// TestJudgeReplay: what lands late has blocks that the next prompt has too, and what becomes of that one stands in the
// table.
func TestJudgeReplay(t *testing.T) {
	t.Parallel()
	j, stdout, err := judgeFakes(t, "NixlConnector D then errs", Config{Faults: []string{"replay"}, Settings: []string{"nixl-ucx"}})
	if err != nil || len(j.Trials) != 1 || !j.Trials[0].Fired || j.Trials[0].Outcome != Right || !strings.Contains(stdout, "s, NEXT WRONG") {
		t.Errorf("%v, %+v\n%s", err, j.Trials, stdout)
	}
}

// TestNoTrial: a run in which no fault comes to any setting is none.
func TestNoTrial(t *testing.T) {
	const none = `Faults: "flip,stall": name faults that come to the settings`
	for setting, refused := range map[string]bool{"kvferry-pull/cma": true, "example": true, "kvferry-pull/tcp": false} {
		cfg := Config{Faults: []string{"flip", "stall"}, Settings: []string{setting}, Out: t.TempDir()}
		if err := cfg.Validate(); (err != nil && strings.Contains(err.Error(), none)) != refused {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

// TestFaultNames: a name that is none is refused, and all are all.
func TestFaultNames(t *testing.T) {
	all, err := chooseFaults([]string{AllFaults})
	if err != nil || len(all) != len(Faults) {
		t.Errorf("%d faults, %v", len(all), err)
	}
	if _, err := chooseFaults([]string{"kill"}); err == nil || !strings.Contains(err.Error(), `"kill": there is no such fault: use all, kill-p-before`) {
		t.Error(err)
	}
}
