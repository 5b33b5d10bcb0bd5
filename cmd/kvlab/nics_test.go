package main

import (
	"strings"
	"testing"
)

// TestNICsUsage: every wrong flag is named with what would do, exit 2, before
// anything is made.
func TestNICsUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"nics --rates 1gbit", []string{"COMMAND is empty"}},
		{"nics -- true", []string{"--rates is empty", "2gbit,2gbit"}},
		{"nics --rates 2 -- true", []string{"--rates", "as 80mbit"}},
		{"nics --rates 1kbit --mtu 100 -- true", []string{"--rates has 1000 bit/s for link 0", "--mtu is 100"}},
		{"nics --rates 1gbit --mtu 0 -- true", []string{"--mtu: is 0"}},
		{"nics --rates 1gbit --burst 1 -- true", []string{"--burst", "as 256kb"}},
		{"nics --rates 1gbit --burst 1kb -- true", []string{"--burst is 1024 bytes"}},
		{"nics --rates 1gbit --latency 1h -- true", []string{"--latency is 1h0m0s"}},
		{"nics --rates 1gbit --no-routes -- true", []string{"--no-routes"}},
		{"nics --rates 1gbit --mptcp --shared-subnet -- true", []string{"--mptcp needs"}},
		{"nics --rates 1gbit --until 3 -- true", []string{"--until is 3"}},
		{"nics --rates 1gbit --timeout 0s -- true", []string{"--timeout: is 0"}},
		{"nics --rates 1gbit --env KVLAB_HOST=1 -- true", []string{"--env sets KVLAB_HOST"}},
		{"nics --rates 1gbit --fault 3s:link-down:1:1 -- true", []string{`--fault has "3s:link-down:1:1"`, "0 to 0"}},
		{"nics --rates 1gbit --fault 3s:burn:1:0 -- true", []string{"--fault", "rate, black-hole or clear", "TIME:rate:HOST:NIC:RATE"}},
		{"nics --rates 1gbit -- /no/such/program", []string{"COMMAND cannot be run", "/no/such/program"}},
		{"roce --fault 3s:clear:1:0 -- true", []string{"--fault", "kill, link-down or link-up"}},
	} {
		code, _, stderr := kvlab(t.Context(), strings.Fields(c.args)...)
		if code != exitUsage {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, exitUsage, stderr)
		}
		for _, want := range append(c.want, "--help") {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: stderr does not say %q:\n%s", c.args, want, stderr)
			}
		}
	}
}

func TestNICsHelpTeaches(t *testing.T) {
	code, stdout, _ := kvlab(t.Context(), "nics", "--help")
	for _, want := range []string{"Examples:", "--rates", "KVLAB_MGMT_PEER", "black-hole", "faults.jsonl", "Exit status", "kill -9"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, help does not say %q:\n%s", code, want, stdout)
		}
	}
}
