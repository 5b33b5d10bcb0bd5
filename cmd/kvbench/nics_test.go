package main

import (
	"testing"
)

// TestNICsUsage: every wrong flag is named with what would do. The experiments
// themselves are make bench-nics and make mooncake-nics.
func TestNICsUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"nics --rounds 0", []string{"--rounds: 0: use more than 0"}},
		{"nics --rounds 100 --duration 1ms", []string{"--rounds: 100: use 1 to 99", "--duration: 1ms: use 100ms or more"}},
		{"nics x", []string{`"x": kvbench nics has no such command: use handoff, incast, mooncake, wan`}},
		{"nics handoff --handoff pull --nics 9 --rtt 2s", []string{`--handoff: "pull": use layerwise or push`, "--nics: 9: use 1 to 8", "--rtt: 2s: use"}},
		{"nics handoff --rate fast", []string{`--rate: "fast": no unit`}},
		{"nics handoff --input-len 0", []string{"--input-len: 0: use more than 0"}},
		{"nics wan --cases rtt7", []string{`--cases: "rtt7": use some of near`}},
		{"nics wan --beside nccl", []string{`--beside: "nccl": use some of mptcp, ucx`}},
		{"nics wan --beside none --cases rtt7", []string{`--cases: "rtt7"`}},
		{"nics wan --warmup 0s --rounds 0", []string{"--warmup: 0s: use more than 0", "--rounds: 0: use more than 0"}},
		{"nics incast --op push --initiators 1", []string{`--op: "push": use some of write, read`, "--initiators: 1: use 2 to 249"}},
		{"nics incast --rate 1bit --switch-queue 1k", []string{"--rate: ", "--switch-queue: 1024: use 16384 to"}},
		{"nics mooncake --rate fast --counts x", []string{`--rate: "fast": no unit`, `--counts: "x": write numbers`}},
		{"nics mooncake --num-prompts 0", []string{"--num-prompts: 0: use more than 0"}},
		{"nics mooncake --rate 1mbit,2mbit", []string{`--rate: "1mbit,2mbit": `}},
		{"nics mooncake --rate 0.01mbit", []string{`--rate: "0.01mbit": use 100kbit to 100gbit`}},
		{"nics mooncake --counts 9 --settings nondisagg --row all", []string{"--counts: 9: use 1 to 8", `--settings: "nondisagg": use`, `--row: "all": it is one`}},
	} {
		refused(t, c.args, c.want...)
	}
}
