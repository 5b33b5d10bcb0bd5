package profile

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"kvferry/config"
	"kvferry/engine"
)

// asked is a Config from a command line.
func asked(t *testing.T, args ...string) Config {
	t.Helper()
	var c Config
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(append([]string{"--model", "../../modelconfig/testdata/qwen2.5-7b-gptq-int4.json"}, args...)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWritesProfile: what is written is a profile that every command takes.
func TestWritesProfile(t *testing.T) {
	for _, name := range engine.Schedulers() {
		var printed strings.Builder
		c := asked(t, "--gpu", "a10", "--engine", name, "--out", filepath.Join(t.TempDir(), "a10.json"))
		c.Stdout = &printed
		if err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		p, err := engine.LoadProfile(c.Out)
		if err != nil {
			t.Fatal(err)
		}
		if p.GPU != "A10" || p.Model != "testdata" || p.Engine.Scheduler != name || p.MaxModelLen != 32768 {
			t.Errorf("%+v", p)
		}
		for _, want := range []string{"KV ", "125 TFLOPS fp16 x MFU", "600 GB/s x MBU", "Not modelled"} {
			if !strings.Contains(printed.String(), want) {
				t.Errorf("%q is not in %s", want, &printed)
			}
		}
	}
}

func TestNamesFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--gpu: ": {"--gpu", "A11"},
		"name the model's config.json, or its folder": {"--model", "/nowhere/config.json", "--gpu", "A10"},
		`--quantization: "awq": use int4`:             {"--gpu", "A10", "--quantization", "awq"},
		`--quantization: "int3": use fp8`:             {"--gpu", "A10", "--quantization", "int3"},
		"--tensor-parallel-size: 3":                   {"--gpu", "A10", "--tensor-parallel-size", "3"},
		"--max-model-len: 40000":                      {"--gpu", "A10", "--max-model-len", "40000"},
		`--engine: "tgi": use vllm-v0`:                {"--gpu", "A10", "--engine", "tgi"},
		"--model: ":                                   {"--gpu", "A10", "--model", "nowhere"},
		"--out: ":                                     {"--gpu", "A10", "--out", "/nowhere/a10.json"},
		"--known-itl: 1ms: that is 1":                 {"--gpu", "A10", "--known-itl", "1ms"},
		"--known-itl-context: 40000: use 1 to 32768":  {"--gpu", "A10", "--known-itl", "1s", "--known-itl-context", "40000"},
		"--known-ttft: 10ms: that is ":                {"--gpu", "A10", "--known-ttft", "10ms"},
		"--known-ttft-tokens: 0: use 1 to 32768":      {"--gpu", "A10", "--known-ttft", "1s", "--known-ttft-tokens", "0"},
		"--tensor-parallel-size: 1: weigh":            {"--gpu", "A10", "--quantization", "none", "--gpu-memory-utilization", "0.5"},
	} {
		c := asked(t, args...)
		c.Stdout = &strings.Builder{}
		if err := config.Named(Run(t.Context(), c), FlagNames); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
