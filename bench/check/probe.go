package check

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

	"kvferry/bench/pattern"
)

const (
	tokenBytes  = 16
	leastProbe  = tokenBytes + 8 // and its number
	mostProbe   = 65507          // bytes of a datagram over IPv4
	mostPacket  = 65535
	echoFor     = 30 * time.Second // that an echo lives without a probe
	probesAhead = 16               // probes under way
	// Probes under way fit into a socket's buffer, of which the kernel counts 212 KB by default and a
	// packet twice: what it drops itself is not lost on the way.
	bytesAhead = 48 << 10
	smallProbe = 128 // bytes of a packet that every path carries
)

// An echo sends probes back to who knows its token, so that nobody else has it send anything.
type echo struct {
	Addr  string `json:"addr"`
	Token []byte `json:"token"`

	conn  net.PacketConn
	ended chan struct{}
}

// serveEcho echoes at an address until nothing has come for a while, or it is closed.
func serveEcho(host string) (*echo, error) {
	lc := net.ListenConfig{Control: whole}
	conn, err := lc.ListenPacket(context.Background(), "udp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	e := &echo{Addr: conn.LocalAddr().String(), Token: make([]byte, tokenBytes), conn: conn, ended: make(chan struct{})}
	rand.Read(e.Token) // never fails
	go func() {
		defer close(e.ended)
		defer conn.Close()
		buf := make([]byte, mostProbe)
		for {
			_ = conn.SetReadDeadline(time.Now().Add(echoFor))
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

func (e *echo) close() {
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

// probe sends n packets of so many bytes from an address to an echo, a few under way at a time,
// and counts those that come back within the time.
func probe(ctx context.Context, from string, to echo, packet, n int, timeout time.Duration) Probes {
	p := Probes{Size: packet}
	ip := net.ParseIP(from)
	length := packet - overhead(ip)
	if ip == nil || length < leastProbe || length > mostProbe {
		p.Error = fmt.Sprintf("no probe of %d bytes from %q", packet, from)
		return p
	}
	d := net.Dialer{Control: whole, LocalAddr: &net.UDPAddr{IP: ip}, Timeout: timeout}
	conn, err := d.DialContext(ctx, "udp", to.Addr)
	if err != nil {
		p.Error = err.Error()
		return p
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	back := make(chan struct{}, n)
	var wrong, right atomic.Int64
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
			if got != length || pattern.Differs(buf[leastProbe:got], at, 0) >= 0 {
				wrong.Add(1)
			}
			right.Add(1)
			back <- struct{}{}
		}
	}()
	buf := make([]byte, length)
	copy(buf, to.Token)
	under, ahead := 0, min(max(bytesAhead/packet, 1), probesAhead)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		for ; under >= ahead; under-- {
			t := time.NewTimer(timeout)
			select {
			case <-back:
			case <-t.C: // lost
			}
			t.Stop()
		}
		binary.BigEndian.PutUint64(buf[tokenBytes:], uint64(i))
		pattern.Fill(buf[leastProbe:], uint64(i), 0)
		p.Sent++
		if _, err := conn.Write(buf); err != nil {
			p.Error = err.Error() // larger than a frame, or refused
			continue
		}
		under++
		if i == 2*probesAhead && right.Load() == 0 {
			break // none gets through
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	for got := int(right.Load()); got < p.Sent && ctx.Err() == nil; got = int(right.Load()) {
		select {
		case <-back:
			continue
		case <-heard:
		}
		break
	}
	_ = conn.SetReadDeadline(time.Now())
	<-heard
	p.Back, p.Wrong = int(right.Load()), int(wrong.Load())
	return p
}
