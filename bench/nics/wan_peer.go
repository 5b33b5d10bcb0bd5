package nics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/bench/rail"
	"kvferry/internal/config"
	lab "kvferry/lab/nics"
)

// A peer is another way to use four links as one, measured beside the rails. Its connections
// have congestion control cubic, as the links of its lab say.
type peer struct {
	name   string // in tables
	flag   string // in WANConfig.Beside
	absent func() error
	spins  bool // it has the CPUs busy whatever it carries
	// rate is what it carries from host 2 to host 1 in bytes a second, after the warm-up.
	rate func(ctx context.Context, l *lab.Lab, warmup, duration time.Duration) (float64, error)
}

var peers = []peer{
	{name: "MPTCP", flag: "mptcp", absent: noMPTCP, rate: mptcpRate},
	{name: "UCX", flag: "ucx", absent: noUCX, spins: true, rate: ucxRate},
}

// peerNames are the others by flag.
func peerNames() (names []string) {
	for _, p := range peers {
		names = append(names, p.flag)
	}
	return names
}

// checkBeside says what is none of the others.
func checkBeside(bad *config.Faults, names []string) {
	for _, name := range names {
		known := false
		for _, p := range peers {
			known = known || p.flag == name
		}
		bad.Refuse(!known, "Beside", name, "use some of %s", strings.Join(peerNames(), ", "))
	}
}

func noMPTCP() error {
	_, err := os.Stat("/proc/sys/net/mptcp/enabled")
	if err != nil {
		return errors.New("this kernel has no MPTCP (CONFIG_MPTCP)")
	}
	return nil
}

// mptcpRate is what one MPTCP connection carries: the kernel joins the other links to it.
func mptcpRate(ctx context.Context, l *lab.Lab, warmup, duration time.Duration) (rate float64, err error) {
	in, out, err := mptcpConnection(ctx, l)
	if err != nil {
		return 0, err
	}
	var both sync.WaitGroup
	defer both.Wait()
	defer in.Close()
	defer out.Close()
	both.Go(func() {
		for block := make([]byte, 256<<10); ; {
			if _, err := out.Write(block); err != nil {
				return // closed, or reset: then nothing arrives any more
			}
		}
	})
	var received atomic.Int64
	both.Go(func() {
		for block := make([]byte, 256<<10); ; {
			n, err := in.Read(block)
			received.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	if !rail.Sleep(ctx, nil, warmup) {
		return 0, context.Cause(ctx)
	}
	began, before := time.Now(), received.Load()
	if !rail.Sleep(ctx, nil, duration) {
		return 0, context.Cause(ctx)
	}
	return float64(received.Load()-before) / time.Since(began).Seconds(), nil
}

// mptcpConnection is one from host 2, out, to host 1, in, made over link 0. The listener stays: the
// kernel joins links to a connection only where one is.
func mptcpConnection(ctx context.Context, l *lab.Lab) (in io.ReadCloser, out net.Conn, err error) {
	var listener net.Listener
	listen, dial := net.ListenConfig{}, net.Dialer{Timeout: 10 * time.Second}
	listen.SetMultipathTCP(true)
	dial.SetMultipathTCP(true)
	if err = l.Do(1, func() (err error) {
		listener, err = listen.Listen(ctx, "tcp4", "0.0.0.0:"+multipathPort)
		return err
	}); err != nil {
		return nil, nil, err
	}
	if err = l.Do(2, func() (err error) {
		out, err = dial.DialContext(ctx, "tcp4", net.JoinHostPort(lab.Address(1, 0), multipathPort))
		return err
	}); err != nil {
		listener.Close()
		return nil, nil, err
	}
	accepted, err := listener.Accept()
	if err == nil {
		if joined, e := out.(*net.TCPConn).MultipathTCP(); e != nil || !joined {
			err = fmt.Errorf("the kernel made no MPTCP connection: %w", e)
		}
	}
	if err != nil {
		out.Close()
		listener.Close()
		return nil, nil, err
	}
	return &listened{accepted, listener}, out, nil
}

// A listened connection has its listener as long as it is there.
type listened struct {
	net.Conn
	listener net.Listener
}

func (c *listened) Close() error { return errors.Join(c.Conn.Close(), c.listener.Close()) }

const perftest = "ucx_perftest"

func noUCX() error {
	for _, name := range []string{perftest, "unshare", "mount"} {
		if _, err := exec.LookPath(name); err != nil {
			return errors.New(name + " is not installed")
		}
	}
	return nil
}

// ucxBatch is a put of UCX: as many bytes as a batch of the rails.
const ucxBatch = 4 << 20

// ownSys runs a program with the /sys of its network namespace: UCX looks there for interfaces.
const ownSys = `mount -t sysfs sysfs /sys && exec "$0" "$@"`

// ucxRate is what puts carry, spread over four rails by UCX, as many under way as batches.
func ucxRate(ctx context.Context, l *lab.Lab, warmup, duration time.Duration) (rate float64, err error) {
	run := func(host int, args ...string) (*process, error) {
		cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "sh", "-c", ownSys, perftest}, append(args, "-t", "ucp_put_bw", "-s", strconv.Itoa(ucxBatch), "-O", wanDepth, "-w", "1", "-n", "1000000")...)...)
		// What UCX calls rails are the interfaces that it spreads a put over; one by default.
		cmd.Env = append(os.Environ(), "UCX_TLS=tcp", "UCX_NET_DEVICES=eth0,eth1,eth2,eth3", "UCX_MAX_RMA_RAILS=4")
		return startCommand(l, host, cmd)
	}
	server, err := run(1)
	if err != nil {
		return 0, err
	}
	defer server.stop()
	if err := listens(ctx, l, 1, server); err != nil { // it says so only at its end
		return 0, err
	}
	client, err := run(2, lab.ManagementAddress(1))
	if err != nil {
		return 0, err
	}
	defer client.stop()
	return putRate(ctx, client, warmup, duration)
}

// perftestPort is where it listens, 13337, as the kernel's tables have it.
const perftestPort = ":3419"

// listens returns when a port of a host is open.
func listens(ctx context.Context, l *lab.Lab, host int, server *process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New(perftest+" does not listen"))
	defer cancel()
	for {
		open := false
		if err := l.Do(host, func() error {
			table, err := os.ReadFile("/proc/thread-self/net/tcp")
			open = listening(string(table), perftestPort)
			return err
		}); err != nil || open {
			return err
		}
		if !rail.Sleep(ctx, server.over, 20*time.Millisecond) {
			return errors.Join(context.Cause(ctx), server.err)
		}
	}
}

// listening finds a port in the kernel's table: number, own and remote address, state, of which 0A is
// LISTEN.
func listening(table, port string) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], port) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// putRate reads what ucx_perftest prints each second, and returns the rate between two of those lines,
// about the warm-up and the duration apart. Where it says nothing for long, nothing has moved.
func putRate(ctx context.Context, client *process, warmup, duration time.Duration) (float64, error) {
	began := time.Now()
	end := time.NewTimer(warmup + duration)
	defer end.Stop()
	var from, to progress
	for {
		select {
		case text, open := <-client.lines:
			if !open {
				<-client.over
				return 0, errors.Join(errors.New(perftest+" ended before its time"), client.err)
			}
			n, found := puts(text)
			if !found {
				continue
			}
			to = progress{time.Since(began), n}
			if to.at <= warmup {
				from = to
			}
		case <-end.C:
			return putsBetween(from, to, warmup+duration), nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// A progress is how many puts were done by a time.
type progress struct {
	at   time.Duration
	puts int64
}

// putsBetween is the rate in bytes a second. A last line that is older than two of its seconds
// means that nothing moves: the time until the end counts too.
func putsBetween(from, to progress, end time.Duration) float64 {
	if end-to.at > 2*time.Second {
		to.at = end
	}
	if to.at <= from.at {
		return 0
	}
	return float64(to.puts-from.puts) * ucxBatch / (to.at - from.at).Seconds()
}

// puts reads how many a line of ucx_perftest says there were:
//
//	[thread 0]               107  17532.689 19374.251 18825.600      206.46     212.48          52          53
func puts(line string) (n int64, found bool) {
	rest, found := strings.CutPrefix(line, "[thread 0]")
	fields := strings.Fields(rest)
	if !found || len(fields) != 8 {
		return 0, false
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	return n, err == nil
}
