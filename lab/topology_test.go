package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestRoCETopology: on a host with two sockets and two NICs on each, memory goes by
// the NICs of its own node, interfaces and RDMA devices; a capture of the host says
// so elsewhere; and rdmamap and sysfs agree on which device is whose.
func TestRoCETopology(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	out := lines{}
	out.WriteString(run(t, Config{
		Hosts: 1, NICs: 4, NUMA: true, Timeout: 3 * time.Minute, Out: dir, Env: []string{"KVFERRY_RDMA=rxe0,rxe1,rxe2,rxe3"},
		Files: []File{compile(t, "cmd/kvbench", "build"), compile(t, "transport/topology", "test", "-c")},
		Command: []string{"sh", "-ec", `
			kvbench topo
			kvbench topo --format matrix >$KVLAB_OUT/matrix.json
			kvbench topo --capture $KVLAB_OUT/machine.tar.gz
			kvbench topo --root $KVLAB_OUT/machine.tar.gz --format matrix >$KVLAB_OUT/captured.json
			topology.test -test.run 'TestRDMAMapAgrees|TestLiveCapture' -test.v`},
	}))
	out.has(t, "--- PASS: TestRDMAMapAgrees", "--- PASS: TestLiveCapture", "No warnings.")
	near, far := []string{"rxe0", "eth0", "rxe1", "eth1"}, []string{"rxe2", "eth2", "rxe3", "eth3"}
	want := map[string][2][]string{"cpu:0": {near, far}, "cpu:1": {far, near}}
	for _, name := range []string{"matrix.json", "captured.json"} {
		text, err := os.ReadFile(filepath.Join(dir, "host1", name))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string][2][]string
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v\nwant %v", name, got, err, want)
		}
	}
	if strings.Contains(out.String(), "--- SKIP") {
		t.Errorf("a test was skipped:\n%s", out.String())
	}
}
