package rail

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/stats"
	"kvferry/internal/config"
	"kvferry/internal/proc"
)

// startTimeout is how long a program may take until it listens.
const startTimeout = 10 * time.Second

// serveProgram starts a program's server at a free port, and waits until it listens.
func serveProgram(name string, p ReferencePath) (*ReferenceServer, error) {
	port, err := config.FreePort(p.Host)
	if err != nil {
		return nil, err
	}
	args := []string{"-p", strconv.Itoa(port)}
	if name == Iperf3 {
		args = append(args, "-s", "-1", "-B", p.Host)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), startTimeout, fmt.Errorf("it does not listen within %v", startTimeout))
	defer cancel()
	cmd := p.cmd(programs[name], args...)
	cmd.Port = port
	server, err := proc.Start(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", programs[name], err)
	}
	return &ReferenceServer{Addr: net.JoinHostPort(p.Host, strconv.Itoa(port)), close: func() error { server.Kill(); return nil }}, nil
}

// run runs a program's client to its end, and returns what it printed.
func run(ctx context.Context, p ReferencePath, program string, args ...string) (string, error) {
	var out strings.Builder
	cmd := p.cmd(program, args...)
	cmd.Log = &out
	if err := proc.Run(ctx, cmd); err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", program, err), ctx.Err())
	}
	return out.String(), nil
}

// cmd is the command line of a program that uses the path.
func (p ReferencePath) cmd(program string, args ...string) proc.Cmd {
	return proc.Cmd{Args: append([]string{program}, args...), Env: append(os.Environ(), p.environment()...)}
}

// ucxFirst is how many iterations say how long one takes, and the least of a run.
const ucxFirst = 200

// ucx is ucx_perftest: a short run whose median says how long one operation takes, and one of a third
// of the time for each percentile.
func ucx(ctx context.Context, p ReferencePath, s ReferenceShape, d time.Duration, serve func() (string, error)) (f ReferenceFigures, err error) {
	f.Of = "ucp_put_lat: one way, spinning"
	test, trips := []string{"-t", "ucp_put_lat"}, 2.0
	if s.Read {
		f.Of, test, trips = "ucp_get, one outstanding, spinning", []string{"-t", "ucp_get", "-O", "1"}, 1
	}
	once := func(n int64, rank float64) (ucxResult, error) {
		addr, err := serve()
		if err != nil {
			return ucxResult{}, err
		}
		host, port, _ := net.SplitHostPort(addr)
		out, err := run(ctx, p, programs[UCX], append([]string{
			host, "-p", port, "-s", strconv.FormatInt(s.Block, 10), "-n", strconv.FormatInt(n, 10), "-w", strconv.FormatInt(n/10+1, 10), "-R", strconv.FormatFloat(rank, 'g', -1, 64), "-f", "-v",
		}, test...)...)
		if err != nil {
			return ucxResult{}, err
		}
		return parseUCX(out)
	}
	first, err := once(ucxFirst, 50)
	if err != nil {
		return f, err
	}
	f.Samples = int64(min(max(d.Seconds()*1e6/3/(trips*max(first.rank, 0.01)), ucxFirst), 200_000))
	for _, r := range []struct {
		p  float64
		to *Rank
	}{{50, &f.P50US}, {99, &f.P99US}, {99.9, &f.P999US}} {
		if stats.Beyond(f.Samples, r.p) < 1 {
			continue
		}
		got, err := once(f.Samples, r.p)
		if err != nil {
			return f, err
		}
		*r.to = &got.rank
		f.GBps = got.mbps * (1 << 20) / 1e9
	}
	return f, nil
}

// A ucxResult is the line of a run: microseconds, and UCX's MB of 2^20 bytes a second.
type ucxResult struct{ rank, mbps float64 }

// parseUCX reads ucx_perftest -f -v: a line of names and one of values, behind what UCX may
// have to warn of.
func parseUCX(out string) (r ucxResult, err error) {
	if at := strings.Index(out, "iterations,"); at > 0 {
		out = out[at:]
	}
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) < 2 {
		return r, fmt.Errorf("ucx_perftest printed no result: %.200q", out)
	}
	found := 0
	for i, name := range rows[0] {
		v, err := strconv.ParseFloat(strings.TrimSpace(rows[1][i]), 64)
		if err != nil || math.IsNaN(v) || v < 0 {
			return r, fmt.Errorf("ucx_perftest printed %s %q", name, rows[1][i])
		}
		switch {
		case strings.HasSuffix(name, "percentile_lat"):
			r.rank = v
		case name == "overall_bw":
			r.mbps = v
		default:
			continue
		}
		found++
	}
	if found != 2 {
		return r, fmt.Errorf("ucx_perftest printed other columns than latency and rate: %.200q", out)
	}
	return r, nil
}

// iperfBlock is the largest write of iperf3.
const iperfBlock = 1 << 20

func iperf3(ctx context.Context, p ReferencePath, s ReferenceShape, d time.Duration, addr string) (f ReferenceFigures, err error) {
	host, port, _ := net.SplitHostPort(addr)
	block := min(s.Block, iperfBlock)
	args := []string{"-c", host, "-p", port, "-l", strconv.FormatInt(block, 10), "-t", strconv.Itoa(max(int(d.Seconds()), 1)), "-J"}
	if net.ParseIP(p.Host) != nil {
		args = append(args, "-B", p.Host)
	}
	if s.Read {
		args = append(args, "-R")
	}
	out, err := run(ctx, p, programs[Iperf3], args...)
	if err != nil {
		return f, err
	}
	f.Of = "one stream's rate, no latency"
	if block < s.Block {
		f.Of = fmt.Sprintf("one stream's rate in writes of %d bytes, no latency", block)
	}
	f.GBps, err = parseIperf3(out)
	return f, err
}

// parseIperf3 reads iperf3 -J: what was received, in bytes a second.
func parseIperf3(out string) (gbps float64, err error) {
	var r struct {
		Error string `json:"error"`
		End   struct {
			Received *struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, fmt.Errorf("iperf3 printed no JSON: %.200q", out)
	}
	if r.Error != "" || r.End.Received == nil {
		return 0, fmt.Errorf("iperf3: %s", r.Error)
	}
	return r.End.Received.Bits / 8e9, nil
}
