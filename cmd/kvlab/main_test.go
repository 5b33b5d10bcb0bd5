package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"kvferry/internal/cli"
	"kvferry/internal/cli/clitest"
)

func kvlab(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = program().Run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestUsage: every wrong flag is named with what would do, exit 2, before
// anything is started.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"roce", []string{"COMMAND: none given: name what the hosts run"}},
		{"roce --hosts 0 -- true", []string{"--hosts: 0: use more than 0, or leave it out for 2"}},
		{"roce --hosts 99 --nics 9 -- true", []string{"--hosts: 99: use 1 to 16", "--nics: 9: "}},
		{"roce --rate 80 -- true", []string{"--rate", "80mbit"}},
		{"roce --rate 1kbit -- true", []string{`--rate: "1kbit": use 100kbit`}},
		{"roce --loss 1 -- true", []string{"--loss", "as 1%"}},
		{"roce --delay 1m -- true", []string{"--delay: 1m0s: use 0s to 10s"}},
		{"roce --timeout 0s -- true", []string{"--timeout: 0s: use more than 0"}},
		{"roce --until 3 -- true", []string{"--until: 3: use 0 to 2"}},
		{"roce --numa --cpus 2 -- true", []string{"--cpus: 2: ", "leave it out"}},
		{"roce --file /no/such -- true", []string{`--file: "/no/such": there is no such file`}},
		{"roce --env KVLAB_HOST=1 -- true", []string{`--env: "KVLAB_HOST=1": the lab sets KVLAB_HOST itself`}},
		{"roce --fault 3s:kill:3 -- true", []string{`--fault: "3s:kill:3": host is 3: use 1 to 2`}},
		{"roce --fault 3s:burn:1 -- true", []string{"--fault", "kill, link-down or link-up", "TIME:kill:HOST"}},
		{"roce --host 2 -- true", []string{"--host: there is no such flag"}},
		{"setup now", []string{`"now"`, "takes none"}},
		{"vllm set", []string{`"set"`, "is it setup?"}},
		{"vllm setup now", []string{`"now"`, "takes none"}},
		{"rocky", []string{`"rocky"`, "is it roce?"}},
	} {
		code, _, stderr := kvlab(t.Context(), strings.Fields(c.args)...)
		if code != cli.ExitUsage {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, cli.ExitUsage, stderr)
		}
		for _, want := range append(c.want, "--help") {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: stderr does not say %q:\n%s", c.args, want, stderr)
			}
		}
	}
}

// TestRefused: more of them, held to what all programs say.
func TestRefused(t *testing.T) {
	clitest.Refused(t, program, [][2]string{
		{"nics", "COMMAND: none given: name what the hosts run"},
		{"nics --rates 2gbit,fast -- true", "--rates: "},
		{"nics --rates 1,2,3 -- true", "--rates: "},
		{"nics --rates 2gbit --mtu 9 -- true", "--mtu: 9: use "},
		{"nics --rates 2gbit --latency 0s -- true", "--latency: 0s: use more than 0"},
		{"nics --rates 2gbit --burst 1 -- true", "--burst: "},
		{"nics --rates 2gbit --fault 1s:link-down:1:5 -- true", `--fault: "1s:link-down:1:5": `},
		{"nics --rates 2gbit --env NOVALUE -- true", `--env: "NOVALUE": `},
		{"nics --rates 2gbit --until 3 -- true", "--until: 3: use 0 to 2"},
		{"nics --rates 2gbit --no-routes -- true", "--no-routes: "},
		{"roce --memory 1 -- true", "--memory: 1: use "},
		{"roce --timeout soon -- true", `--timeout: "soon": write a time with its unit`},
		{"roce --loss 200% -- true", "--loss: "},
		{"roce --rate -1gbit -- true", "--rate: "},
		{"roce --fault soon:kill:1 -- true", `--fault: "soon:kill:1": `},
	})
}

// TestCommandKeepsItsFlags: what follows COMMAND is not the lab's, with or
// without the two dashes.
func TestCommandKeepsItsFlags(t *testing.T) {
	for _, args := range []string{"roce --cache /no/such -- ping --hosts 99", "roce --cache /no/such ping --hosts 99"} {
		if code, _, stderr := kvlab(t.Context(), strings.Fields(args)...); code != exitFailed || !strings.Contains(stderr, "kvlab setup") {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	code, stdout, _ := kvlab(t.Context(), "roce", "--help")
	for _, want := range []string{"Examples:", "ib_write_bw", "KVLAB_PEER", "link-down", "Exit status", "--until"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, help does not say %q:\n%s", code, want, stdout)
		}
	}
}

// TestVLLM: what is missing is said, and that there is no Python.
func TestVLLM(t *testing.T) {
	cache := t.TempDir()
	code, stdout, stderr := kvlab(t.Context(), "vllm", "--cache", cache)
	if code != exitFailed || !strings.Contains(stdout, "missing  uv") || !strings.Contains(stderr, "run kvlab vllm setup") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	code, _, stderr = kvlab(t.Context(), "vllm", "setup", "--cache", cache, "--python", "/no/such/python")
	if code != exitFailed || !strings.Contains(stderr, "/no/such/python is not there") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestHelp: what 0 does, and what build it is.
func TestHelp(t *testing.T) {
	clitest.Zeros(t, program)
	clitest.Tells(t, program, "--version", "kvlab ", ", go1.")
}
