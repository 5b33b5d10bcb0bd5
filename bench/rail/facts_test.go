package rail

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLineRate(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sys/class/net/eth0/speed":                     "25000\n",
		"sys/class/net/eth0/device/vendor":             "0x15b3\n",
		"sys/class/net/eth1/speed":                     "-1\n",
		"sys/class/net/eth1/device/vendor":             "0x15b3\n",
		"sys/class/net/bond0/speed":                    "50000\n",
		"sys/class/net/bond0/uevent":                   "DEVTYPE=bond\nINTERFACE=bond0\n",
		"sys/class/net/veth0/speed":                    "10000\n",
		"sys/class/net/veth0/uevent":                   "INTERFACE=veth0\n",
		"sys/class/infiniband/mlx5_0/ports/1/rate":     "100 Gb/sec (4X EDR)\n",
		"sys/class/infiniband/mlx5_0/ports/2/rate":     "40 Gb/sec (4X FDR10)\n",
		"sys/class/infiniband/rxe0/parent":             "eth0\n",
		"sys/class/infiniband/rxe0/ports/1/rate":       "2.5 Gb/sec (1X SDR)\n",
		"sys/class/infiniband/rxe1/parent":             "veth0\n",
		"sys/class/infiniband/rxe1/ports/1/rate":       "2.5 Gb/sec (1X SDR)\n",
		"sys/class/infiniband/garbled/ports/1/rate":    "fast\n",
		"sys/class/net/unreadable/speed/not_a_file/no": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		specs []string
		want  float64 // 0 is unknown
	}{
		{[]string{"tcp/eth0"}, 25e9 / 8},
		{[]string{"tcp/eth0", "rdma/mlx5_0"}, 125e9 / 8},
		{[]string{"tcp/bond0"}, 50e9 / 8},
		{[]string{"tcp/veth0"}, 0}, // makes one up
		{[]string{"rdma/mlx5_0:2?qps=2"}, 40e9 / 8},
		{[]string{"rdma/rxe0"}, 25e9 / 8}, // soft RoCE: the interface's
		{[]string{"rdma/rxe1"}, 0},
		{[]string{"rdma/garbled"}, 0},
		{[]string{"tcp/eth1"}, 0},
		{[]string{"tcp/eth0", "tcp/nosuch"}, 0}, // half of it is not the limit
		{[]string{"tcp/unreadable"}, 0},
		{[]string{"192.0.2.77:0"}, 0}, // nobody's address
		{[]string{"mem"}, 0},
	} {
		if got, ok := root(dir).lineRate(c.specs); ok != (c.want > 0) || ok && got != c.want {
			t.Errorf("%v: %v, %v; want %v", c.specs, got, ok, c.want)
		}
	}
}
