package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func kvlab(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestUsage: every wrong flag is named with what would do, exit 2, before
// anything is started.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"roce", []string{"COMMAND is empty"}},
		{"roce --hosts 0 -- true", []string{"--hosts: is 0"}},
		{"roce --hosts 99 --nics 9 -- true", []string{"--hosts is 99: use 1 to 16", "--nics is 9"}},
		{"roce --rate 80 -- true", []string{"--rate", "80mbit"}},
		{"roce --rate 1kbit -- true", []string{"--rate is 1000 bit/s"}},
		{"roce --loss 1 -- true", []string{"--loss", "as 1%"}},
		{"roce --delay 1m -- true", []string{"--delay is 1m0s: use 0 to 10s"}},
		{"roce --timeout 0s -- true", []string{"--timeout: is 0"}},
		{"roce --until 3 -- true", []string{"--until is 3"}},
		{"roce --numa --cpus 2 -- true", []string{"--cpus is 2: leave it out"}},
		{"roce --file /no/such -- true", []string{"--file", "/no/such"}},
		{"roce --env KVLAB_HOST=1 -- true", []string{"--env sets KVLAB_HOST"}},
		{"roce --fault 3s:kill:3 -- true", []string{`--fault has "3s:kill:3"`, "1 to 2"}},
		{"roce --fault 3s:burn:1 -- true", []string{"--fault", "kill, link-down or link-up", "TIME:kill:HOST"}},
		{"roce --host 2 -- true", []string{"--host"}},
		{"setup now", []string{"now"}},
		{"rocky", []string{`"rocky"`, "roce"}},
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
