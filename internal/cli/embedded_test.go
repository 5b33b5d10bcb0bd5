package cli

import (
	"fmt"
	"strings"
	"testing"

	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/kvcache"
	"kvferry/node"
)

// TestFitWarm: the default of --kv-warm-mib is what this machine has room for, and says so; a
// value that was given is refused with the reason.
func TestFitWarm(t *testing.T) {
	left, known := kvcache.Available()
	if !known {
		t.Skip("this system does not say how much memory is left")
	}
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	blocks := int(left/4*3/int64(p.KVGeometry.SlotBytes())) + 1 // a pool of three quarters of it fits once
	s := cluster.Spec{Prefill: 1, Decode: 1, Node: node.Config{KVBlocks: blocks, WarmBytes: 1 << 60}}
	why := fitWarm(&s)
	mib := s.Node.WarmBytes >> 20
	if mib < 1 || mib >= 1<<40 || !strings.Contains(why, "--kv-warm-mib: 1099511627776 by default, ") || !strings.Contains(why, "2 nodes") {
		t.Errorf("%d MiB: %s", mib, why)
	}
	s = cluster.Spec{Prefill: 1, Decode: 1, Node: node.Config{WarmBytes: 1 << 20}}
	if why := fitWarm(&s); s.Node.WarmBytes != 1<<20 || why != "" {
		t.Errorf("%d bytes: %s", s.Node.WarmBytes, why)
	}
	code, _, stderr := command(t.Context(), strings.Fields(fmt.Sprintf("bench --kv-warm-mib 1099511627776 --kv-blocks %d --out %s", blocks, t.TempDir()))...)
	if code == 0 || !strings.Contains(stderr, "--kv-warm-mib: 1099511627776: ") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
