package nics

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Hosts count from 1, NICs and links from 0, and both are bytes of addresses. 10.77 and 10.78
// are private (RFC 1918) and in namespaces of their own: that this machine has them too does
// not matter.

const management = "mgmt"

// Name is what a NIC is called on both hosts.
func Name(nic int) string { return fmt.Sprintf("eth%d", nic) }

// Address is the address of a host's NIC, where each link is a network of its own.
func Address(host, nic int) string { return fmt.Sprintf("10.77.%d.%d", nic, host) }

// Addresses are those of a host's NIC where host 2 has so many of each: 10.77.0.2, 10.77.0.3, ...
func Addresses(host, nic, count int) (all []string) {
	if host == 1 {
		count = 1
	}
	for k := range count {
		all = append(all, Address(host+k, nic))
	}
	return all
}

// ManagementAddress is the address of a host's management NIC, which has no rate.
func ManagementAddress(host int) string { return fmt.Sprintf("10.78.0.%d", host) }

func (c Config) address(host, nic int) string {
	if c.SharedSubnet {
		return fmt.Sprintf("10.77.0.%d", (host-1)*100+nic+1)
	}
	return Address(host, nic)
}

func hostname(host int) string { return fmt.Sprintf("host%d", host) }

// environment is what the command of a host finds set, as K=V. Variables of a lab
// that this one runs in are left out.
func (c Config) environment(host int, out string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "KVFERRY_LAB_") })
	set := func(format string, args ...any) { env = append(env, "KVFERRY_LAB_"+fmt.Sprintf(format, args...)) }
	peer := 3 - host
	set("HOST=%d", host)
	set("HOSTS=%d", Hosts)
	set("NICS=%d", len(c.Rates))
	for nic, rate := range c.Rates {
		set("ADDR_%d=%s", nic, c.address(host, nic))
		set("NIC_%d=%s", nic, Name(nic))
		set("RATE_%d=%d", nic, rate)
		set("PEER_%d_%d=%s", peer, nic, c.address(peer, nic))
	}
	set("PEER=%s", c.address(peer, 0))
	set("MGMT=%s", ManagementAddress(host))
	set("MGMT_PEER=%s", ManagementAddress(peer))
	set("OUT=%s", out)
	return append(env, c.Env...)
}
