package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	good := Config{Command: []string{"true"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spoil func(*Config)
		want  []string
	}{
		{func(c *Config) { c.Hosts = 17 }, []string{"Hosts: 17: use 1 to 16"}},
		{func(c *Config) { c.NICs = -1 }, []string{"NICs: -1: "}},
		{func(c *Config) { c.MTU = 500 }, []string{"MTU: 500: use 1280"}},
		{func(c *Config) { c.Memory = 64 }, []string{"Memory: 64: use 256"}},
		{func(c *Config) { c.CPUs = 99 }, []string{"CPUs: 99: "}},
		{func(c *Config) { c.NUMA, c.CPUs = true, 2 }, []string{"CPUs: 2: ", "leave it out"}},
		{func(c *Config) { c.Until = 3 }, []string{"Until: 3: use 0 to 2"}},
		{func(c *Config) { c.Rate = 80 }, []string{`Rate: "0.08kbit": use 100kbit`}},
		{func(c *Config) { c.Delay = -time.Second }, []string{"Delay: -1s: "}},
		{func(c *Config) { c.Loss = 1.5 }, []string{"Loss: 1.5: use 0 to 1"}},
		{func(c *Config) { c.Timeout = -1 }, []string{"Timeout: -1ns"}},
		{func(c *Config) { c.Command = nil }, []string{"Command: none given"}},
		{func(c *Config) { c.Command = []string{"a", "b\x00"} }, []string{`Command: "b\x00": it has a zero byte`}},
		{func(c *Config) { c.Env = []string{"A=1", "B C=2"} }, []string{`Env[1]: "B C=2": write NAME=VALUE`}},
		{func(c *Config) { c.Env = []string{"KVFERRY_LAB_HOST=2"} }, []string{`Env[0]: "KVFERRY_LAB_HOST=2": the lab sets KVFERRY_LAB_HOST itself`}},
		{func(c *Config) { c.Files = []File{{From: "/no/such"}} }, []string{"Files", "/no/such"}},
		{func(c *Config) { c.Files = []File{{"config.go", "etc"}} }, []string{"Files", "not absolute"}},
		{func(c *Config) { c.Faults = []Fault{{Action: Kill, Host: 3}} }, []string{`Faults[0]: "0s:kill:3": `, "1 to 2"}},
		{func(c *Config) { c.Faults = []Fault{{Action: LinkUp, Host: 1, NIC: 2}} }, []string{"Faults", "NIC is 2: use 0 to 1"}},
		{func(c *Config) { c.Hosts, c.Loss = 99, -1 }, []string{"Hosts: 99", "\nlab.Config.Loss: -1"}},
	} {
		cfg := good
		c.spoil(&cfg)
		err := cfg.Validate()
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: does not say %q", err, want)
			}
		}
	}
}

func TestParseRateAndLoss(t *testing.T) {
	for text, want := range map[string]int64{"80mbit": 80e6, "2.5gbit": 2.5e9, "100kbit": 1e5} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "80", "mbit", "80Mbit", "-1mbit", "80mbit ", "1e3mbit", "9999999999gbit"} {
		if got, err := ParseRate(text); err == nil || !strings.Contains(err.Error(), "mbit") && !strings.Contains(err.Error(), "gbit") {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]float64{"1%": 0.01, "0%": 0, "100%": 1, "0.5%": 0.005} {
		if got, err := ParseLoss(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1", "%", "101%", "-1%", "NaN%"} {
		if got, err := ParseLoss(text); err == nil || !strings.Contains(err.Error(), "as 1%") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestParseFile(t *testing.T) {
	here := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]File{here: {From: here}, here + ":/etc/b": {here, "/etc/b"}} {
		if got, err := ParseFile(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"": "none given", here + ":": "colon", here + ":b": "not absolute", here + "x": "no such file here"} {
		if _, err := ParseFile(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	cfg := Config{Env: []string{"A=it's"}}.withDefaults()
	env := cfg.environment(2)
	for _, want := range []string{
		"KVFERRY_LAB_HOST=2", "KVFERRY_LAB_HOSTS=2", "KVFERRY_LAB_NICS=2", "KVFERRY_LAB_OUT=/out",
		"KVFERRY_LAB_ADDR_0=10.0.0.2", "KVFERRY_LAB_ADDR_1=10.0.1.2", "KVFERRY_LAB_NIC_1=eth1", "KVFERRY_LAB_RDMA_1=rxe1",
		"KVFERRY_LAB_PEER=10.0.0.1", "KVFERRY_LAB_PEER_1_0=10.0.0.1", "KVFERRY_LAB_PEER_1_1=10.0.1.1", "A=it's",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	cfg.Hosts = 3
	for _, kv := range cfg.environment(2) {
		if strings.HasPrefix(kv, "KVFERRY_LAB_PEER=") || strings.HasPrefix(kv, "KVFERRY_LAB_PEER_2_") {
			t.Errorf("%s: of three hosts none is the other, and host 2 is no peer of its own", kv)
		}
	}
}

// TestAddressPlan: no two NICs of the largest lab have the same addresses.
func TestAddressPlan(t *testing.T) {
	seen := make(map[string]bool)
	for host := 1; host <= maxHosts; host++ {
		for nic := range maxNICs {
			for _, a := range []string{address(host, nic), mac(host, nic)} {
				if seen[a] {
					t.Errorf("%s twice", a)
				}
				seen[a] = true
			}
		}
	}
}

func TestShaping(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, nil},
		{Config{Rate: 80e6}, []string{"qdisc add dev eth0 root tbf rate 80000000bit burst 65536 latency 50ms"}},
		{Config{Rate: 1e9}, []string{"qdisc add dev eth0 root tbf rate 1000000000bit burst 500000 latency 50ms"}},
		{Config{Delay: time.Millisecond}, []string{"qdisc add dev eth0 root handle 1: netem limit 20000 delay 1000us"}},
		{Config{Rate: 80e6, Delay: time.Millisecond, Loss: 0.01}, []string{
			"qdisc add dev eth0 root handle 1: netem limit 20000 delay 1000us loss 1%",
			"qdisc add dev eth0 parent 1:1 handle 10: tbf rate 80000000bit burst 65536 latency 50ms",
		}},
	} {
		var got []string
		for _, args := range c.cfg.shaping("eth0") {
			got = append(got, strings.Join(args, " "))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.cfg, got, c.want)
		}
	}
}

func TestQemuArgs(t *testing.T) {
	fd := descriptors{initrd: 3, console: 6, monitor: 7, ports: map[int]int{1: 8, 2: 9, 3: 10, 4: 11}, nics: []int{4, 5}}
	args := strings.Join(Config{}.withDefaults().qemuArgs(2, "/k/vmlinuz", fd), " ")
	for _, want := range []string{
		"-accel tcg", "-m 768", "-kernel /k/vmlinuz -initrd /dev/fd/3", "rdinit=/etc/kvferry-lab/host2", "-smp 1",
		"socket,id=n1,fd=5 -device virtio-net-pci,netdev=n1,romfile=,host_mtu=4200,mac=52:54:00:6b:01:02,addr=0x11",
		"-chardev socket,id=port4,fd=11 -device virtserialport,chardev=port4,nr=4", "-no-reboot",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("no %q in %s", want, args)
		}
	}
	fd.nics = []int{4, 5, 12, 13}
	args = strings.Join(Config{NICs: 4, NUMA: true, Memory: 1001}.withDefaults().qemuArgs(1, "/k/vmlinuz", fd), " ")
	for _, want := range []string{
		"-M q35", "-smp 4,sockets=2,cores=2", "-m 1000", "id=m1,size=500M", "node,nodeid=1,cpus=2-3,memdev=m1",
		"id=pxb1,bus_nr=64,numa_node=1", "id=rp1,bus=pxb0,chassis=2,slot=2", "id=rp2,bus=pxb1,chassis=3,slot=3", "mac=52:54:00:6b:03:01,bus=rp3",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("no %q in %s", want, args)
		}
	}
}
