package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/document"
	"kvferry/bench/nullserver"
	"kvferry/bench/nullserver/nullservertest"
	"kvferry/cluster"
	"kvferry/internal/knob"
)

// served is the URL of a server that knows nothing of kvferry.
func served(t *testing.T, cfg nullserver.Config) string {
	t.Helper()
	return nullservertest.Start(t, cfg).URL()
}

// A serveRow is a row of summary.json.
type serveRow struct {
	Clock   string         `json:"clock"`
	Label   string         `json:"label"`
	Backend string         `json:"backend"`
	Metrics map[string]any `json:"metrics"`
	Faults  []string       `json:"faults"`
	Notes   []string       `json:"notes"`
}

// rowsOf runs kvferry bench and returns the rows that it left.
func rowsOf(t *testing.T, want int, args ...string) (rows []serveRow, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), append([]string{"bench", "--out", dir}, args...)...)
	if code != want {
		t.Fatalf("%v: exit %d, want %d\n%s\n%s", args, code, want, stdout, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, document.SummaryFile))
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, stderr)
	}
	var s struct{ Rows []serveRow }
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{document.RecordsFile, document.TableFile, document.ReportFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	return s.Rows, stdout, stderr
}

// TestServeStrangers: servers that know nothing of kvferry are measured, the strictest too. No
// answer can come before the server writes it; how near the figures are to what the server was
// told is measured on a quiet machine (docs/serve.md).
func TestServeStrangers(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "secret")
	const ttft, itl = 40 * time.Millisecond, 5 * time.Millisecond
	for _, c := range []struct {
		name   string
		server nullserver.Config
		args   string
		input  float64
	}{
		{"a plain one", nullserver.Config{}, "--backend openai", 10 * 32},
		{"strict: text only, a key, no /health, no fields of others", nullserver.Config{Strict: true, TextOnly: true, Key: "secret", NoHealth: true}, "--backend openai", 10 * 32},
		{"chat", nullserver.Config{Strict: true, Key: "secret"}, "--backend openai-chat", 10 * 32},
		{"SGLang's API", nullserver.Config{}, "--backend sglang", 10 * 32},
		{"one that counts no tokens", nullserver.Config{Strict: true, TextOnly: true, NoUsage: true, NoModels: true}, "--backend openai --model null", -1},
		{"with /v1 in the URL", nullserver.Config{}, "--backend openai --endpoint /v1/completions", 10 * 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.server.TTFT, c.server.ITL = ttft, itl
			url := served(t, c.server)
			if strings.Contains(c.name, "/v1") {
				url += "/v1"
			}
			args := append(strings.Fields(c.args), strings.Fields("--base-url "+url+" --dataset-name random --random-input-len 32 --random-output-len 6 --num-prompts 10 --request-rate 50")...)
			rows, stdout, _ := rowsOf(t, 0, args...)
			m := rows[0].Metrics
			if len(rows) != 1 || m["successful_requests"] != 10.0 || m["failed_requests"] != 0.0 || m["total_generated_tokens"] != 60.0 {
				t.Errorf("%+v", rows)
			}
			if c.input >= 0 && m["total_input_tokens"] != c.input {
				t.Errorf("%v input tokens, want %v", m["total_input_tokens"], c.input)
			}
			if c.input < 0 && !strings.Contains(stdout, "unconfirmed") {
				t.Errorf("nobody counted tokens, and nothing is said of it:\n%s", stdout)
			}
			if v := m["mean_ttft_ms"].(float64); v < 40 {
				t.Errorf("mean TTFT %v ms, the server waits 40", v)
			}
			if !strings.Contains(stdout, "Serving Benchmark Result") || !strings.Contains(stdout, "Successful requests:                     10 ") {
				t.Errorf("no report of vLLM's:\n%s", stdout)
			}
		})
	}
}

// TestServePublished: published commands of SGLang's client run as they stand and ask for the tokens
// that they asked for then. The tests of package load have the totals of all of them.
func TestServePublished(t *testing.T) {
	for _, c := range []struct {
		args          string
		input, output float64
	}{
		{"--random-input-len 64 --random-output-len 16 --num-prompts 200 --seed 1", 5661, 1653},
		{"--random-input-len 1000 --random-output-len 1000 --random-range-ratio 1 --num-prompts 128 --max-concurrency 16", 128000, 128000},
	} {
		rows, stdout, _ := rowsOf(t, 0, strings.Fields("--compat sglang --backend sglang --dataset-name random --clock virtual "+c.args)...)
		m := rows[0].Metrics
		if m["total_input_tokens"] != c.input || m["total_generated_tokens"] != c.output {
			t.Errorf("%s: %v in, %v out, want %v and %v", c.args, m["total_input_tokens"], m["total_generated_tokens"], c.input, c.output)
		}
		if !strings.Contains(stdout, fmt.Sprintf("Total input tokens:                      %-10.0f", c.input)) || !strings.Contains(stdout, "random-ids") {
			t.Errorf("%s: not SGLang's report, or not a word on what the prompts are:\n%s", c.args, stdout)
		}
	}
	rows, _, _ := rowsOf(t, 0, strings.Fields("--compat sglang --backend sglang --dataset-name random --num-prompts 12 --random-input-len 64 --random-output-len 16 --base-url "+served(t, nullserver.Config{}))...)
	if rows[0].Metrics["successful_requests"] != 12.0 || rows[0].Backend != "sglang" {
		t.Errorf("%+v", rows[0])
	}
}

// TestServeOwn: without a server a cluster is started for the run, and the model of it runs the
// same command line.
func TestServeOwn(t *testing.T) {
	t.Parallel()
	rows, stdout, stderr := rowsOf(t, 0, strings.Fields("--clock both --profile zero --kv-warm-mib 0 --link 10gbit --num-prompts 8 --request-rate 20 --random-input-len 64 --random-output-len 4")...)
	if len(rows) != 2 || rows[0].Clock != "real" || rows[1].Clock != "virtual" {
		t.Fatalf("%+v", rows)
	}
	for _, r := range rows {
		if r.Metrics["successful_requests"] != 8.0 || r.Metrics["total_input_tokens"] != 512.0 || r.Metrics["total_generated_tokens"] != 32.0 || r.Metrics["kv_bytes"].(float64) <= 0 {
			t.Errorf("%s: %+v", r.Clock, r.Metrics)
		}
	}
	if rows[0].Metrics["kv_bytes"] != rows[1].Metrics["kv_bytes"] {
		t.Errorf("%v bytes of KV measured, %v modelled", rows[0].Metrics["kv_bytes"], rows[1].Metrics["kv_bytes"])
	}
	if strings.Count(stderr, "no server is named: a cluster of kvferry's own is started") != 1 {
		t.Errorf("that a cluster was started is not said, or not once:\n%s", stderr)
	}
	if !strings.Contains(stdout, "Side by side") {
		t.Errorf("not side by side:\n%s", stdout)
	}
}

// TestServeRefuses: what cannot be run is named by its flag, before anything is asked.
func TestServeRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--compat tgi", `--compat: "tgi": use vllm, sglang or none`},
		{"--backend grpc", "--backend"},
		{"--base-url ftp://x", "--base-url"},
		{"--base-url http://x --port 3", "--base-url: it says host and port too"},
		{"--base-url http://x --prefill 2", "--prefill: it is for a cluster that kvferry starts"},
		{"--base-url http://x --clock virtual", "--clock"},
		{"--clock lunar", `--clock: "lunar": use real, virtual or both`},
		{"--clock virtual --link native", "--link"},
		{"--clock virtual --rail cma", "--rail: it is for daemons"},
		{"--dataset-name nothing", "--dataset-name"},
		{"--dataset-name sharegpt", "--dataset-path: none given"},
		{"--sonnet-input-len 5", "--sonnet-input-len: it is of another dataset than random"},
		{"--goodput ttft", "--goodput"},
		{"--find-rate", "--goodput: "},
		{"--find-rate speed --goodput ttft:1", "--find-rate"},
		{"--percentile-metrics tps", "--percentile-metrics"},
		{"--metric-percentiles 200", "--metric-percentiles"},
		{"--base-url http://x --header novalue", "--header"},
		{"--base-url http://x:1/v1/completions", `--base-url: "http://x:1/v1/completions": leave out /v1/completions, which --backend says: name http://x:1`},
		{"--base-url http://x/v1/chat/completions/", "leave out /v1/chat/completions"},
		{"--base-url http://x/generate --backend sglang", "leave out /generate"},
		{"--worker-urls http://x http://y/v1/completions", `--worker-urls: "http://y/v1/completions": leave out`},
		{"--worker-urls http://x --port 3", "--worker-urls: they say host and port too"},
		{"--trace x --speed 2 --untimed", "--speed: with --untimed requests come at --request-rate"},
		{"--api-key k", "--api-key: it is for a server that runs: name that with --base-url"},
		{"--header A=1", "--header: it is for a server that runs"},
		{"--ca-cert /x", "--ca-cert: it is for a server that runs"},
		{"--insecure", "--insecure: it is for a server that runs"},
		{"--endpoint /v1/completions", "--endpoint: it is for a server that runs"},
		{"--extra-body [1]", "--extra-body"},
		{"--tokenizer /nowhere", "--tokenizer"},
		{"--lora-name a --lora-modules b", "--lora-name"},
		{"--lora-assignment random", "--lora-assignment: it chooses among adapters"},
		{"--ignore-eos --disable-ignore-eos", "--ignore-eos"},
		{"--num-prompts 0", "--num-prompts"},
		{"--steady-state now", "--steady-state"},
		{"--trace x --dataset-name random", "--dataset-name"},
		{"http://localhost:1 extra", "URL: \"http://localhost:1 extra\": given 2 times"},
	} {
		code, _, stderr := command(t.Context(), append([]string{"bench", "--out", filepath.Join(t.TempDir(), "out")}, strings.Fields(c.args)...)...)
		if code != ExitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", c.args, code, ExitUsage, c.want, stderr)
		}
	}
}

// TestServeFaultOnce: a profile that there is not is one fault: nothing is said of a clock that was
// named rightly.
func TestServeFaultOnce(t *testing.T) {
	code, _, stderr := command(t.Context(), strings.Fields("bench --clock virtual --num-prompts 5 --profile h100 --out "+t.TempDir())...)
	if code != ExitUsage || !strings.Contains(stderr, "--profile: ") || strings.Contains(stderr, "--clock") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestServeAdapters: every choice of adapters, by the flags of either tool, is served in virtual time.
func TestServeAdapters(t *testing.T) {
	for _, flags := range []string{
		"--lora-modules a=8 b=64 c", "--lora-modules a b --lora-assignment round-robin", "--lora-name a b", "--lora-name a b --lora-request-distribution distinct",
		"--lora-name a b --lora-request-distribution skewed --lora-zipf-alpha 2", "--lora-name a b --lora-request-distribution zipf",
		"--compat sglang --dataset-name random --lora-name a b --lora-request-distribution skewed", "--compat vllm --lora-modules a b", "--lora-name a b --max-loras 1 --max-cpu-loras 2", "--lora-name a b --merge-loras dynamic", "--lora-name a b --both 2",
	} {
		out := t.TempDir()
		code, _, stderr := command(t.Context(), strings.Fields("bench --clock virtual --num-prompts 20 --random-input-len 32 --random-output-len 4 "+flags+" --out "+out)...)
		records, err := os.ReadFile(filepath.Join(out, "results.jsonl"))
		if code != 0 || err != nil || !strings.Contains(string(records), `"adapter":"a"`) {
			t.Errorf("%s: exit %d, %v: %s", flags, code, err, stderr)
		}
	}
	for flags, want := range map[string]string{"--lora-modules a=x": "--lora-modules: ", "--lora-name a --max-loras 4 --max-cpu-loras 2": "--max-cpu-loras: 2: use max_loras", "--max-loras 0": "--max-loras", "--merge-loras now": `--merge-loras: "now": use never`} {
		code, _, stderr := command(t.Context(), strings.Fields("bench --clock virtual --num-prompts 3 "+flags+" --out "+t.TempDir())...)
		if code != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d: %s", flags, code, stderr)
		}
	}
}

// TestClusterDefaults: a cluster that is not described further is the same one for kvferry bench,
// in either clock, and kvferry sim.
func TestClusterDefaults(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	one := newClusterFlags()
	one.Node.WarmBytes = warmBytes
	addKnobs(flags, clusterKnobs, &one.Spec, 0)
	root := kvferry(false).Root
	for name, role := range map[string]knob.Roles{"bench": cluster.Bench | cluster.Sim, "sim": cluster.Sim} {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range cluster.Knobs.For(role) {
			f := flags.Lookup(k.Name)
			if got := cmd.Flags().Lookup(k.Name); got == nil {
				t.Errorf("kvferry %s has no --%s", name, k.Name)
			} else if got.DefValue != f.DefValue {
				t.Errorf("kvferry %s --%s: default %q, want %q", name, k.Name, got.DefValue, f.DefValue)
			}
		}
	}
	// The default is what a real NIC's bytes can be paced to here: the profile's, not 100 Gbit/s.
	if f := flags.Lookup("link"); f.DefValue != "tcp" {
		t.Errorf("--link: default %q", f.DefValue)
	}
}
