package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// ErrTimeout is the error of a lab that took longer than its Timeout.
var ErrTimeout = errors.New("timeout")

// ErrPanic is the error of a lab in which a host's kernel gave up. No program can
// make a sound kernel do that: under plain emulation it was seen twice in a hundred
// boots or so, in code that has nothing to do with the command.
var ErrPanic = errors.New("kernel panic")

// HostResult is how a host's command ended.
type HostResult struct {
	ExitCode int  // 128 plus a signal's number, if one ended it
	Killed   bool // the host, by a fault; ExitCode is then 137
	Stopped  bool // by the lab, since the command of Until was over
}

// Result is how a lab ended.
type Result struct {
	Hosts   []HostResult
	Boot    time.Duration // from Start until all hosts were let off
	Command time.Duration // from then until the last one that counts was over

	Until int // of the Config
}

// ExitCode is the exit status of host Until. Without Until it is the first one other
// than 0, from host 1 on; hosts that were killed do not count.
func (r *Result) ExitCode() int {
	if r.Until > 0 {
		return r.Hosts[r.Until-1].ExitCode
	}
	for _, h := range r.Hosts {
		if h.ExitCode != 0 && !h.Killed {
			return h.ExitCode
		}
	}
	return 0
}

// A Lab is hosts that run a command, from Start to Close. Its methods may be called from
// any goroutine, and after its end: then Kill does nothing, and SetLink fails.
type Lab struct {
	// All of these are set before Start returns, and stay as they are.
	cfg    Config // with defaults
	cancel context.CancelFunc
	hosts  []*host
	hub    sync.WaitGroup
	ports  []net.Conn // the hub's; none between two hosts

	out    *Printer
	faults *Schedule

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

// Start boots the hosts and returns when all of them run the command. The lab
// ends with ctx, or with its Timeout, which counts from here. If Start fails, all that
// it began has ended. The error is a [config.Invalid] where cfg is wrong.
func Start(ctx context.Context, cfg Config) (*Lab, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := Check(cfg.Cache); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	folder, err := CacheFolder(cfg.Cache, cacheName)
	if err != nil {
		return nil, err
	}
	k, err := cachedKernel(folder)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%w: the lab is not over after %v", ErrTimeout, cfg.Timeout))
	l := &Lab{cfg: cfg, cancel: cancel, faults: NewSchedule(cfg.Faults), done: make(chan struct{})}
	l.out = &Printer{Stdout: cfg.Stdout, Stderr: cfg.Stderr, Log: cfg.Log, OnLine: cfg.OnLine, Faults: l.faults}
	if err := l.boot(ctx, k); err != nil {
		l.clear()
		cancel()
		return nil, err
	}
	l.result = &Result{Hosts: make([]HostResult, cfg.Hosts), Boot: time.Since(began), Until: cfg.Until}
	for _, h := range l.hosts {
		h.Tell("go")
	}
	l.out.Note("%s up after %.1f s, running %s", count(cfg.Hosts, "host"), l.result.Boot.Seconds(), cfg.Command[0])
	go func() {
		defer close(l.done)
		defer cancel()
		var faults sync.WaitGroup
		faultCtx, endFaults := context.WithCancel(ctx)
		faults.Go(func() {
			l.faults.Run(faultCtx, l.inflict, func(f Fault) { l.out.Note("fault %s did not happen: the lab was over", f) })
		})
		started := time.Now()
		l.err = l.follow(ctx)
		l.result.Command = time.Since(started)
		endFaults()
		l.clear()     // first: a fault under way may wait for a monitor that clear closes
		faults.Wait() // before done is closed: no line is printed after Wait has returned
	}()
	return l, nil
}

// Wait returns when the lab is over and cleared away. A command's exit status is
// no error; a host that ended without one is, unless a fault killed it. The result
// is there even so, with what is known.
func (l *Lab) Wait() (*Result, error) {
	<-l.done
	return l.result, l.err
}

// Close ends the lab, if it runs, and returns when it is cleared away. Wait then returns
// context.Canceled with the states of the hosts, if their commands had not ended. It may
// be called more than once.
func (l *Lab) Close() {
	l.cancel()
	<-l.done
}

// Kill cuts the power of a host. Its peers see silence, no closed connections.
func (l *Lab) Kill(host int) error {
	if err := (Fault{Action: Kill, Host: host}).Validate(l.cfg.Hosts, l.cfg.NICs, Actions); err != nil {
		return err
	}
	h := l.hosts[host-1]
	// A command that has ended keeps its exit status.
	if !IsOver(h) {
		h.killed.Store(true)
	}
	h.kill()
	return nil
}

// SetLink pulls the cable of a host's NIC, or plugs it in. The host sees the
// carrier go; packets are lost in both directions. It returns when QEMU has done so.
func (l *Lab) SetLink(host, nic int, up bool) error {
	if err := (Fault{Action: LinkUp, Host: host, NIC: nic}).Validate(l.cfg.Hosts, l.cfg.NICs, Actions); err != nil {
		return err
	}
	return l.hosts[host-1].setLink(nic, up)
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// boot returns when all hosts wait to be let off.
func (l *Lab) boot(ctx context.Context, k kernel) error {
	// 130 random bits, so that no output can hold it by chance or be made to.
	token := "kvferry-lab-" + rand.Text()
	img, err := l.cfg.buildImage(ctx, k, token)
	if err != nil {
		return err
	}
	l.out.Note("booting %s, kernel %s, initramfs %.1f MB", count(l.cfg.Hosts, "host"), k.release, float64(len(img.initrd))/1e6)
	initrd, err := memoryFile(img.initrd)
	if err != nil {
		return err
	}
	defer initrd.Close()
	nics, err := l.connect()
	if err != nil {
		return err
	}
	for i := range l.cfg.Hosts {
		h, err := l.cfg.startHost(i+1, img, initrd, nics[i], token, l.out.Print)
		if err != nil {
			for _, rest := range nics[i+1:] {
				closeAll(rest) // startHost has closed its own
			}
			return err
		}
		l.hosts = append(l.hosts, h)
	}
	for _, h := range l.hosts {
		select {
		case <-h.ready:
		case <-h.over:
			return h.died()
		case <-ctx.Done():
			return fmt.Errorf("%w while %s booted; %s", context.Cause(ctx), hostname(h.number), h.postMortem())
		}
	}
	return nil
}

func closeAll[C io.Closer](all []C) {
	for _, c := range all {
		c.Close()
	}
}

// connect makes the networks, and returns the ends of each host, by host and NIC, for
// the caller to close. Our ends of hubs' ports are in l.ports, for clear.
func (l *Lab) connect() (ends [][]*os.File, err error) {
	ends = make([][]*os.File, l.cfg.Hosts)
	defer func() {
		if err != nil {
			for _, of := range ends {
				closeAll(of)
			}
		}
	}()
	for nic := range l.cfg.NICs {
		if l.cfg.Hosts == 2 {
			a, b, err := cable()
			if err != nil {
				return ends, err
			}
			ends[0], ends[1] = append(ends[0], a), append(ends[1], b)
			continue
		}
		var ports []net.Conn
		for i := range ends {
			ours, theirs, err := channel()
			if err != nil {
				closeAll(ports)
				return ends, err
			}
			ports = append(ports, ours)
			ends[i] = append(ends[i], theirs)
		}
		owners := make(map[[6]byte]int)
		for i := range ends {
			address, err := net.ParseMAC(mac(i+1, nic))
			if err != nil {
				closeAll(ports)
				return ends, err
			}
			owners[[6]byte(address)] = i
		}
		l.ports = append(l.ports, ports...)
		l.hub.Go(func() {
			runHub(ports, func(mac [6]byte) int {
				if port, known := owners[mac]; known {
					return port
				}
				return -1
			})
		})
	}
	return ends, nil
}

// follow has the hosts run to their end, and writes their results.
func (l *Lab) follow(ctx context.Context) error {
	return Follow(ctx, l.hosts, l.cfg.Until, l.result.Hosts, func(running []*host) {
		l.out.Note("%s did not end within %v of SIGTERM", count(len(running), "command"), StopGrace)
	})
}

// clear ends what runs, and returns when no process, goroutine or file of it is left.
func (l *Lab) clear() {
	for _, h := range l.hosts {
		h.kill() // all of them first: closing waits for each
	}
	for _, h := range l.hosts {
		h.close()
	}
	closeAll(l.ports)
	l.hub.Wait()
}

// inflict makes a fault happen.
func (l *Lab) inflict(f Fault) {
	var err error
	if f.Action == Kill {
		err = l.Kill(f.Host)
	} else {
		err = l.SetLink(f.Host, f.NIC, f.Action == LinkUp)
	}
	if err != nil {
		l.out.Note("fault %s failed: %v", f, err)
		return
	}
	l.out.Note("fault %s", f)
}
