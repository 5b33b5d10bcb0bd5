package rail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"kvferry/bench/stats"
)

// A blocking is a TCP socket that blocks its thread, as in a C program: the runtime's poller
// has nothing to do with it. Its user holds the thread.
type blocking struct{ *os.File }

// block takes a connection from the runtime's poller.
func block(c *net.TCPConn) (*blocking, error) {
	defer c.Close()
	f, err := c.File() // the same socket, another number
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	err = syscall.SetNonblock(fd, false) // which a File leaves alone from then on
	return &blocking{os.NewFile(uintptr(fd), c.RemoteAddr().String())}, err
}

// end wakes whoever reads or writes.
func (b *blocking) end() { _ = syscall.Shutdown(int(b.Fd()), syscall.SHUT_RDWR) }

// trade writes out and reads all of in, or the other way round.
func (b *blocking) trade(out, in []byte, readFirst bool) (err error) {
	for range 2 {
		if readFirst {
			_, err = io.ReadFull(b, in)
		} else {
			_, err = b.Write(out)
		}
		if err != nil {
			return err
		}
		readFirst = !readFirst
	}
	return nil
}

// serveBare answers pings of one client.
func serveBare(host string, s ReferenceShape) (*ReferenceServer, error) {
	lis, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	accepted, ended := make(chan *blocking, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(accepted)
		c, err := lis.Accept()
		if err != nil {
			return // closed
		}
		b, err := block(c.(*net.TCPConn))
		if err != nil {
			return
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		accepted <- b
		for i := 0; answer(b, s, i) == nil; i++ {
		}
	}()
	return &ReferenceServer{Addr: lis.Addr().String(), close: func() error {
		err := lis.Close()
		if b := <-accepted; b != nil {
			b.end()
			<-ended
			_ = b.Close()
		}
		<-ended
		return err
	}}, nil
}

// answer is the target's part of the i-th ping: it reads before it writes.
func answer(b *blocking, s ReferenceShape, i int) error {
	one := make([]byte, 1)
	if s.Read {
		return b.trade(s.Memory(i), one, true)
	}
	return b.trade(one, s.Memory(i), true)
}

// ping is the initiator's part.
func ping(b *blocking, s ReferenceShape, i int) error {
	one := make([]byte, 1)
	if s.Read {
		return b.trade(one, s.Memory(i), false)
	}
	return b.trade(s.Memory(i), one, false)
}

// pingFor is the initiator's end. A tenth of the time is for warming up.
func pingFor(ctx context.Context, host, addr string, s ReferenceShape, d time.Duration) (ReferenceFigures, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if ip := net.ParseIP(host); ip != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: ip} // out by the rail's NIC
	}
	c, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return ReferenceFigures{}, err
	}
	b, err := block(c.(*net.TCPConn))
	if err != nil {
		return ReferenceFigures{}, err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(ended); b.end() })
	defer func() {
		if !stop() {
			<-ended
		}
		_ = b.Close()
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var h stats.Histogram
	begun := time.Now()
	i, open := 0, begun
	for now := begun; ; i++ {
		if err := ping(b, s, i); err != nil {
			return ReferenceFigures{}, errors.Join(fmt.Errorf("the target at %s: %w", addr, err), ctx.Err())
		}
		took := time.Since(now)
		now = now.Add(took)
		if now.Sub(begun) < d/10 {
			open = now
			continue
		}
		h.Add(took)
		if now.Sub(open) >= d {
			f := ReferenceFigures{Of: "a ping of blocking sockets, confirmed", Samples: int64(h.Count()), GBps: float64(int64(h.Count())*s.Block) / now.Sub(open).Seconds() / 1e9}
			f.P50US, f.P99US, f.P999US = percentileUS(&h, 50), percentileUS(&h, 99), percentileUS(&h, 99.9)
			return f, nil
		}
	}
}

// percentileUS is a percentile in microseconds. One without a sample beyond it is none: it would
// be the greatest that came along.
func percentileUS(h *stats.Histogram, p float64) Rank {
	if stats.Beyond(int64(h.Count()), p) < 1 {
		return nil
	}
	us := float64(h.Percentile(p)) / 1e3
	return &us
}
