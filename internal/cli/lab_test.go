package cli

import (
	"strings"
	"testing"
)

// TestUsage: every wrong flag is named with what would do, exit 2, before
// anything is started.
func TestLabUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"lab rdma", []string{"COMMAND: none given: name what the hosts run"}},
		{"lab rdma --hosts 0 -- true", []string{"--hosts: 0: use more than 0, or leave it out for 2"}},
		{"lab rdma --hosts 99 --nics 9 -- true", []string{"--hosts: 99: use 1 to 16", "--nics: 9: "}},
		{"lab rdma --rate 80 -- true", []string{"--rate", "80mbit"}},
		{"lab rdma --rate 1kbit -- true", []string{`--rate: "1kbit": use 100kbit`}},
		{"lab rdma --loss 1 -- true", []string{"--loss", "as 1%"}},
		{"lab rdma --delay 1m -- true", []string{"--delay: 1m0s: use 0s to 10s"}},
		{"lab rdma --timeout 0s -- true", []string{"--timeout: 0s: use more than 0"}},
		{"lab rdma --until 3 -- true", []string{"--until: 3: use 0 to 2"}},
		{"lab rdma --numa --cpus 2 -- true", []string{"--cpus: 2: ", "leave it out"}},
		{"lab rdma --file /no/such -- true", []string{`--file: "/no/such": there is no such file`}},
		{"lab rdma --env KVFERRY_LAB_HOST=1 -- true", []string{`--env: "KVFERRY_LAB_HOST=1": the lab sets KVFERRY_LAB_HOST itself`}},
		{"lab rdma --fault 3s:kill:3 -- true", []string{`--fault: "3s:kill:3": host is 3: use 1 to 2`}},
		{"lab rdma --fault 3s:burn:1 -- true", []string{"--fault", "kill, link-down or link-up", "TIME:kill:HOST"}},
		{"lab rdma --host 2 -- true", []string{"--host: there is no such flag"}},
		{"lab setup now", []string{`"now"`, "takes none"}},
		{"lab vllm set", []string{`"set"`, "is it setup?"}},
		{"lab vllm setup now", []string{`"now"`, "takes none"}},
		{"lab rdmo", []string{`"rdmo"`, "is it rdma?"}},
	} {
		code, _, stderr := command(t.Context(), strings.Fields(c.args)...)
		if code != ExitUsage {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, ExitUsage, stderr)
		}
		for _, want := range append(c.want, "--help") {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: stderr does not say %q:\n%s", c.args, want, stderr)
			}
		}
	}
}

// TestRefused: more of them, held to what all programs say.
func TestLabRefused(t *testing.T) {
	refuses(t, func() Program { return kvferry(false) }, [][2]string{
		{"lab net", "COMMAND: none given: name what the hosts run"},
		{"lab net --rates 2gbit,fast -- true", "--rates: "},
		{"lab net --rates 1,2,3 -- true", "--rates: "},
		{"lab net --rates 2gbit --mtu 9 -- true", "--mtu: 9: use "},
		{"lab net --rates 2gbit --latency 0s -- true", "--latency: 0s: use more than 0"},
		{"lab net --rates 2gbit --burst 1 -- true", "--burst: "},
		{"lab net --rates 2gbit --fault 1s:link-down:1:5 -- true", `--fault: "1s:link-down:1:5": `},
		{"lab net --rates 2gbit --env NOVALUE -- true", `--env: "NOVALUE": `},
		{"lab net --rates 2gbit --until 3 -- true", "--until: 3: use 0 to 2"},
		{"lab net --rates 2gbit --no-routes -- true", "--no-routes: "},
		{"lab rdma --memory 1 -- true", "--memory: 1: use "},
		{"lab rdma --timeout soon -- true", `--timeout: "soon": write a time with its unit`},
		{"lab rdma --loss 200% -- true", "--loss: "},
		{"lab rdma --rate -1gbit -- true", "--rate: "},
		{"lab rdma --fault soon:kill:1 -- true", `--fault: "soon:kill:1": `},
	})
}

// TestCommandKeepsItsFlags: what follows COMMAND is not the lab's, with or
// without the two dashes.
func TestCommandKeepsItsFlags(t *testing.T) {
	for _, args := range []string{"lab rdma --cache /no/such -- ping --hosts 99", "lab rdma --cache /no/such ping --hosts 99"} {
		if code, _, stderr := command(t.Context(), strings.Fields(args)...); code != exitFailed || !strings.Contains(stderr, "kvferry lab setup") {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}

func TestLabHelpTeaches(t *testing.T) {
	code, stdout, _ := command(t.Context(), "lab", "rdma", "--help")
	for _, want := range []string{"Examples:", "ib_write_bw", "KVFERRY_LAB_PEER", "link-down", "Exit status", "--until"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, help does not say %q:\n%s", code, want, stdout)
		}
	}
}

// TestVLLM: what is missing is said, and that there is no Python.
func TestVLLM(t *testing.T) {
	cache := t.TempDir()
	code, stdout, stderr := command(t.Context(), "lab", "vllm", "--cache", cache)
	if code != exitFailed || !strings.Contains(stdout, "missing  uv") || !strings.Contains(stderr, "run kvferry lab vllm setup") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	code, _, stderr = command(t.Context(), "lab", "vllm", "setup", "--cache", cache, "--python", "/no/such/python")
	if code != exitFailed || !strings.Contains(stderr, "/no/such/python is not there") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestHelp: what 0 does, and what build it is.
func TestLabHelp(t *testing.T) {
	zeros(t, func() Program { return kvferry(false) })
	tells(t, func() Program { return kvferry(false) }, "--version", "kvferry ", ", go1.")
}
