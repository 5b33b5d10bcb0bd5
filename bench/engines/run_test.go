package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/config"
)

// patience bounds every wait of a test. It is no measure of speed.
const patience = time.Minute

// await calls try until it is true.
func await(t *testing.T, what string, try func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); !try(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("no %s", what)
		}
	}
}

// runFakes runs settings with faults, and returns what was printed.
func runFakes(ctx context.Context, faults string, cfg Config) (stdout, progress string, err error) {
	var o, p bytes.Buffer
	cfg.Stdout, cfg.Progress = &o, &p
	err = fakes(faults, cfg.Out).run(ctx, cfg.withDefaults())
	return o.String(), p.String(), err
}

// summary reads summary.json: the rows, and that it says what was run where, and when.
func summary(t *testing.T, out string) (rows []Row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, document.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var got Result
	if err := json.Unmarshal(text, &got); err != nil || got.Model == "" || got.Rounds == 0 || got.Machine.Kernel == "" || got.Seconds <= 0 || got.Started.IsZero() {
		t.Fatalf("%v: %s", err, text)
	}
	return got.Rows
}

// nothingLeft checks that instances have been there, by what they have written into a folder, that
// they have ended, and that the folder that they shared is gone.
func nothingLeft(t *testing.T, pids string) {
	t.Helper()
	all := instances(t, pids)
	if len(all) == 0 {
		t.Fatal("there was no instance")
	}
	for pid, folder := range all {
		await(t, "end of process "+pid, func() bool {
			text, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(text), ") Z ")
		})
		await(t, "end of "+folder, func() bool {
			_, err := os.Stat(folder)
			return strings.Contains(folder, "kvferry-engines-") && errors.Is(err, os.ErrNotExist)
		})
	}
}

// instances are the process ids of those that have begun, with the folders that they share.
func instances(t *testing.T, pids string) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(pids, "pid-*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range names {
		if folder, err := os.ReadFile(name); err == nil && len(folder) > 0 {
			all[strings.TrimPrefix(filepath.Base(name), "pid-")] = string(folder)
		}
	}
	return all
}

// TestRun: all settings, in turns, with instances of their own; all files; the layout of
// summary.json.
func TestRun(t *testing.T) {
	out := t.TempDir()
	stdout, progress, err := runFakes(t.Context(), "", Config{Prompts: 12, Out: out})
	if err != nil {
		t.Fatalf("%v\n%s%s", err, progress, stdout)
	}
	rows := summary(t, out)
	if len(rows) != len(Settings)*len(Lengths) {
		t.Fatalf("%d rows", len(rows))
	}
	for i, row := range rows {
		want := Row{
			Setting: Settings[i/3].Name, Rail: Settings[i/3].Rail, PromptTokens: Lengths[i%3], Prompts: 4, Identical: 4, DigestsEqual: true,
			Compute: "measured", Transfer: "measured", Computed: 4, LikeOthers: 4, KVBytes: 4 * int64(Lengths[i%3]) / fakeBlock * 1000,
		}
		if row.Setting == Mono {
			want.LikeOthers = 0
			want.Transfer, want.Computed, want.KVBytes = "none", 4*Lengths[i%3], 0
		}
		if Settings[i/3].Append > 0 {
			want.Computed = 0 // the two that it computes are not the prompt's
		}
		if m := row.Metrics; m.TTFT <= 0 || m.P99TTFT < m.TTFT || m.TPOT < 0 {
			t.Errorf("%+v", m)
		}
		if (row.Times == nil) != (row.Setting == Mono) || row.Times != nil && row.Times.Prefill <= 0 {
			t.Errorf("%+v", row.Times)
		}
		row.Metrics, row.Times = Metrics{}, nil
		if row != want {
			t.Errorf("%+v, want %+v", row, want)
		}
	}
	text, _ := os.ReadFile(filepath.Join(out, document.SummaryFile))
	var raw struct{ Rows []map[string]any }
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(raw.Rows[0])), strings.Fields("compute d_prompt_tokens digests_equal identical kv_bytes like_others metrics prompt_tokens prompts rail setting transfer"); !slices.Equal(got, want) {
		t.Errorf("a row has %q, want %q", got, want)
	}
	for i, row := range raw.Rows {
		metrics, _ := row["metrics"].(map[string]any)
		kv := metrics["kv_gb_s"]
		delete(metrics, "kv_gb_s")
		if got, want := slices.Sorted(maps.Keys(metrics)), strings.Fields("cpu_s median_tpot_ms median_ttft_ms p99_ttft_ms"); !slices.Equal(got, want) {
			t.Errorf("its metrics are %q, want %q", got, want)
		}
		if known := rows[i].Metrics.KV > 0; known != (kv != nil) || known && (row["setting"] == Mono || row["setting"] == "kvferry-layerwise") {
			t.Errorf("%v has kv_gb_s %v", row["setting"], kv)
		}
	}
	turns := regexp.MustCompile(`(?m)^round (\d)/2 (\S+).*: 6 prompts in \d+ s(, about \S+ left)?$`).FindAllStringSubmatch(progress, -1)
	if len(turns) != 2*len(Settings) || turns[0][2] != Mono || turns[1][2] == Mono || turns[len(Settings)][1] != "2" || turns[len(Settings)][2] != Mono {
		t.Errorf("turns %q of\n%s", turns, progress)
	}
	for _, name := range []string{document.RecordsFile, document.ReportFile, document.TableFile, logFolder + "/nixl-ucx-tcp-round2-D.log"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	records, _ := os.ReadFile(filepath.Join(out, document.RecordsFile))
	if n := bytes.Count(records, []byte("\n")); n != 12*len(Settings) {
		t.Errorf("%d records", n)
	}
	if !strings.Contains(stdout, "compute measured, transfer measured") || !strings.Contains(stdout, "4 of 4") || strings.Contains(stdout, "*") {
		t.Error(stdout)
	}
	if got, want := len(instances(t, out)), 2*(2*len(Settings)-1); got != want {
		t.Errorf("%d instances, want %d", got, want)
	}
	nothingLeft(t, out)
}

// TestDisturbed: settings whose prompts others disturbed are marked, and a line says by what.
func TestDisturbed(t *testing.T) {
	out := t.TempDir()
	stdout, _, err := runFakes(t.Context(), "disturbed", Config{Prompts: 3, Rounds: 1, Settings: []string{"example"}, Out: out})
	if err != nil || !strings.Contains(stdout, "\nexample ~ ") || strings.Contains(stdout, "mono ~") || !strings.Contains(stdout, "~ example file was disturbed: others took the CPUs") || !strings.Contains(stdout, ", 1 round, ") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// TestFaults: each fault fails the rows of its setting, with its reason, and no others.
func TestFaults(t *testing.T) {
	for fault, c := range map[string]struct {
		want    string
		prompts int
	}{
		"D computes":     {"D computed 256 tokens of 2 prompts itself: at most one a prompt", 2},
		"D computes two": {"D computed 4 tokens of 2 prompts itself: at most one a prompt", 2},
		"D starves":      {"a prompt was answered for which D received no KV", 2},
		"D flips":        {"the KV that D has is not that of P", 2},
		"P flips":        {"the KV that D has is not that of P", 2},
		"D errs":         {"2 of 2 answers are not mono's", 2},
		"P breaks":       {"P ended: exit status 3\nP printed last (all is in logs/nixl-ucx-tcp-round1-P.log):\n    ImportError: there is no such library", 0},
		"D dies":         {"D ended: exit status 9\nD printed last (all is in logs/nixl-ucx-tcp-round1-D.log):\n    a last word", 0},
		"D raises":       {"D: RuntimeError: no KV came", 0},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			stdout, progress, err := runFakes(t.Context(), "NixlConnector "+fault, Config{Prompts: 6, Rounds: 1, Settings: []string{"nixl-ucx", "example"}, Out: out})
			if !errors.Is(err, ErrFailed) {
				t.Fatalf("%v\n%s%s", err, progress, stdout)
			}
			for _, row := range summary(t, out) {
				if row.Setting != "nixl-ucx" {
					if row.Error != "" {
						t.Errorf("%+v", row)
					}
					continue
				}
				if row.Error == "" || row.Prompts != c.prompts || row.PromptTokens == 128 && !strings.HasPrefix(row.Error, c.want) {
					t.Errorf("%+v, want %s", row, c.want)
				}
			}
			if !strings.Contains(stdout, "* nixl-ucx  tcp") || !strings.Contains(stdout, "FAILED") || !strings.Contains(stdout, c.want) {
				t.Errorf("%q is not in\n%s", c.want, stdout)
			}
			nothingLeft(t, out)
		})
	}
}

// TestNotJudged: with a model of one's own tokens may differ, KV may not.
func TestNotJudged(t *testing.T) {
	for fault, bad := range map[string]bool{"NixlConnector D errs,NixlPushConnector D errs,ExampleConnector D errs": false, "NixlPushConnector D errs": true, "NixlConnector D flips": true} {
		out := t.TempDir()
		e := fakes(fault, out)
		e.identical = false
		var stdout bytes.Buffer
		cfg := Config{Prompts: 3, Rounds: 1, Settings: []string{"nixl-ucx", "nixl-push", "example"}, Out: out, Stdout: &stdout}
		if err := e.run(t.Context(), cfg.withDefaults()); errors.Is(err, ErrFailed) != bad {
			t.Errorf("%s: %v", fault, err)
		}
		if !strings.Contains(stdout.String(), "Tokens are not held to mono's with this model") {
			t.Error(stdout.String())
		}
	}
}

// TestMonoFails: without mono nothing is run, and why is said.
func TestMonoFails(t *testing.T) {
	stdout, progress, err := runFakes(t.Context(), " D breaks", Config{Out: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "mono could not run") || strings.Contains(progress, "nixl") || !strings.Contains(stdout, "ImportError") {
		t.Errorf("%v\n%s\n%s", err, progress, stdout)
	}
}

// TestHangs: an instance that does not answer fails its setting after the time that it has, in the
// first round and once; the others go on.
func TestHangs(t *testing.T) {
	out := t.TempDir()
	stdout, progress, err := runFakes(t.Context(), "NixlConnector D waits", Config{Prompts: 6, Settings: []string{"nixl-ucx", "example"}, Timeout: 2 * time.Second, Out: out})
	if want := "the instances did not give D's answer of prompt--1-128 within 2s"; !errors.Is(err, ErrFailed) || strings.Count(progress, want) != 1 || !strings.Contains(stdout, want) {
		t.Errorf("%v\n%s\n%s", err, progress, stdout)
	}
	if !strings.Contains(progress, "round 2/2 example file: 3 prompts") {
		t.Error(progress)
	}
	nothingLeft(t, out)
}

// watched cancels a run when a line has come.
type watched struct {
	cancel func()
	text   string
}

func (w watched) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.cancel()
	}
	return len(p), nil
}

// TestInterrupted: what was measured is kept and printed, and nothing is left.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := t.TempDir()
	var stdout bytes.Buffer
	cfg := Config{Prompts: 6, Rounds: 1, Settings: []string{"nixl-ucx", "example"}, Out: out, Stdout: &stdout, Progress: watched{cancel, "nixl-ucx tcp: 6 prompts"}}
	err := fakes("ExampleConnector P waits", out).run(ctx, cfg.withDefaults())
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	if rows := summary(t, out); len(rows) != 6 || rows[5].Prompts != 2 || rows[5].Error != "" || !strings.Contains(stdout.String(), "nixl-ucx") {
		t.Errorf("%+v\n%s", rows, stdout.String())
	}
	nothingLeft(t, out)
}

// TestKilled: kvferry is killed with -9 while instances are at work: they end with it, and so does
// the folder that they share.
func TestKilled(t *testing.T) {
	out := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchEnv+"="+out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "three instances", func() bool { return len(instances(t, out)) == 3 }) // mono, P, D
	for _, folder := range instances(t, out) {
		if _, err := os.Stat(folder); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	nothingLeft(t, out)
}

// TestConfigFaults: each fault names its field and says what would do. Without the environment the
// error says how it is made.
func TestConfigFaults(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, document.SummaryFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		`Settings: "ucx": there is no such setting: use mono`: {Settings: []string{"ucx"}},
		"Rounds: 100: use 1 to 99":                            {Rounds: 100},
		"Prompts: 5: use 6 or more":                           {Prompts: 5, Rounds: 2},
		`Link: "1kbit": use 1mbit to 100gbit`:                 {Link: 1000},
		"KVFerry: \"/nowhere\": it has no Python package":     {KVFerry: "/nowhere"},
		`Model: "gpt": it is no folder of a model`:            {Model: "gpt"},
		"it has results already":                              {Out: full},
	} {
		config.Default(&cfg.Out, filepath.Join(full, "new"))
		var invalid *config.Invalid
		if err := Run(t.Context(), cfg); !errors.As(err, &invalid) || len(invalid.Faults) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	err := Run(t.Context(), Config{Cache: t.TempDir(), Out: filepath.Join(full, "new")})
	if err == nil || !strings.Contains(err.Error(), "run kvferry lab vllm setup") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(full, "new")); err == nil {
		t.Error("a folder was made for a run that could not begin")
	}
}

// TestPrompts: a prompt is the same in every setting and another for every number, has no special
// tokens, and all prompts of all lengths are spread over the rounds.
func TestPrompts(t *testing.T) {
	ready := event{Vocabulary: 50, Special: []int{0, 7}}
	seen := map[string]bool{}
	for number := range 9 {
		p := prompt(number, 128, ready)
		if len(p) != 128 || slices.Contains(p, 7) || slices.Contains(p, 0) || !slices.Equal(p, prompt(number, 128, ready)) || seen[fmt.Sprint(p)] {
			t.Errorf("prompt %d: %v", number, p)
		}
		seen[fmt.Sprint(p)] = true
	}
	cfg := Config{}.withDefaults()
	of := map[string]int{}
	for number := range cfg.Prompts {
		length, round := cfg.length(number)
		of[fmt.Sprint(length, " ", round)]++
	}
	for _, length := range Lengths {
		for round := 1; round <= cfg.Rounds; round++ {
			if n := of[fmt.Sprint(length, " ", round)]; n != cfg.Prompts/6 {
				t.Errorf("round %d has %d prompts of %d tokens", round, n, length)
			}
		}
	}
}
