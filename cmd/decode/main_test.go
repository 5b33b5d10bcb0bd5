package main

import (
	"testing"

	"kvferry/internal/cli/clitest"
)

// TestRefused: what of decode is not prefill's too, and some that is.
func TestRefused(t *testing.T) {
	clitest.Refused(t, program, [][2]string{
		{"--nondisagg", "--id: none given: give the node a name"},
		{"--id d --enable-chunked-prefill", "--enable-chunked-prefill: a decode node computes no prompts"},
		{"--id d --scheduler orca", `--scheduler: "orca": use one of vllm-v0, vllm-v1, sglang`},
		{"--id d --nondisagg --scheduler sglang --enable-chunked-prefill", "--enable-chunked-prefill: is a setting of vllm-v0"},
		{"--id d --scheduler vllm-v1 --max-num-batched-tokens 100", "--max-num-batched-tokens: 100: use max_num_seqs (256) or more"},
		{"--id d --num-gpu-blocks-override 99999999999", "--num-gpu-blocks-override: 99999999999: use 1 to 4294967295"},
		{"--id d --nondisagg --num-gpu-blocks-override 4000000000", "--num-gpu-blocks-override: 4000000000: these blocks take "},
		{"--id d --nondisagg=perhaps", `--nondisagg: "perhaps": write the flag alone for yes`},
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
func TestHelp(t *testing.T) {
	clitest.Tells(t, program, "--help", "trusts everybody who reaches its ports", "nothing is encrypted", "Whoever reaches --grpc can", "Examples:")
	clitest.Zeros(t, program)
	clitest.Tells(t, program, "--version", "decode ", ", go1.")
}

// TestCompletion: a shell is offered names where a flag takes names.
func TestCompletion(t *testing.T) {
	clitest.Completes(t, program, "--rail=", "tcp/", "rdma/", "cma", "shm")
	clitest.Completes(t, program, "--select=s", "static", "single")
}
