package cli

import (
	"testing"
)

func TestPrefillRefused(t *testing.T) {
	refuses(t, prefill, [][2]string{
		{"", "--id: none given: give the node a name"},
		{"--id ~", "--id: none given"},
		{"--id p --proxy 10.0.0.1", `--proxy: "10.0.0.1": write host:port`},
		{"--id p --proxy http://10.0.0.1:9000", `--proxy: "http://10.0.0.1:9000": it is no URL: write host:port`},
		{"--id p --proxy 10.0.0.1:0", `--proxy: "10.0.0.1:0": names no port`},
		{"--id p --grpc 0.0.0.0:9100", `--grpc: "0.0.0.0:9100": names no host`},
		{"--id p --grpc 127.0.0.1:70000", `--grpc: "127.0.0.1:70000": the port is "70000": use a number up to`},
		{"--id p --grpc ::1:9100", `--grpc: "::1:9100": an IPv6 address stands in brackets`},
		{"--id p --grpc 192.0.2.77:9100 --profile zero --kv-blocks 8 --kv-warm-mib 0", `--grpc: "192.0.2.77:9100": no interface of this machine has that address`},
		{"--id p --rail eth0", `--rail: "eth0": neither an address nor a NIC: write host:port`},
		{"--id p --rail tcp/nosuch0 --profile zero --kv-blocks 8", `--rail: "tcp/nosuch0": this machine has no interface "nosuch0": use one of`},
		{"--id p --rail 127.0.0.1:0,", "--rail: none given"},
		{"--id p --rail tcp/lo,tcp/lo", `--rail: "tcp/lo": tcp/lo is given twice: leave one out`},
		{"--id p --rail rdma/mlx5_0?gid=900", `--rail: "rdma/mlx5_0?gid=900": option gid is "900": use a whole number from 0 to 255`},
		{"--id p --rail 127.0.0.1:0 --rail udp/eth0", `--rail: "udp/eth0": kind "udp" is unknown: use tcp/`},
		{"--id p --select fastest", `--select: "fastest": use one of affinity`},
		{"--id p --kv-location gpu:1", `--kv-location: "gpu:1": write cpu:N`},
		{"--id p --kv-location cpu:900 --profile zero --kv-blocks 8", `--kv-location: "cpu:900": this machine has no such NUMA node`},
		{"--id p --matrix /no/such", `--matrix: "/no/such": there is no such file`},
		{"--id p --profile my-gpu.json", `--profile: "my-gpu.json": there is no such file, nor a shipped profile of that name: use a10-qwen2.5-7b-int4-attention, a10-qwen2.5-7b-int4, itl10, sglang-deepseek-v3-flashinfer, sglang-deepseek-v3-triton, sglang-lora-trace, sglang-qwen2.5-0.5b, sglang-qwen3-coder-480b, zero or a JSON file`},
		{"--id p --profile /", `--profile: "/": it is a folder: name a file`},
		{"--id p --disk-gb-s 3", "--disk-gb-s: it is for --max-local-disk-size: give both"},
		{"--id p --link fast", `--link: "fast": there is no such link: use native`},
		{"--id p --link rate=fast", `--link: `},
		{"--id p --link rate=1GB/s,delay=3ms", `--link: `},
		{"--id p --link rate=0B/s,latency=0s", `--link: `},
		{"--id p --link rate=1GB/s,latency=3", `--link: `},
		{"--id p --kv-blocks 99999999999", "--kv-blocks: 99999999999: use 1 to 4294967295"},
		{"--id p --kv-blocks 4000000000", "--kv-blocks: 4000000000: these blocks take "},
		{"--id p --kv-blocks 0", "--kv-blocks: 0: use more than 0, or leave it out for the default"},
		{"--id p --kv-blocks 1e4", `--kv-blocks: "1e4": write a whole number`},
		{"--id p --kv-warm-mib -1", "--kv-warm-mib: \"-1\": use 0 or more"},
		{"--id p --kv-warm-mib 9223372036854775807", `--kv-warm-mib: "9223372036854775807": it is out of range`},
		{"--id p --max-num-seqs 0", "--max-num-seqs: 0: use more than 0"},
		{"--id p --max-num-batched-tokens 5", "--max-num-batched-tokens: 5: use "},
		{"--id p --transfer-timeout 0s", "--transfer-timeout: 0s: use more than 0, or leave it out for 10s"},
		{"--id p --transfer-timeout 5", `--transfer-timeout: "5": write a time with its unit`},
		{"--id p --hold-timeout 0", "--hold-timeout: 0s: use more than 0"},
		{"--id p --drain-timeout -1s", "--drain-timeout: \"-1s\": use 0 or more"},
		{"--id p --log-level loud", `--log-level: "loud": use debug, info, warn or error`},
		{"--id p --log-format xml", `--log-format: "xml": use text or json`},
		{"--id p --enable-chunked-prefill", "--enable-chunked-prefill: a prefill node computes whole prompts: leave it out, or run a node that serves alone"},
		{"--proxy nowhere --link fast --log-level loud", `--log-level: "loud"`}, // and --link, and --id
	})
}

// TestHelp: whoever runs it is told whom it trusts, and what build it is.
func TestPrefillHelp(t *testing.T) {
	tells(t, prefill, "--help", "trusts everybody who reaches its ports", "nothing is encrypted", "Whoever reaches --grpc can", "Examples:")
	zeros(t, prefill)
	tells(t, prefill, "--version", "prefill ", ", go1.")
}

// TestCompletion: a shell is offered names where a flag takes names.
func TestPrefillCompletion(t *testing.T) {
	completes(t, prefill, "--rail=", "tcp/", "rdma/", "cma", "shm")
	completes(t, prefill, "--link=", "native", "tcp")
}

func prefill() Program { return Node("prefill") }
