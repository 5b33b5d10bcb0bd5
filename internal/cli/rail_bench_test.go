package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/rail"
)

// short are the flags of a run that takes no time.
func short(args ...string) []string {
	return append([]string{"rail", "bench", "--iters", "16", "--timeout", "1m", "--warmup", "5ms", "--segment", "4m", "--batch", "4"}, args...)
}

// TestTransfer runs both ways between this process and a child, and reads every
// format back.
func TestTransfer(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), short("--rail", "127.0.0.1:0", "--op", "both", "--block", "4k:16k", "--check", "--limit", "100gbit", "--out", dir)...)
	if code != 0 || strings.Count(stderr, "point ") != 6 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"a child process of this machine", "12.5 GB/s (given)", "CPU-s/GB", "check of every block", "\nread ", "results: " + dir} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	var r rail.Result
	if err != nil || json.Unmarshal(text, &r) != nil || len(r.Points) != 6 || r.Points[5].LimitPct == nil || *r.Points[5].Bad != 0 {
		t.Errorf("results.json: %v, %+v", err, r)
	}

	code, stdout, _ = command(t.Context(), short("--rail", "mem", "--format", "csv", "--out", dir)...)
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if code != 0 || err != nil || len(rows) != 2 || rows[1][0] != "write" || rows[0][5] != "rails" || rows[1][5] != "1" || rows[1][6] != "affinity" || rows[1][1] != "1m" {
		t.Errorf("exit %d, %v, %q", code, err, rows)
	}
	code, stdout, _ = command(t.Context(), short("--rail", "mem", "--format", "json", "--latency", "--block", "4k", "--imm", "no", "--out", dir)...)
	r = rail.Result{}
	if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil || r.Points[0].Depth != 1 || r.Points[0].Batch != 4 || r.Settings.LimitGBps != nil {
		t.Errorf("exit %d, %v, %+v", code, err, r)
	}
	code, stdout, _ = command(t.Context(), short("--rail", "mem", "--perftest", "--block", "8,64", "--out", dir)...)
	if code != 0 || !strings.Contains(stdout, " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 8  ") {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}

// TestTransferServer: a server and its client, as on two machines.
func TestTransferServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan int)
	var log bytes.Buffer
	go func() {
		code := kvferry(false).Run(ctx, []string{"rail", "bench", "--rail", "127.0.0.1:0", "--server", "--listen", "127.0.0.1:0", "--segment", "4m", "--once"}, in, &log)
		in.Close()
		ended <- code
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, rest, ok := strings.Cut(line, "serving clients at ")
	addr, _, _ := strings.Cut(rest, " ")
	if err != nil || !ok || !strings.Contains(line, "over tcp/0 at 127.0.0.1:") {
		t.Fatalf("%q, %v", line, err)
	}
	code, stdout, stderr := command(t.Context(), short("--rail", "127.0.0.1:0", "--out", t.TempDir(), addr)...)
	if code != 0 || !strings.Contains(stdout, "target     "+addr) {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	if code := <-ended; code != 0 || !strings.Contains(log.String(), "1 points") {
		t.Errorf("the server: exit %d: %s", code, log.String())
	}
	code, _, stderr = command(t.Context(), short("--rail", "127.0.0.1:0", "--out", t.TempDir(), addr)...)
	if code != ExitFailed || !strings.Contains(stderr, "kvferry rail bench --server") {
		t.Errorf("no server: exit %d: %s", code, stderr)
	}
}

// canceling cancels with the first line it gets.
type canceling struct {
	bytes.Buffer
	cancel func()
}

func (c *canceling) Write(b []byte) (int, error) {
	c.cancel()
	return c.Buffer.Write(b)
}

func TestTransferInterruptedExit130(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	var stdout bytes.Buffer
	stderr := &canceling{cancel: cancel}
	code := kvferry(false).Run(ctx, short("--rail", "mem", "--block", "4k,8k,16k", "--out", dir), &stdout, stderr)
	if code != ExitInterrupted || !strings.Contains(stderr.String(), "what was measured is kept") || !strings.Contains(stdout.String(), "write") {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout.String())
	}
	if _, err := os.Stat(filepath.Join(dir, "report.html")); err != nil {
		t.Error(err)
	}
}

// TestTransferUsage: every wrong flag is named with what would do.
func TestTransferUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"--rail: none given: name one", "tcp/eth0", "mem"}},
		{"--rail udp/eth0", []string{"--rail", `"udp"`, "rdma/"}},
		{"--rail rdma/rxe0?gids=1", []string{`"gids" is unknown`, "gid, qps, depth, poll, advertise"}},
		{"--rail mem --op send --block 0 --batch 0 --threads x --depth 1k", []string{"--op: \"send\": use write, read or both", "--block", "--batch", "--threads", "--depth"}},
		{"--rail mem --segment 0 --slice 2g --limit fast", []string{"--segment", `--slice: "2g": use up to 1g`, "--limit", "100gbit"}},
		{"--rail mem --rails 2 --limit 1gbit,2gbit", []string{"--rails: 2: use 1 to 1", "--limit: 2 rates: there are 1 rails"}},
		{"--rail mem --rails 0 --select fast", []string{"--rails", "--select", "affinity, static, round-robin, single"}},
		{"--rail mem --select static,static", []string{`--select: "static": given twice`}},
		{"--rail mem --limit 0gbit", []string{"--limit", "above 0"}},
		{"--rail mem --duration 0s --warmup -1s --timeout 0s --iters 0", []string{"--duration: 0s:", "--warmup: -1s:", "--timeout: 0s:", "--iters: 0:"}},
		{"--rail mem --duration 1s --iters 5", []string{"--iters", "leave one out"}},
		{"--rail mem --latency --depth 2", []string{"--depth", "--latency"}},
		{"--rail mem --latency --beside netperf", []string{"--beside", "bare, ucx, iperf3"}},
		{"--rail tcp/lo --latency --beside ucx,ucx", []string{`--beside: "ucx": given twice`}},
		{"--rail mem --latency --beside bare", []string{"--beside", "both ends in this process"}},
		{"--rail tcp/lo --beside bare", []string{"--beside", "beside latencies"}},
		{"--rail mem --imm maybe --peers 0 --model-kv gpt-9", []string{"--imm", "no, yes or both", "--peers", "--model-kv", "llama-3.1-8b"}},
		{"--rail mem --kv-block-tokens 0", []string{"--kv-block-tokens: 0"}},
		{"--rail mem --peers 5000", []string{"--peers: 5000: use 1 to 4096"}},
		{"--rail mem --format xml", []string{"--format", "text, json, csv"}},
		{"--rail mem --perftest --format csv", []string{"--perftest", "--format"}},
		{"--rail mem --once --listen :1", []string{"--once", "--listen", "--server"}},
		{"--rail mem --block 1g", []string{`--segment: "1g": one batch of each thread, 16g at the least`}},
		{"--rail mem 10.0.0.1", []string{`HOST: "10.0.0.1": the rail mem`, "leave one out"}},
		{"--rail 127.0.0.1:7000", []string{"--rail", "use port 0"}},
		{"--rail mem --server", []string{`--rail: "mem": it reaches this process only`}},
		{"--rail tcp/lo --server 10.0.0.1", []string{`HOST: "10.0.0.1": a target waits for others: leave it or --server out`}},
		{"--rail tcp/lo --server --block 4k --listen 18515", []string{"--block: the other end says it", `--listen: "18515": write host:port`}},
		{"--rail tcp/lo a b", []string{`HOST: "a b": given 2 times`}},
	} {
		refused(t, "rail bench "+c.args, c.want...)
	}
	code, _, stderr := command(t.Context(), "rail", "bench", "--rail", "tcp/nosuch0", "--out", t.TempDir())
	if code != ExitUsage || !strings.HasPrefix(stderr, `kvferry: --rail: "tcp/nosuch0": this machine has no interface "nosuch0": use one of`) {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if _, _, stderr := command(t.Context(), "rail", "bench", "--rail", "mem", "--latency", "--model-kv", "gpt-9"); strings.Contains(stderr, "--segment") {
		t.Errorf("a model that nobody knows is no fault of the memory:\n%s", stderr)
	}
}

func TestTransferHelp(t *testing.T) {
	code, stdout, _ := command(t.Context(), "rail", "bench", "--help")
	for _, want := range []string{"Exit status", "half a round trip", "rdma/mlx5_0", "--perftest", "10.0.0.1"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, help does not say %q:\n%s", code, want, stdout)
		}
	}
}
