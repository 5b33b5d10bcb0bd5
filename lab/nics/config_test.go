package nics

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/lab"
	"kvferry/lab/wire"
)

// TestValidate: each fault is named, with what would do, all at once.
func TestValidate(t *testing.T) {
	good := Config{Rates: []int64{2e9, 5e8}, Command: []string{"true"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Config)
		want   []string
	}{
		{func(c *Config) { c.Rates = nil }, []string{"Rates: none given", "2gbit,2gbit"}},
		{func(c *Config) { c.Rates = make([]int64, 9) }, []string{"these are 9 links: use 1 to 8", `Rates[8]: "0kbit": use 100kbit`}},
		{func(c *Config) { c.MTU = 100 }, []string{"MTU: 100: use 576 to 65535"}},
		{func(c *Config) { c.MTU, c.Burst = 9000, 8000 }, []string{"Burst: 8000: use 9100 to"}},
		{func(c *Config) { c.Burst = 1 << 30 }, []string{"Burst", "to 4194304"}},
		{func(c *Config) { c.Latency = time.Hour }, []string{"Latency: 1h0m0s: use 1ms to 10s"}},
		{func(c *Config) { c.SwitchQueue = 1000 }, []string{"SwitchQueue: 1000: use 16384 to"}},
		{func(c *Config) { c.SwitchQueue, c.Conditions = 1<<20, make([]wire.Link, 2) }, []string{"SwitchQueue: 1048576: it is where links are made long"}},
		{func(c *Config) {
			c.SwitchQueue, c.Faults = 1<<20, []lab.Fault{{Action: lab.Conditions[0], Host: 1, Value: "1ms"}}
		}, []string{"SwitchQueue: 1048576: it is where links are made long"}},
		{func(c *Config) { c.Addresses = 251 }, []string{"Addresses: 251: use 1 to 250"}},
		{func(c *Config) { c.Addresses, c.SharedSubnet = 2, true }, []string{"Addresses: 2: ", "leave one out"}},
		{func(c *Config) { c.NoRoutes = true }, []string{"NoRoutes: true: ", "share a subnet"}},
		{func(c *Config) { c.MPTCP, c.SharedSubnet = true, true }, []string{"MPTCP: true: ", "leave one out"}},
		{func(c *Config) { c.Until = 3 }, []string{"Until: 3: use 0 to 2"}},
		{func(c *Config) { c.Timeout = -1 }, []string{"Timeout"}},
		{func(c *Config) { c.Command = []string{"/no/such"} }, []string{`Command: "/no/such": it cannot be run: `}},
		{func(c *Config) { c.Command = []string{"true", "\x00"} }, []string{`Command: "\x00": it has a zero byte`}},
		{func(c *Config) { c.Env = []string{"A=\x00", "KVFERRY_LAB_HOST=1", "x"} }, []string{`Env[0]: "A=\x00": it has a zero byte`, `Env[1]: "KVFERRY_LAB_HOST=1": the lab`, `Env[2]: "x": write`}},
		{func(c *Config) { c.Faults = []lab.Fault{{Action: lab.LinkDown, Host: 1, NIC: 2}} }, []string{`Faults[0]: "0s:link-down:1:2": `, "NIC is 2: use 0 to 1"}},
		{func(c *Config) { c.Faults = []lab.Fault{{Action: lab.Kill, Host: 3}} }, []string{"host is 3: use 1 to 2"}},
		{func(c *Config) { c.Faults = []lab.Fault{{Action: lab.SetRate, Host: 1}} }, []string{"rate is 0 bit/s"}},
	} {
		cfg := good
		c.change(&cfg)
		err := cfg.Validate()
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		if err == nil {
			continue
		}
		if _, started := Start(t.Context(), cfg); started == nil || started.Error() != err.Error() {
			t.Errorf("Start says %v, Validate %v", started, err)
		}
	}
}

func TestParse(t *testing.T) {
	if got, err := ParseRates("2gbit, 500mbit,2.5gbit"); err != nil || !slices.Equal(got, []int64{2e9, 5e8, 25e8}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "2gbit,", "2", "2gbit;2gbit"} {
		if got, err := ParseRates(text); err == nil || !strings.Contains(err.Error(), "as 80mbit") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]int{"256kb": 256 << 10, "1mb": 1 << 20} {
		if got, err := ParseBurst(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "256", "256k", "-1kb", "9999999999kb"} {
		if got, err := ParseBurst(text); err == nil || !strings.Contains(err.Error(), "as 256kb") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := ParseBurst("0kb"); err == nil || !strings.Contains(err.Error(), "use more") {
		t.Errorf("0kb: %v, %v", got, err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("KVFERRY_LAB_PEER_7_7", "of a lab around this one")
	t.Setenv("KVFERRY_TEST", "inherited")
	cfg := Config{Rates: []int64{2e9, 5e8}, Env: []string{"A=it's"}}
	for host, want := range map[int][]string{
		1: {"KVFERRY_LAB_HOST=1", "KVFERRY_LAB_ADDR_1=10.77.1.1", "KVFERRY_LAB_PEER=10.77.0.2", "KVFERRY_LAB_PEER_2_1=10.77.1.2", "KVFERRY_LAB_MGMT=10.78.0.1", "KVFERRY_LAB_MGMT_PEER=10.78.0.2"},
		2: {
			"KVFERRY_LAB_HOST=2", "KVFERRY_LAB_HOSTS=2", "KVFERRY_LAB_NICS=2", "KVFERRY_LAB_OUT=/o", "KVFERRY_LAB_ADDR_0=10.77.0.2", "KVFERRY_LAB_NIC_1=eth1",
			"KVFERRY_LAB_RATE_1=500000000", "KVFERRY_LAB_PEER_1_0=10.77.0.1", "KVFERRY_TEST=inherited", "A=it's",
		},
	} {
		env := cfg.environment(host, "/o")
		for _, kv := range want {
			if !slices.Contains(env, kv) {
				t.Errorf("host %d: no %s in %q", host, kv, env)
			}
		}
		for _, kv := range env {
			if strings.HasPrefix(kv, "KVFERRY_LAB_PEER_7") {
				t.Errorf("host %d: %s", host, kv)
			}
		}
	}
	cfg.SharedSubnet = true
	if env := cfg.environment(1, ""); !slices.Contains(env, "KVFERRY_LAB_ADDR_1=10.77.0.2") || !slices.Contains(env, "KVFERRY_LAB_PEER_2_1=10.77.0.102") {
		t.Errorf("in one network: %q", env)
	}
}
