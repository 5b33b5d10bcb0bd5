package rails

import (
	"errors"
	"strings"
	"testing"

	"kvferry/transport/topology"
)

// TestEvery: what reaches other machines and has an address; of a machine that has no such NIC, the loopback.
func TestEvery(t *testing.T) {
	nic := func(name string, kind topology.Kind, up bool) topology.NIC {
		return topology.NIC{Name: name, Netdev: name, Kind: kind, Up: up, Enabled: true, Node: -1}
	}
	slave := nic("eth4", topology.Hardware, true)
	slave.Master = "bond0"
	loopback, docker := nic("lo", topology.Loopback, true), nic("docker0", topology.Virtual, true)
	for want, nics := range map[string][]topology.NIC{
		"tcp/bond0 tcp/eth0": {
			nic("eth0", topology.Hardware, true), nic("eth1", topology.Hardware, false), nic("bare", topology.Hardware, true),
			nic("bond0", topology.Stacked, true), slave, docker, nic("veth12", topology.Virtual, true), nic("virbr0", topology.Virtual, false), loopback,
		},
		"tcp/docker0": {docker, nic("virbr0", topology.Virtual, false), loopback}, // as in a container, whose only way out is a veth
		"tcp/lo":      {loopback, nic("bare", topology.Hardware, false)},
	} {
		machine := &topology.Machine{Nodes: []topology.Node{{ID: 0}, {ID: 1}}, NICs: nics}
		got, err := every(machine, func(name string) (string, error) {
			if name == "bare" {
				return "", errors.New("no address")
			}
			return "10.0.0.1", nil
		})
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
}

// TestEveryHere: this machine has something, and it can be opened.
func TestEveryHere(t *testing.T) {
	specs, err := EveryNIC()
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	opened, err := OpenAll(specs, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range opened {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
