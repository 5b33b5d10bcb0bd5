package calibrate

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/internal/config"
)

// parsed is a ProfileConfig from a command line.
func parsed(t *testing.T, args ...string) ProfileConfig {
	t.Helper()
	var c ProfileConfig
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(append([]string{"--model", "../../internal/model/testdata/qwen2.5-7b-gptq-int4.json"}, args...)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWritesProfile: what is written is a profile that every command takes.
func TestWritesProfile(t *testing.T) {
	for _, name := range engine.Schedulers() {
		var printed strings.Builder
		c := parsed(t, "--gpu", "a10", "--engine", name, "--out", filepath.Join(t.TempDir(), "a10.json"))
		c.Stdout = &printed
		if err := RunProfile(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		p, err := engine.LoadProfile(c.Out)
		if err != nil {
			t.Fatal(err)
		}
		if p.GPU != "A10" || p.Model != "testdata" || p.Engine.Scheduler != name || p.MaxModelLen != 32768 {
			t.Errorf("%+v", p)
		}
		for _, want := range []string{"\nwritten: " + c.Out + ", which", "KV ", "125 TFLOPS fp16 x MFU", "600 GB/s x MBU", "Not modelled"} {
			if !strings.Contains(printed.String(), want) {
				t.Errorf("%q is not in %s", want, &printed)
			}
		}
	}
}

// TestFindsModel: a model is a config.json, a folder with one, or what the Hugging Face cache has under its
// name, which is what clients ask for then.
func TestFindsModel(t *testing.T) {
	text, err := os.ReadFile("../../internal/model/testdata/qwen2.5-7b-gptq-int4.json")
	if err != nil {
		t.Fatal(err)
	}
	hub, here := t.TempDir(), t.TempDir()
	t.Setenv("HF_HUB_CACHE", hub)
	for _, folder := range []string{filepath.Join(hub, "models--Qwen--Qwen2.5", "snapshots", "0123"), filepath.Join(here, "mine")} {
		if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "config.json"), text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(here)
	for model, want := range map[string]string{"Qwen/Qwen2.5": "Qwen/Qwen2.5", "mine": "mine", "mine/": "mine", "mine/config.json": "mine", "mine/../mine": "mine"} {
		c := ProfileConfig{}
		c.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
		c.Model, c.GPU, c.Out, c.Stdout = model, "A10", filepath.Join(t.TempDir(), "a10.json"), io.Discard
		if err := RunProfile(t.Context(), c); err != nil {
			t.Errorf("%s: %v", model, err)
			continue
		}
		if p, err := engine.LoadProfile(c.Out); err != nil || p.Model != want {
			t.Errorf("%s: %+v, %v, want %q", model, p, err, want)
		}
	}
	c := ProfileConfig{Model: "Qwen/Qwen3-32B", GPU: "A10", Stdout: io.Discard}
	if err := RunProfile(t.Context(), c); err == nil || !strings.Contains(err.Error(), "hf download Qwen/Qwen3-32B config.json") {
		t.Error(err)
	}
}

// TestKeepsFiles: what is there is not written over, and that is said before anything is measured.
func TestKeepsFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.json")
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--gpu", "A10"}, {"--from", "http://127.0.0.1:1"}} {
		c := parsed(t, append(args, "--out", file)...)
		c.Stdout, c.Progress = io.Discard, io.Discard
		if err := config.Named(RunProfile(t.Context(), c), ProfileFlagNames); err == nil || !strings.Contains(err.Error(), "it is there already: name another file") || !strings.Contains(err.Error(), "--out") {
			t.Errorf("%q: %v", args, err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestNamesFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--gpu: ":                                    {"--gpu", "A11"},
		"use H100-SXM, H100-PCIe or a JSON file":     {"--gpu", "h100"},
		"name the model's config.json, its folder":   {"--model", "/nowhere/config.json", "--gpu", "A10"},
		`--quantization: "awq": use int4`:            {"--gpu", "A10", "--quantization", "awq"},
		`--quantization: "int3": use fp8`:            {"--gpu", "A10", "--quantization", "int3"},
		"--tensor-parallel-size: 3":                  {"--gpu", "A10", "--tensor-parallel-size", "3"},
		"--max-model-len: 40000":                     {"--gpu", "A10", "--max-model-len", "40000"},
		`--engine: "tgi": use vllm-v0`:               {"--gpu", "A10", "--engine", "tgi"},
		"--model: ":                                  {"--gpu", "A10", "--model", "nowhere"},
		"--out: ":                                    {"--gpu", "A10", "--out", "/nowhere/a10.json"},
		"--tensor-parallel-size: 1: weigh":           {"--gpu", "A10", "--quantization", "none", "--gpu-memory-utilization", "0.5"},
		"--known-itl: 1ms: that is 1":                {"--gpu", "A10", "--known-itl", "1ms"},
		"--known-itl-context: 40000: use 1 to 32768": {"--gpu", "A10", "--known-itl", "1s", "--known-itl-context", "40000"},
		"--known-ttft: 10ms: that is ":               {"--gpu", "A10", "--known-ttft", "10ms"},
		"--known-ttft-tokens: 0: use 1 to 32768":     {"--gpu", "A10", "--known-ttft", "1s", "--known-ttft-tokens", "0"},
	} {
		c := parsed(t, args...)
		c.Stdout = &strings.Builder{}
		if err := config.Named(RunProfile(t.Context(), c), ProfileFlagNames); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
