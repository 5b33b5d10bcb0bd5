package cli

import (
	"testing"
)

// TestValuesCompletion: a shell is offered names where a flag takes names.
func TestValuesCompletion(t *testing.T) {
	shell := func() Program { return kvferry(false) }
	for typed, want := range map[string][]string{
		"sim --handoff=":                            {"v0", "pull", "layerwise"},
		"sim --placement=p":                         {"prefix-aware"},
		"sim --sweep=":                              {"nodes=", "placement="},
		"reproduce mooncake --rows=1024/q2,256":     {"1024/q2,256/q8"},
		"reproduce mooncake --settings=tcp,l":       {"tcp,layerwise"},
		"reproduce mooncake --clock=":               {"real", "virtual", "both"},
		"rail bench --rail=":                        {"tcp/", "rdma/", "cma", "shm"},
		"rail bench --select=static,":               {"static,affinity", "static,single"},
		"rail failover --select=r":                  {"round-robin"},
		"lab matrix --d":                            {"--dry-run"},
		"rail topo --format=m":                      {"matrix"},
		"reproduce mooncake --clock virtual --prof": {"--profile"},
	} {
		completes(t, shell, typed, want...)
	}
}
