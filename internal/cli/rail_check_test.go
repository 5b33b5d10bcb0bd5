package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRailCheck: two ends, as on two machines; a rail that fails is exit 1, and a folder with results
// is refused.
func TestRailCheck(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan int)
	var log bytes.Buffer
	go func() {
		code := kvferry(false).Run(ctx, []string{"rail", "check", "--rail", "127.0.0.1:0", "--listen", "--address", "127.0.0.1:0", "--segment", "4m"}, in, &log)
		in.Close()
		ended <- code
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, rest, ok := strings.Cut(line, "waiting for checks at ")
	addr, _, _ := strings.Cut(rest, " ")
	if err != nil || !ok || !strings.Contains(line, "over tcp/0 at 127.0.0.1:") {
		t.Fatalf("%q, %v", line, err)
	}
	dir := t.TempDir()
	flags := []string{"rail", "check", "--rail", "127.0.0.1:0", "--segment", "4m", "--duration", "50ms", "--probes", "10", "--max-lost", "1", "--timeout", "1m", addr}
	code, stdout, stderr := command(t.Context(), append(flags, "--out", filepath.Join(dir, "a"))...)
	if code != 0 || !strings.Contains(stdout, "127.0.0.1:0       ok") && !strings.Contains(stdout, "127.0.0.1:0     warn") || !strings.Contains(stderr, "moving bytes over 127.0.0.1:0") {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = command(t.Context(), append(flags, "--line-rate", "100000gbit", "--out", filepath.Join(dir, "b"))...)
	if code != ExitFailed || !strings.Contains(stdout, "of line rate (limit 0.80)") || !strings.Contains(stderr, "not fit to serve: 127.0.0.1:0") {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	if _, err := os.Stat(filepath.Join(dir, "b", "check.json")); err != nil {
		t.Error(err)
	}
	if code, _, stderr = command(t.Context(), append(flags, "--out", filepath.Join(dir, "b"))...); code != ExitUsage || !strings.Contains(stderr, "it has results already (check.json)") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("the end that listens: exit %d: %s", code, log.String())
	}
}

func TestCheckUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"--rail: none given: name one"}},
		{"--rail udp/eth0 10.0.0.1", []string{"--rail", `"udp"`}},
		{"--rail mem", []string{"--rail", "no rail that serves"}},
		{"--rail tcp/lo --min-of-line 80", []string{"--min-of-line: 80: use a share"}},
		{"--rail tcp/lo --min-of-best -1 --max-carrier -1 --max-clock -1s --probes -1", []string{"--min-of-best: -1", "--max-carrier", "--max-clock", "--probes"}},
		{"--rail tcp/lo --line-rate fast --segment 0", []string{"--line-rate", "--segment"}},
		{"--rail tcp/lo --line-rate 1gbit,2gbit", []string{"--line-rate: 2 rates: there are 1 rails"}},
		{"--rail tcp/lo --duration 0s", []string{"--duration: 0s"}},
		{"--rail tcp/lo --address :1", []string{"--address: it is for --listen"}},
		{"--rail tcp/lo --listen 10.0.0.1", []string{`HOST: "10.0.0.1": a target waits for others: leave it or --listen out`}},
		{"--rail tcp/lo --listen --probes 5 --address 18516", []string{"--probes: the other end says it"}},
		{"--rail tcp/lo --listen --address 18516", []string{"--address", "host:port"}},
		{"--listen", []string{"--rail: none given"}},
		{"10.0.0.1", []string{"or cma, or shm\n"}}, // and no mem, which no node has
		{"--listen --segment 4m", []string{"or cma, or shm\n"}},
		{"--rail tcp/lo a b", []string{`HOST: "a b": given 2 times`}},
	} {
		refused(t, "rail check "+c.args, c.want...)
	}
}
