package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/engine"
)

func TestSimulate(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), "sim", "--prefill", "2", "--decode", "3", "--num-prompts", "50",
		"--link", "100gbit", "--random-input-len", "300", "--random-output-len", "8", "--out", dir)
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"virtual time, everything modelled", "2 prefill + 3 decode", "1 x 12.5 GB/s", "goodput", "TTFT", "results.jsonl"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	var summary struct {
		Result struct {
			Requests int
			Nodes    []any
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil || json.Unmarshal(text, &summary) != nil || summary.Result.Requests != 50 || len(summary.Result.Nodes) != 5 {
		t.Errorf("summary.json: %v, %+v", err, summary)
	}
	if records, err := os.ReadFile(filepath.Join(dir, "results.jsonl")); err != nil || strings.Count(string(records), "\n") != 50 {
		t.Errorf("results.jsonl: %v, %d lines", err, strings.Count(string(records), "\n"))
	}
}

// TestSimulateEstimated: the profile of a GPU that nobody has measured says nothing of links.
func TestSimulateEstimated(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "l40s.json")
	code, _, stderr := command(t.Context(), "profile", "--model", "../../internal/model/testdata/qwen2.5-7b.json", "--gpu", "L40S", "--out", profile)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	code, stdout, stderr := command(t.Context(), "sim", "--profile", profile, "--num-prompts", "5", "--request-rate", "4")
	if code != 0 || !strings.Contains(stdout, "1 x 12.5 GB/s") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	code, _, stderr = command(t.Context(), "sim", "--profile", profile, "--link", "tcp")
	if want := `--link: "tcp": there is no such link: use native, 100gbit or rate=1.29GB/s,latency=10us; profile `; code != 2 || !strings.Contains(stderr, want) {
		t.Errorf("exit %d: %s, want %s", code, stderr, want)
	}
}

func TestSimulateSweep(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), "sim", "--num-prompts", "100", "--random-input-len", "300", "--random-output-len", "8",
		"--sweep", "rate=1,4", "--sweep", "link=tcp,100gbit", "--out", dir)
	if code != 0 || strings.Count(stderr, "point ") != 4 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "best: rate=4 link=tcp: the most goodput a GPU") || !strings.Contains(stdout, "\n*  4     tcp") {
		t.Errorf("stdout:\n%s", stdout)
	}
	for _, file := range []string{"sweep.json", "report.html"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
}

// TestSimulateUsage: every wrong flag is named with what would do, exit 2; of a broken
// trace file and line are named. That nothing can be served is seen at run time, exit 1.
func TestSimulateUsage(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.jsonl")
	empty := filepath.Join(dir, "empty.jsonl")
	good := filepath.Join(dir, "good.jsonl")
	line := `{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}` + "\n"
	for path, text := range map[string]string{broken: line + "{\n", empty: "\n", good: line} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"--link 0GB/s", 2, []string{"--link", "rate: 0: use 1 B/s"}},
		{"--link native", 2, []string{"--link", "in virtual time"}},
		{"--link fast", 2, []string{"--link", `"fast": there is no such link`}},
		{"--nics 0", 2, []string{"--nics: 0: use more"}},
		{"--prefill 0", 2, []string{"--prefill: 0: a cluster has"}},
		{"--both 2 --decode 2", 2, []string{"--both", "leave one kind out"}},
		{"--both 2 --link tcp", 2, []string{"--link", "move no KV"}},
		{"--enable-chunked-prefill", 2, []string{"--enable-chunked-prefill", "--both"}},
		{"--scheduler orca", 2, []string{`--scheduler: "orca": use one of vllm-v0, vllm-v1, sglang`}},
		{"--both 1 --enable-chunked-prefill --scheduler sglang", 2, []string{"--enable-chunked-prefill: is a setting of vllm-v0"}},
		{"--handoff drop", 2, []string{"--handoff", "drop"}},
		{"--placement best", 2, []string{"--placement", "best"}},
		{"--request-rate 0", 2, []string{"--request-rate: 0: use more than 0"}},
		{"--num-prompts 0", 2, []string{"--num-prompts: 0"}},
		{"--goodput itl:5 --sweep colour=red", 2, []string{"--goodput", "--sweep", "write one of"}},
		{"--speed 2", 2, []string{"--speed", "--trace"}},
		{"--attainment 2", 2, []string{"--attainment: 2: use 0 to 1"}},
		{"--sweep rate=1 --sweep nics=1 --sweep decode=1", 2, []string{"more than twice"}},
		{"--prefill 3 --sweep nodes=1:2,2:1", 2, []string{"--prefill: --sweep nodes sets it"}},
		{"--request-rate 3 --sweep rate=1,2", 2, []string{"--request-rate: --sweep rate sets it"}},
		{"--sweep nodes=1:2 --sweep decode=2", 2, []string{`--sweep: "decode": nodes is swept too`}},
		{"--sweep link=1GB/s,native", 2, []string{"--sweep: link=native: ", "in virtual time"}},
		{"--profile none.json", 2, []string{"--profile"}},
		{"--trace " + good + " --request-rate 3", 2, []string{"--request-rate", "a trace has times of its own"}},
		{"--trace " + good + " --seed 3", 2, []string{"--seed", "a trace has its own"}},
		{"--trace " + broken, 2, []string{"--trace: ", "broken.jsonl:2: it ends in the middle"}},
		{"--trace " + empty, 2, []string{"--trace: ", "empty.jsonl\": it has no requests"}},
		{"--trace " + filepath.Join(dir, "none.jsonl"), 2, []string{"--trace: ", "none.jsonl\": there is no such file"}},
		{"--random-input-len 20000 --num-prompts 3", 1, []string{"every request was refused", "at most 10000"}},
		{"--random-input-len 20000 --num-prompts 3 --sweep rate=1,2", 1, []string{"every request of every point was refused", "at most 10000"}},
	} {
		args := append([]string{"sim", "--out", t.TempDir()}, strings.Fields(c.args)...)
		code, stdout, stderr := command(t.Context(), args...)
		if code != c.code {
			t.Errorf("%s: exit %d, want %d: %s%s", c.args, code, c.code, stdout, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: no %q in %s", c.args, want, stderr)
			}
		}
	}
}

func TestSimulateInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if code, _, stderr := command(ctx, "sim", "--num-prompts", "100000", "--out", t.TempDir()); code != ExitInterrupted {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestSimulateWithoutLinks: nodes that move no KV need no link, and their profile has none.
func TestSimulateWithoutLinks(t *testing.T) {
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p.Links = nil
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t.Context(), "sim", "--profile", file, "--num-prompts", "3", "--both", "1"); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	daemons := []string{"bench", "--profile", file, "--num-prompts", "3", "--both", "1", "--kv-blocks", "100", "--random-input-len", "32", "--random-output-len", "4", "--out", t.TempDir()}
	if code, _, stderr := command(t.Context(), daemons...); code != 0 {
		t.Errorf("daemons: exit %d: %s", code, stderr)
	}
}
