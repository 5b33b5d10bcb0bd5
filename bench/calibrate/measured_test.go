package calibrate

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/bench/nullserver"
	"kvferry/bench/nullserver/nullservertest"
	"kvferry/engine"
	"kvferry/internal/config"
)

// TestMeasures: a server that runs is asked the series, in real time, and what is written is a
// profile with its times. The null server computes any number of prompts at once.
func TestMeasures(t *testing.T) {
	server := nullservertest.Start(t, nullserver.Config{TTFT: 20 * time.Millisecond, ITL: 5 * time.Millisecond})
	var printed strings.Builder
	c := parsed(t, "--from", server.URL(), "--rounds", "1", "--max-model-len", "64", "--kv-blocks", "1000", "--max-num-seqs", "4",
		"--check", "--num-prompts", "10", "--random-input-len", "16", "--random-output-len", "8", "--request-rate", "20", "--out", filepath.Join(t.TempDir(), "null.json"))
	var progress strings.Builder
	c.Stdout, c.Progress = &printed, &progress
	if err := RunProfile(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(progress.String(), "waiting for "+server.URL()+" to answer, 1m0s at most") {
		t.Errorf("it does not say that it waits: %s", &progress)
	}
	p, err := engine.LoadProfile(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine adds to times, and takes nothing away.
	if p.Model != "null" || p.MaxModelLen != 64 || p.Blocks() != 1000 || p.Costs.DecodeStepMS < 4 || p.Disagg.DecodeStepMS != p.Costs.DecodeStepMS {
		t.Errorf("%+v", p)
	}
	for _, want := range []string{"null at " + server.URL() + ", measured: ", "decode_step_ms", "One round was measured", "held back: 10 requests, 20 a second", "mean TPOT"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in %s", want, &printed)
		}
	}
	printed.Reset()
	c = parsed(t, "--from", server.URL(), "--check", "--profile", c.Out, "--num-prompts", "4", "--random-input-len", "16", "--random-output-len", "4", "--request-rate", "50")
	c.Stdout, c.Progress = &printed, io.Discard
	if err := RunProfile(t.Context(), c); err != nil || !strings.Contains(printed.String(), "held back: 4 requests") || strings.Contains(printed.String(), "95 % interval") {
		t.Errorf("%v: %s", err, &printed)
	}
}

func TestMeasuringFaults(t *testing.T) {
	server := nullservertest.Start(t, nullserver.Config{})
	for want, args := range map[string][]string{
		"--profile: ":                        {"--profile", "zero"},
		"--profile: \"none.json\"":           {"--profile", "none.json", "--check"},
		"--tensor-parallel-size: 2: ":        {"--tensor-parallel-size", "2"},
		"--known-itl: 20ms: ":                {"--known-itl", "20ms"},
		"--known-ttft: 1s: ":                 {"--known-ttft", "1s"},
		"--rounds: 0: ":                      {"--rounds", "0"},
		"--model: ":                          {"--model", "nowhere"},
		"--max-model-len: 0: the server":     {"--kv-blocks", "100"},
		"--kv-blocks: 0: the server does no": {"--max-model-len", "64"},
		"--max-model-len: 40: a server is m": {"--kv-blocks", "100", "--max-model-len", "40"},
		"--kv-blocks: 3: of 16 tokens: ":     {"--kv-blocks", "3", "--max-model-len", "64"},
		"--request-rate: -1: ":               {"--check", "--request-rate", "-1"},
		"--out: \"/nowhere\": ":              {"--out", "/nowhere/null.json"},
		"max_num_batched_tokens: 5: ":        {"--max-model-len", "64", "--kv-blocks", "100", "--max-num-batched-tokens", "5"},
	} {
		c := parsed(t, append([]string{"--from", server.URL()}, args...)...)
		c.Stdout, c.Progress = io.Discard, io.Discard
		if err := config.Named(RunProfile(t.Context(), c), ProfileFlagNames); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
