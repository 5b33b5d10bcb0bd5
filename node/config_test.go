package node

import (
	"math"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
	"kvferry/proto"
)

// TestConfigFaults: each fault is of its field, with the value and what would do.
func TestConfigFaults(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"ID: none given: give the node a name":                                    func(c *Config) { c.ID = "" },
		"Role: none given":                                                        func(c *Config) { c.Role = 0 },
		`Proxy: "10.0.0.1": write host:port`:                                      func(c *Config) { c.Proxy = "10.0.0.1" },
		`Proxy: ":9000": names no host`:                                           func(c *Config) { c.Proxy = ":9000" },
		`GRPCAddr: "0.0.0.0:9100": names no host, and others are told to dial it`: func(c *Config) { c.GRPCAddr = "0.0.0.0:9100" },
		`Rails[1]: "eth0": neither an address nor a NIC`:                          func(c *Config) { c.Rails = []string{"cma", "eth0"} },
		`KVLocation: "gpu:0": write cpu:N`:                                        func(c *Config) { c.KVLocation = "gpu:0" },
		`Matrix: "/no/such": there is no such file`:                               func(c *Config) { c.Matrix = "/no/such" },
		"Chunked: a decode node computes no prompts":                              func(c *Config) { c.Chunked = true },
		`Ledger: "links": leave it out, or model a NIC`:                           func(c *Config) { c.Ledger = "links" },
		"TransferTimeout: -1s: use 1ms or more":                                   func(c *Config) { c.TransferTimeout = -time.Second },
		"HoldTimeout: 1ns: use 1ms or more":                                       func(c *Config) { c.HoldTimeout = 1 },
		"KVBlocks: -1: use 1 to 4294967295":                                       func(c *Config) { c.KVBlocks = -1 },
		"KVBlocks: 99999999999: use 1 to 4294967295":                              func(c *Config) { c.KVBlocks = 99_999_999_999 },
		"Profile.vocab: 0: use":                                                   func(c *Config) { p := *c.Profile; p.Vocab = 0; c.Profile = &p },
	} {
		cfg := Config{ID: "decode-0", Role: proto.Role_ROLE_DECODE, Proxy: "127.0.0.1:9000", Profile: smallProfile(t), KVBlocks: 8, WarmBytes: -1}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		n, err := New(cfg)
		if err == nil || !strings.HasPrefix(err.Error(), "node.Config."+want) {
			t.Errorf("%v, want %s", err, want)
		}
		if n != nil {
			n.Close()
		}
	}
}

// TestMemory: a pool that was asked for, and what of it is touched before the node serves,
// fit into the memory that is left; a profile's pool may be larger, as it is used slowly.
func TestMemory(t *testing.T) {
	left, ok := kvcache.Available()
	if !ok {
		t.Skip("this system does not say how much memory is left")
	}
	p := smallProfile(t)
	more := int(2*left/int64(p.KVGeometry.SlotBytes())) + 1
	if more > math.MaxUint32 {
		t.Skip("so many blocks no pool has")
	}
	cfg := Config{ID: "decode-0", Role: proto.Role_ROLE_DECODE, Proxy: "127.0.0.1:9000", Profile: p}
	for want, change := range map[string]func(*Config){
		"node.Config.KVBlocks: ":  func(c *Config) { c.KVBlocks = more },
		"node.Config.WarmBytes: ": func(c *Config) { c.Profile.KVBytes, c.WarmBytes = 2*left, int(left+left/2) },
	} {
		cfg := cfg
		p := *p
		cfg.Profile = &p
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "MiB of memory are left here: use ") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	p.KVBytes, cfg.WarmBytes = 2*left, -1
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
