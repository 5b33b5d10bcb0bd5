package cli

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"kvferry/cluster"
	"kvferry/proxy"
)

func TestProxyRefused(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	t.Setenv("HF_HUB_CACHE", "/no/hub")
	refuses(t, Proxy, [][2]string{
		{"--handoff v1", `--handoff: "v1": use one of v0, pull, push, layerwise`},
		{"--mode fast", `--mode: "fast": use one of auto, disagg, nondisagg`},
		{"--placement random", `--placement: "random": use one of round-robin`},
		{"--upstream ftp://a", `--upstream: "ftp://a": it is no server's address: write host:port or http://host:port`},
		{"--upstream http://a:1/v1/", `--upstream: "http://a:1/v1/": an engine's URL has no /v1, which requests have: use http://a:1`},
		{"--upstream-prefill a:1", "--upstream-decode: none given: prefill engines need decode engines"},
		{"--upstream-prefill a:1,b:1 --upstream-decode c:1 --upstream-decode a:1", `--upstream-decode: "a:1": an engine is named once`},
		{"--upstream a:1 --served-model-name x", "--served-model-name: the engines have names for their model"},
		{"--http nowhere", `--http: "nowhere": write host:port`},
		{"--http http://127.0.0.1:8000", `--http: "http://127.0.0.1:8000": it is no URL: write host:port`},
		{"--http 127.0.0.1:http", `--http: "127.0.0.1:http": the port is "http": use a number`},
		{"--http 127.0.0.1:0 --grpc :99999", `--grpc: ":99999": the port is "99999"`},
		{"--grpc 127.0.0.1:0 --http " + taken.Addr().String(), `--http: "` + taken.Addr().String() + `": another process listens there`},
		{"--grpc 127.0.0.1:0 --http 192.0.2.77:8000", `--http: "192.0.2.77:8000": no interface of this machine has that address`},
		{"--migration-interval 2s", "--migration-interval: it is for --migration: give both"},
		{"--max-queue 0", "--max-queue: 0: use more than 0, or leave it out for 16384"},
		{"--max-queue -1", "--max-queue: -1: use more than 0"},
		{"--max-queue-time 0", "--max-queue-time: 0s: use more than 0, or leave it out"},
		{"--max-connections 0", "--max-connections: 0: use more than 0, or leave it out for 16384"},
		{"--max-body 4MiB", `--max-body: "4MiB": write a whole number`},
		{"--max-body 0", "--max-body: 0: use more than 0"},
		{"--max-retries -1", "--max-retries: \"-1\": use 0 or more"},
		{"--max-retries 99999999999999999999", `--max-retries: "99999999999999999999": it is out of range`},
		{"--otlp-traces-endpoint localhost:4317", `--otlp-traces-endpoint: "localhost:4317": write the collector's URL for OTLP over HTTP`},
		{"--lease-ttl 0s", "--lease-ttl: 0s: use more than 0, or leave it out for 3s"},
		{"--lease-ttl 1ms", "--lease-ttl: 1ms: use 10ms or more"},
		{"--request-timeout 1us", "--request-timeout: 1µs: use 1ms or more"},
		{"--request-timeout 600", `--request-timeout: "600": write a time with its unit`},
		{"--node-wait -1s", "--node-wait: \"-1s\": use 0 or more"},
		{"--drain-timeout -30s", "--drain-timeout: \"-30s\": use 0 or more"},
		{"--eos mean=4", `--eos: "mean=4": there is no "mean": write median=180,sigma=1,max=2048,seed=0, or none`},
		{"--eos median=0", `--eos: "median=0": median: 0: use 1 token or more`},
		{"--lora-modules sql", `--lora-modules: "sql": write name=path, not "sql"`},
		{"--served-model-name a b a", `--served-model-name: "a": two models have that name`}, // blanks, as in vLLM
		{"--lora-modules a=/x b", `--lora-modules: "b": write name=path, not "b"`},
		{"--served-model-name", "--served-model-name: none given"},
		{"--tokenizer Qwen/Qwen3-8B", `--tokenizer: "Qwen/Qwen3-8B": there is no such file or folder, and the cache of the Hugging Face hub (/no/hub) does not have it: download it: hf download Qwen/Qwen3-8B tokenizer.json tokenizer_config.json`},
		{"--served-model-name a,a", `--served-model-name: "a": two models have that name`},
		{"--served-model-name a --lora-modules a=/x", `--lora-modules: "a": the model has that name`},
		{`--allowed-origins ["x"`, `--allowed-origins: "[\"x\"": it is no JSON list`},
		{"--log-level z", `--log-level: "z": use debug`},
		{"--log-format ~", "--log-format: "},
		{"--nope", "--nope: there is no such flag"},
		{"more", `ARGUMENT: "more": proxy takes none`},
	})
}

// TestStops runs the whole daemon to an orderly end.
func TestStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	args := "--http 127.0.0.1:0 --grpc 127.0.0.1:0 --log-level error --drain-timeout 0 --node-wait 0 --max-retries 0"
	if code := Proxy().Run(ctx, strings.Fields(args), &stdout, &stderr); code != 0 {
		t.Errorf("exit %d: %s", code, &stderr)
	}
}

// TestHelp: whoever runs it is told whom it trusts, and what build it is.
func TestProxyHelp(t *testing.T) {
	tells(t, Proxy, "--help", "trusts everybody who reaches its ports", "nothing is encrypted", "Whoever reaches --grpc can", "Examples:")
	zeros(t, Proxy)
	tells(t, Proxy, "--version", "proxy ", ", go1.")
}

// TestCompletion: a shell is offered names where a flag takes names.
func TestProxyCompletion(t *testing.T) {
	completes(t, Proxy, "--handoff=", "v0", "pull", "layerwise")
	completes(t, Proxy, "--placement=l", "least-loaded")
	completes(t, Proxy, "--log-format=", "json")
}

// TestServedNames: names as users of vLLM give them, with blanks, and with commas or the flag
// again, are the same list; the first is the one that answers have.
func TestServedNames(t *testing.T) {
	for _, line := range []string{
		"--served-model-name org/model main last --lora-modules sql=/a chat=/b", "--served_model_name org/model main last --lora_modules=sql=/a chat=/b",
		"--served-model-name=org/model main --served-model-name last --lora-modules sql=/a,chat=/b", "--served-model-name org/model,main last --lora-modules sql=/a --lora-modules chat=/b",
	} {
		var spec cluster.Spec
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		addKnobs(fs, cluster.Knobs.For(cluster.Proxy), &spec, 0)
		if err := fs.Parse(spreadProxy(strings.Fields(line))); err != nil {
			t.Fatal(err)
		}
		c := spec.ProxyConfig()
		if want := []string{"org/model", "main", "last"}; !slices.Equal(c.ServedNames, want) || len(fs.Args()) > 0 {
			t.Errorf("%s: %q, and %q", line, c.ServedNames, fs.Args())
		}
		if want := []proxy.LoRA{{Name: "sql", Path: "/a"}, {Name: "chat", Path: "/b"}}; !slices.Equal(c.LoRAs, want) {
			t.Errorf("%s: %v", line, c.LoRAs)
		}
	}
}
