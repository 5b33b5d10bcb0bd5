package topology

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestRDMAMapAgrees: rdmamap, which asks the kernel, and sysfs, which captures
// have, give the same interface to each RDMA device of a live machine. It needs
// some: KVFERRY_RDMA names them (rxe0,rxe1), which package lab does in a host that
// it makes.
func TestRDMAMapAgrees(t *testing.T) {
	devices := os.Getenv("KVFERRY_RDMA")
	if devices == "" {
		t.Skip("no RDMA device here: KVFERRY_RDMA=rxe0,rxe1 names those of a machine that has some")
	}
	tr, err := openTree("/")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	names := tr.list(netFolder)
	mapped, read := mapInterfaces(names), sysfsInterfaces(tr, names)
	if !reflect.DeepEqual(mapped, read) {
		t.Errorf("rdmamap says %v, sysfs %v", mapped, read)
	}
	for _, device := range strings.Split(devices, ",") {
		if len(mapped[device]) != 1 || !slices.Contains(names, mapped[device][0]) {
			t.Errorf("%s has interfaces %v, want one", device, mapped[device])
		}
	}
}
