package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestRoCETopology: on a host with two sockets and two NICs on each, memory goes by
// the NICs of its own node, interfaces and RDMA devices; a capture of the host says
// so elsewhere; rdmamap and sysfs agree on which device is whose; and what is moved
// from and to memory of a node goes by that node's NICs, over TCP and over RDMA.
func TestRoCETopology(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	out := lines{}
	out.WriteString(run(t, Config{
		Hosts: 1, NICs: 4, NUMA: true, Timeout: hang, Out: dir, Env: []string{"KVFERRY_RDMA=rxe0,rxe1,rxe2,rxe3"},
		Files: []File{compile(t, "cmd/kvferry", "build"), compile(t, "transport/topology", "test", "-c")},
		Command: []string{"sh", "-ec", `
			kvferry rail topo
			kvferry rail topo --format matrix >$KVFERRY_LAB_OUT/matrix.json
			kvferry rail topo --capture $KVFERRY_LAB_OUT/machine.tar.gz
			kvferry rail topo --root $KVFERRY_LAB_OUT/machine.tar.gz --format matrix >$KVFERRY_LAB_OUT/captured.json
			topology.test -test.run 'TestRDMAMapAgrees|TestLiveCapture' -test.v
			for kind in tcp/eth rdma/rxe; do for node in 0 1; do
				kvferry rail bench --rail ${kind}0 --rail ${kind}1 --rail ${kind}2 --rail ${kind}3 --location cpu:$node \
					--block 64k --batch 4 --depth 1 --iters 30 --segment 8m --check --out $KVFERRY_LAB_OUT/${kind%/*}$node
			done; done`},
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
	for _, kind := range []string{"tcp", "rdma"} {
		for node := range 2 {
			var result struct {
				Points []struct {
					Bad   *int64 `json:"bad"`
					Rails []struct {
						Bytes int64 `json:"bytes"`
					} `json:"rails"`
				} `json:"points"`
			}
			text, err := os.ReadFile(filepath.Join(dir, "host1", fmt.Sprint(kind, node), "results.json"))
			if err == nil {
				err = json.Unmarshal(text, &result)
			}
			if err != nil || len(result.Points) != 1 || len(result.Points[0].Rails) != 4 {
				t.Fatalf("%s, node %d: %v, %+v", kind, node, err, result)
			}
			p := result.Points[0]
			near, sum := int64(0), int64(0)
			for i, r := range p.Rails {
				if i/2 == node {
					near += r.Bytes
				}
				sum += r.Bytes
			}
			t.Logf("%s, memory of node %d: %d bytes, %d by its own NICs", kind, node, sum, near)
			if p.Bad == nil || *p.Bad != 0 || sum == 0 || near <= sum/2 { // all, where the machine has time
				t.Errorf("%s, node %d: %d of %d bytes went by its NICs; %+v", kind, node, near, sum, p)
			}
		}
	}
	if strings.Contains(out.String(), "--- SKIP") {
		t.Errorf("a test was skipped:\n%s", out.String())
	}
}
