package cli

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
		{"lab nics --rounds 0", []string{"--rounds: 0: use more than 0"}},
		{"lab nics --rounds 100 --duration 1ms", []string{"--rounds: 100: use 1 to 99", "--duration: 1ms: use 100ms or more"}},
		{"lab nics x", []string{`"x": kvferry lab nics has no such command: use mooncake, wan, handoff`}},
		{"lab nics handoff --handoff pull --nics 9 --rtt 2s", []string{`--handoff: "pull": use layerwise or push`, "--nics: 9: use 1 to 8", "--rtt: 2s: use"}},
		{"lab nics handoff --rate fast", []string{`--rate: "fast": no unit`}},
		{"lab nics handoff --input-len 0", []string{"--input-len: 0: use more than 0"}},
		{"lab nics wan --cases rtt7", []string{`--cases: "rtt7": use some of near`}},
		{"lab nics wan --beside nccl", []string{`--beside: "nccl": use some of mptcp, ucx`}},
		{"lab nics wan --beside none --cases rtt7", []string{`--cases: "rtt7"`}},
		{"lab nics wan --warmup 0s --rounds 0", []string{"--warmup: 0s: use more than 0", "--rounds: 0: use more than 0"}},
		{"lab nics mooncake --rate fast --counts x", []string{`--rate: "fast": no unit`, `--counts: "x": write numbers`}},
		{"lab nics mooncake --num-prompts 0", []string{"--num-prompts: 0: use more than 0"}},
		{"lab nics mooncake --rate 1mbit,2mbit", []string{`--rate: "1mbit,2mbit": `}},
		{"lab nics mooncake --rate 0.01mbit", []string{`--rate: "0.01mbit": use 100kbit to 100gbit`}},
		{"lab nics mooncake --counts 9 --settings nondisagg --row all", []string{"--counts: 9: use 1 to 8", `--settings: "nondisagg": use`, `--row: "all": it is one`}},
	} {
		refused(t, c.args, c.want...)
	}
}
