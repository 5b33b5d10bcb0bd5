package nics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/internal/proc"
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

// peerNames returns the peers' flags.
func peerNames() (names []string) {
	for _, p := range peers {
		names = append(names, p.flag)
	}
	return names
}

// checkBeside adds a fault for each name that is no peer's.
func checkBeside(bad *config.Faults, names []string) {
	for _, name := range names {
		bad.Refuse(!slices.Contains(peerNames(), name), "Beside", name, "use some of %s", strings.Join(peerNames(), ", "))
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

const (
	perftest     = "ucx_perftest"
	perftestPort = 13337 // where it listens
)

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
	run := func(host, port int, out io.Writer, args ...string) (*proc.Proc, error) {
		return start(ctx, l, host, proc.Cmd{
			Port: port, Out: out,
			Args: slices.Concat([]string{"unshare", "--mount", "sh", "-c", ownSys, perftest}, args, []string{"-t", "ucp_put_bw", "-s", strconv.Itoa(ucxBatch), "-O", wanDepth, "-w", "1", "-n", "1000000"}),
			// What UCX calls rails are the interfaces that it spreads a put over; one by default.
			Env: append(os.Environ(), "UCX_TLS=tcp", "UCX_NET_DEVICES=eth0,eth1,eth2,eth3", "UCX_MAX_RMA_RAILS=4"),
		})
	}
	server, err := run(1, perftestPort, nil) // which says only at its end that it has listened
	if err != nil {
		return 0, err
	}
	defer server.Stop()
	m := putMeter{began: time.Now(), warmup: warmup}
	client, err := run(2, 0, proc.Lines(m.read), lab.ManagementAddress(1))
	if err != nil {
		return 0, err
	}
	defer client.Stop()
	if rail.Sleep(ctx, client.Done(), warmup+duration) {
		return m.rate(warmup + duration), nil
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return 0, client.WithLog(fmt.Errorf("%s %w", perftest, client.Err()))
}

// A putMeter reads what ucx_perftest prints each second, for the rate between two of those lines, about
// the warm-up and the duration apart.
type putMeter struct {
	began  time.Time
	warmup time.Duration

	mu       sync.Mutex
	from, to progress
}

func (m *putMeter) read(line string) {
	n, found := puts(line)
	if !found {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.to = progress{time.Since(m.began), n}
	if m.to.at <= m.warmup {
		m.from = m.to
	}
}

// rate returns the rate up to the end in bytes a second.
func (m *putMeter) rate(end time.Duration) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return putsBetween(m.from, m.to, end)
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
