package main

import (
	"testing"

	"kvferry/internal/cli"
	"kvferry/internal/cli/clitest"
)

// TestCompletion: a shell is offered names where a flag takes names.
func TestCompletion(t *testing.T) {
	shell := func() cli.Program { return program(false) }
	for typed, want := range map[string][]string{
		"simulate --handoff=":             {"v0", "pull", "layerwise"},
		"simulate --placement=p":          {"prefix-aware"},
		"simulate --sweep=":               {"nodes=", "placement="},
		"mooncake --rows=1024/q2,256":     {"1024/q2,256/q8"},
		"mooncake --settings=tcp,l":       {"tcp,layerwise"},
		"mooncake --clock=":               {"real", "virtual", "both"},
		"transfer --rail=":                {"tcp/", "rdma/", "cma", "shm"},
		"transfer --select=static,":       {"static,affinity", "static,single"},
		"failover --select=r":             {"round-robin"},
		"matrix --d":                      {"--dry-run"},
		"topo --format=m":                 {"matrix"},
		"mooncake --clock virtual --prof": {"--profile"},
	} {
		clitest.Completes(t, shell, typed, want...)
	}
}
