package nics

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/lab"
)

// Traffic is what a NIC has sent and received since the lab began. Bytes are those of frames before
// they were cut up to the MTU: 64 KiB of payload count their headers once, where a
// wire has them 45 times, so this is below what a link's rate counts by 4 %.
type Traffic struct {
	SentBytes, SentPackets         int64
	ReceivedBytes, ReceivedPackets int64
}

// Result is how a lab ended.
type Result struct {
	lab.Result
	Traffic [Hosts][]Traffic // by host, from 0, and NIC
}

// A Lab is two hosts and the links between them, from Start to Close. Its methods may be
// called from any goroutine, and after its end: a link's then return net.ErrClosed.
type Lab struct {
	// All of these are set before Start returns, and stay as they are.
	cfg    Config // with defaults
	cancel context.CancelFunc
	net    *network
	hosts  []*host   // none without a command
	outs   []*folder // of both hosts; none without a command and Out

	out     *lab.Printer
	faults  *lab.Schedule
	journal journal
	flaps   flapping
	started time.Time    // when the commands were let off; set before faults can happen
	dead    atomic.Int32 // the host that was killed, from 1; 0: none

	done chan struct{} // closed: nothing of the lab is left

	// Written by the goroutine that Start leaves behind, read once done is closed.
	result *Result
	err    error
}

// Run starts a lab, waits for it and clears it away. The result is nil if the lab did
// not start.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	l, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return l.Wait()
}

// Start joins the hosts and returns when both run the command. The lab ends with
// ctx, or with its Timeout, which counts from here. If Start fails, all that it began
// has ended. The error is a [config.Invalid] where cfg is wrong.
func Start(ctx context.Context, cfg Config) (*Lab, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	began := time.Now()
	network, err := newNetwork(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%w: the lab is not over after %v", lab.ErrTimeout, cfg.Timeout))
	l := &Lab{cfg: cfg, cancel: cancel, net: network, faults: lab.NewSchedule(cfg.Faults), done: make(chan struct{})}
	l.out = &lab.Printer{Stdout: cfg.Stdout, Stderr: cfg.Stderr, Log: cfg.Log, OnLine: cfg.OnLine, Faults: l.faults}
	if err := l.startHosts(ctx); err != nil {
		l.clear()
		cancel()
		return nil, err
	}
	l.result = &Result{Result: lab.Result{Hosts: make([]lab.HostResult, len(l.hosts)), Boot: time.Since(began), Until: cfg.Until}}
	running := "idle"
	if len(cfg.Command) > 0 {
		running = "running " + cfg.Command[0]
	}
	l.out.Note("2 hosts up after %d ms, %s, %s", l.result.Boot.Milliseconds(), cfg.links(), running)
	l.started = time.Now()
	for _, h := range l.hosts {
		h.Tell("go")
	}
	go func() {
		defer close(l.done)
		defer cancel()
		var faults sync.WaitGroup
		faultCtx, endFaults := context.WithCancel(ctx)
		for nic, f := range cfg.Flaps {
			if f != (lab.Flap{}) {
				l.flaps.start(nic, f, l.plug)
			}
		}
		faults.Go(func() {
			l.faults.Run(faultCtx, func(f lab.Fault) { _ = l.Inflict(f) }, func(f lab.Fault) { l.out.Note("fault %s did not happen: the lab was over", f) })
		})
		l.err = l.follow(ctx)
		l.result.Command = time.Since(l.started)
		endFaults()
		l.flaps.end()
		faults.Wait() // a fault under way needs the links, and is to be in the journal
		l.tally()
		l.clear()
	}()
	return l, nil
}

// links is "links of 2gbit, 2gbit" for the log.
func (c Config) links() string {
	var rates []string
	for _, r := range c.Rates {
		rates = append(rates, lab.FormatRate(r))
	}
	noun := map[bool]string{true: "link", false: "links"}[len(rates) == 1]
	return noun + " of " + strings.Join(rates, ", ")
}

// startHosts returns when all hosts wait to be let off. What it had started when it fails
// is in l, for clear. A lab without commands has folders for its journal only.
func (l *Lab) startHosts(ctx context.Context) error {
	if len(l.cfg.Command) == 0 && l.cfg.Out == "" {
		return nil
	}
	for number := 1; number <= Hosts; number++ {
		out, err := openFolder(l.cfg.Out, number)
		if err != nil {
			return err
		}
		l.outs = append(l.outs, out)
		f, err := out.create(journalName)
		if err != nil {
			return err
		}
		l.journal.files = append(l.journal.files, f)
		if len(l.cfg.Command) == 0 {
			continue
		}
		h, err := l.net.startHost(number, out, l.out.Print)
		if err != nil {
			return err
		}
		l.hosts = append(l.hosts, h)
	}
	for _, h := range l.hosts {
		select {
		case <-h.ready:
		case <-h.over:
			return h.err
		case <-ctx.Done():
			return fmt.Errorf("%w while %s was set up", context.Cause(ctx), hostname(h.number))
		}
	}
	return nil
}

// Wait returns when the lab is over and cleared away. A command's exit status is
// no error; a host that ended without one is, unless a fault killed it. The result
// is there even so, with what is known.
func (l *Lab) Wait() (*Result, error) {
	<-l.done
	return l.result, l.err
}

// Close ends the lab, if it runs, and returns when it is cleared away. It may be called
// more than once.
func (l *Lab) Close() {
	l.cancel()
	<-l.done
}

// follow has the hosts run to their end, and writes their results. Without commands it
// returns when the lab is closed.
func (l *Lab) follow(ctx context.Context) error {
	if len(l.hosts) == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return lab.Follow(ctx, l.hosts, l.cfg.Until, l.result.Hosts, func(running []*host) {
		for _, h := range running {
			l.out.Note("%s's command did not end within %v of SIGTERM", h.Name(), lab.StopGrace)
		}
	})
}

func (h *host) Name() string { return hostname(h.number) }

func (h *host) Over() <-chan struct{} { return h.over }

func (h *host) Ended() (code int, killed bool, err error) { return h.code, h.killed.Load(), h.err }

// tally reads the counters while they exist: the interfaces, and the kernel's counts with
// them, go with the namespaces.
func (l *Lab) tally() {
	for host := 1; host <= Hosts; host++ {
		var sent []string
		for nic := range l.cfg.Rates {
			t, err := l.Traffic(host, nic)
			if err != nil {
				l.out.Note("counters of %s: %v", hostname(host), err)
				return
			}
			l.result.Traffic[host-1] = append(l.result.Traffic[host-1], t)
			sent = append(sent, fmt.Sprintf("%s %.1f MB", Name(nic), float64(t.SentBytes)/1e6))
		}
		l.out.Note("%s sent %s", hostname(host), strings.Join(sent, ", "))
	}
	for nic := range l.cfg.Rates {
		conditions, lines, dropped, by, err := l.net.lines(nic)
		if err != nil || by == "" {
			continue
		}
		for i, c := range lines {
			if by == ByNetem {
				l.out.Note("%s of %s, %v, by netem: %d packets, %d lost", Name(nic), hostname(i+1), conditions[i], c.Packets, c.Lost)
				continue
			}
			l.out.Note("%s of %s, %v: %d packets, %d lost, %d reordered, %d duplicated, %d corrupted", Name(nic), hostname(i+1), conditions[i], c.Packets, c.Lost, c.Reordered, c.Duplicated, c.Corrupted)
			dropped += c.Overflowed
		}
		if dropped > 0 {
			l.out.Note("%s: DISTURBED: this machine was too busy, and %d frames more were lost", Name(nic), dropped)
		}
	}
}

// Overrun is how many packets the links have lost so far because this machine was too busy to carry
// them, or because a cable was pulled while one was handed over, of all that came. Of links that were
// always clean none are known.
func (l *Lab) Overrun() (lost, of int64, err error) {
	for nic := range l.cfg.Rates {
		_, lines, dropped, _, err := l.net.lines(nic)
		if err != nil {
			return 0, 0, err
		}
		lost += dropped + lines[0].Overflowed + lines[1].Overflowed
		of += lines[0].Packets + lines[1].Packets
	}
	return lost, of, nil
}

// clear ends what runs, and returns when no process, goroutine, interface or file of it is
// left.
func (l *Lab) clear() {
	for _, h := range l.hosts {
		h.kill() // all of them first: closing waits for each
	}
	for _, h := range l.hosts {
		h.close()
	}
	l.journal.close()
	for _, f := range l.outs {
		f.close()
	}
	l.net.close()
}
