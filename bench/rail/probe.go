package rail

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

const (
	tokenBytes  = 16
	leastProbe  = tokenBytes + 8 // and its number
	mostProbe   = 65507          // bytes of a datagram over IPv4
	mostPacket  = 65535
	probesAhead = 16 // probes under way
	// Probes under way fit into a socket's buffer, of which the kernel counts 212 KB by default and a
	// packet twice: what it drops itself is not lost on the way.
	bytesAhead = 48 << 10
	smallProbe = 128 // bytes of a packet that every path carries

	// How long a probe may take: until one has come back, and later at the least.
	firstProbe    = time.Second
	leastPatience = 100 * time.Millisecond
	// and when all are sent: then to wait for one that a busy machine is late with costs no other's time.
	lastPatience = time.Second
)

// An echo sends probes back to who knows its token, so that nobody else has it send anything.
type echo struct {
	Addr  string `json:"addr"`
	Token []byte `json:"token"`
}

// An echoServer is the end of an echo that answers.
type echoServer struct {
	echo
	conn  net.PacketConn
	ended chan struct{}
}

// serveEcho echoes at an address until it is closed.
func serveEcho(host string) (*echoServer, error) {
	lc := net.ListenConfig{Control: unfragmented}
	conn, err := lc.ListenPacket(context.Background(), "udp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	e := &echoServer{echo: echo{Addr: conn.LocalAddr().String(), Token: make([]byte, tokenBytes)}, conn: conn, ended: make(chan struct{})}
	rand.Read(e.Token) // never fails
	go func() {
		defer close(e.ended)
		defer conn.Close()
		buf := make([]byte, mostProbe)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if n >= leastProbe && string(buf[:tokenBytes]) == string(e.Token) {
				_, _ = conn.WriteTo(buf[:n], from) // what is lost is the other end's to count
			}
		}
	}()
	return e, nil
}

func (e *echoServer) close() {
	_ = e.conn.Close()
	<-e.ended
}

// overhead is what IP and UDP put before a datagram's bytes.
func overhead(ip net.IP) int {
	if ip.To4() != nil {
		return 20 + 8
	}
	return 40 + 8
}

// patienceOf is how long a probe may take to come back, of which the slowest so far took so long; 0
// is that none has come. That is of this rail's path, and with its queue: no other says it.
func patienceOf(slowest time.Duration) time.Duration {
	if slowest == 0 {
		return firstProbe
	}
	return max(leastPatience, 3*slowest)
}

// probe sends n packets of so many bytes from an address to an echo, a few under way at a time,
// and counts those that come back.
func probe(ctx context.Context, from string, to echo, packet, n int) Probes {
	p := Probes{Size: packet}
	ip := net.ParseIP(from)
	length := packet - overhead(ip)
	if ip == nil || length < leastProbe || length > mostProbe {
		p.Error = fmt.Sprintf("no probe of %d bytes from %q", packet, from)
		return p
	}
	d := net.Dialer{Control: unfragmented, LocalAddr: &net.UDPAddr{IP: ip}}
	conn, err := d.DialContext(ctx, "udp", to.Addr)
	if err != nil {
		p.Error = err.Error()
		return p
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	back := make(chan struct{}, n)
	var wrong, right, slowest atomic.Int64
	sent := make([]atomic.Int64, n) // when, from the start
	began := time.Now()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		seen, buf := make([]bool, n), make([]byte, mostProbe)
		for {
			got, err := conn.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
				return
			} else if err != nil {
				continue // the other end refused one: it is lost
			}
			if got < leastProbe {
				continue
			}
			at := binary.BigEndian.Uint64(buf[tokenBytes:])
			if at >= uint64(n) || seen[at] {
				continue
			}
			seen[at] = true
			if got != length || PatternDiffers(buf[leastProbe:got], at, 0) >= 0 {
				wrong.Add(1)
			}
			slowest.Store(max(slowest.Load(), int64(time.Since(began))-sent[at].Load()))
			right.Add(1)
			back <- struct{}{}
		}
	}()
	await := func(least time.Duration) bool {
		t := time.NewTimer(max(least, patienceOf(time.Duration(slowest.Load()))))
		defer t.Stop()
		select {
		case <-back:
			return true
		case <-t.C: // lost
		case <-ctx.Done():
		}
		return false
	}
	buf := make([]byte, length)
	copy(buf, to.Token)
	under, ahead := 0, min(max(bytesAhead/packet, 1), probesAhead)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		for ; under >= ahead; under-- {
			if !await(0) && right.Load() == 0 {
				under = -n // none gets through
			}
		}
		if under < 0 {
			break
		}
		binary.BigEndian.PutUint64(buf[tokenBytes:], uint64(i))
		FillPattern(buf[leastProbe:], uint64(i), 0)
		p.Sent++
		sent[i].Store(int64(time.Since(began)))
		if _, err := conn.Write(buf); err != nil {
			p.Error = err.Error() // larger than a frame, or refused
			continue
		}
		under++
	}
	for int(right.Load()) < p.Sent && under >= 0 && await(lastPatience) {
	}
	_ = conn.SetReadDeadline(time.Now())
	<-heard
	p.Back, p.Wrong = int(right.Load()), int(wrong.Load())
	return p
}
