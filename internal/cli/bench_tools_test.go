package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/nullserver"
)

// TestForeign: flags of the tools that mean something in another way here do it, and wrong values are refused.
func TestForeign(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	url := served(t, nullserver.Config{})
	for _, c := range []struct{ args, want string }{
		{"--profile --num-prompts 3", "--profile: none given"},
		{"--find-rate --goodput ttft:5 --attainment 2", "--attainment: 2: use a share of the requests"},
		{"--find-rate --goodput ttft:5 --find-rate-precision 0", "--find-rate-precision: 0: use more than 0"},
		{"--find-rate --goodput ttft:5 --trace ../../examples/trace/chats.jsonl", "--find-rate: the load has times of its own, which no rate changes: "},
		{"--find-rate speed --goodput ttft:5", `--find-rate: "speed": use `},
		{"--steady-state-concurrency-ratio 0", "--steady-state-concurrency-ratio: 0: use more than 0"},
		{"--ramp-up-start-rps 20", "--ramp-up-strategy: none given: say how the rate grows"},
		{"--base-url " + url + " --dataset-name weka --dataset-path " + empty, `--dataset-path: "` + empty + `": it has no requests`},
		{"--base-url " + url + " --dataset-name otel --dataset-path " + empty, `--dataset-path: "` + empty + `": it has no requests`},
		{"--base-url " + url + " --dataset-name sharegpt --dataset-path /no/such", `--dataset-path: "/no/such": there is no such file`},
		{"--base-url " + url + " --trace /no/such", `--trace: "/no/such": there is no such file`},
		{"--dataset-name burstgpt --output-len 5", "--output-len: burstgpt has lengths of its own"},
		{"--trace x --output-len 5", "--output-len: trace has lengths of its own"},
		{"--dataset-name sharegpt --input-len 5", "--input-len: sharegpt has lengths of its own"},
		{"--dataset-name agentic-trace --sharegpt-context-len 5", "--sharegpt-context-len: it is of another dataset"},
		{"--compat sglang --dataset-name custom --custom-output-len 5", "--custom-output-len: only vllm bench serve's custom has it"},
		{"--tokenizer-mode mistral", `--tokenizer-mode: "mistral": use auto or hf`},
		{"--self-timed", "--self-timed: the load has no times of its own"},
		{"--trace x --use-trace-timestamps --untimed", "--self-timed: --untimed says the contrary"},
		{"--no-self-timed", "--untimed: random has no times of its own"},
		{"--dataset-name mooncake --mooncake-workload toolagent", `--mooncake-workload: "toolagent": nothing is downloaded here`},
		{"--trace x --request-rate 4", "--request-rate: a trace has times of its own: leave it out, or have requests come so instead with --untimed"},
		{"--compat sglang", "--dataset-path: none given: sglang.bench_serving asks sharegpt unless it is told"},
		{"--compat sglang --dataset-name sharegpt", "--dataset-path: none given: name the file of conversations"},
		{"--dataset-name random-mm", "--dataset-name: \"random-mm\": images and sound are not sent here"},
		{"--dataset-name hf", "use custom with --dataset-path"},
		{"--dataset-name prefix_repetition --random-input-len 5", "--random-input-len: prefix_repetition has its own"},
		{"--dataset-name prefix-repetition --random-input-len 5", "--random-input-len: prefix_repetition has its own"},
		{"--dataset-name random --dataset-offset 5", "--conversation-offset: it is of another dataset than random"},
		{"--clock virtual --dataset-name tracelab --dataset-path " + empty, `--dataset-path: "` + empty + `": it has no requests`},
	} {
		code, _, stderr := command(t.Context(), append([]string{"bench", "--out", filepath.Join(t.TempDir(), "out")}, strings.Fields(c.args)...)...)
		if code != ExitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", c.args, code, ExitUsage, c.want, stderr)
		}
	}
	dir := t.TempDir()
	code, _, stderr := command(t.Context(), strings.Fields("bench --clock virtual --compat sglang --model qwen2.5-0.5b --dataset-name random --random-input-len 9 --random-output-len 2 --num-prompts 2 --num-warmups 3 --request-id-prefix run7- --skip-tokenizer-init --rust-client --rust-worker-threads 4 --out "+dir)...)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for file, want := range map[string]string{"results.jsonl": `"request_id":"run7-1"`, "summary.json": `"num-warmups": "3"`} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: no %s, %v", file, want, err)
		}
	}
	dir = t.TempDir()
	code, _, stderr = command(t.Context(), strings.Fields("bench --model folder --served-model-name null-of-mine --random-input-len 9 --random-output-len 2 --num-prompts 2 --out "+dir+" --base-url "+served(t, nullserver.Config{Model: "null-of-mine", Strict: true}))...)
	if text, err := os.ReadFile(filepath.Join(dir, "summary.json")); code != 0 || err != nil || !strings.Contains(string(text), "null-of-mine") {
		t.Errorf("exit %d, %v: %s\n%s", code, err, stderr, text)
	}
}
