package cli

import (
	"testing"
)

// TestRefused: what of decode is not prefill's too, and some that is.
func TestDecodeRefused(t *testing.T) {
	refuses(t, decode, [][2]string{
		{"--role both", "--id: none given: give the node a name"},
		{"--id d --enable-chunked-prefill", "--enable-chunked-prefill: a decode node computes no prompts"},
		{"--id d --scheduler orca", `--scheduler: "orca": use one of vllm-v0, vllm-v1, sglang`},
		{"--id d --role both --scheduler sglang --enable-chunked-prefill", "--enable-chunked-prefill: is a setting of vllm-v0"},
		{"--id d --scheduler vllm-v1 --max-num-batched-tokens 100", "--max-num-batched-tokens: 100: use max_num_seqs (256) or more"},
		{"--id d --kv-blocks 99999999999", "--kv-blocks: 99999999999: use 1 to 4294967295"},
		{"--id d --role both --kv-blocks 4000000000", "--kv-blocks: 4000000000: these blocks take "},
		{"--id d --role perhaps", `--role: "perhaps": use prefill, decode or both`},
		{"--id d --rail 127.0.0.1:0 --rail eth0", `--rail: "eth0": neither an address nor a NIC`},
		{"--id d --rail cma?conns=4", `--rail: "cma?conns=4": a cma rail has no NIC and no options`},
		{"--id d --link rate=1.29", "--link: "},
		{"--id d --proxy ~", "--proxy: none given"},
		{"--id d --drain-timeout never", `--drain-timeout: "never": write a time with its unit`},
		{"d", `ARGUMENT: "d": decode takes none`},
		{"-id d", "-i"},
	})
}

// TestHelp: whoever runs it is told whom it trusts, and what build it is.
func TestDecodeHelp(t *testing.T) {
	tells(t, decode, "--help", "trusts everybody who reaches its ports", "nothing is encrypted", "Whoever reaches --grpc can", "Examples:")
	zeros(t, decode)
	tells(t, decode, "--version", "decode ", ", go1.")
}

// TestCompletion: a shell is offered names where a flag takes names.
func TestDecodeCompletion(t *testing.T) {
	completes(t, decode, "--rail=", "tcp/", "rdma/", "cma", "shm")
	completes(t, decode, "--select=s", "static", "single")
}

func decode() Program { return Node("decode") }
