package cluster

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvferry/node"
	"kvferry/proxy"
)

// raw sends text over a connection from an address of the loopback network, and reads
// nothing.
func (c *testCluster) raw(from, text string, times int) net.Conn {
	c.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	// Before it connects, or the window it has announced stays.
	d.Control = func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
	}
	conn, err := d.Dial("tcp", strings.TrimPrefix(c.URL(), "http://"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if times == 1 {
		if _, err := io.WriteString(conn, text); err != nil {
			c.t.Fatal(err)
		}
		return conn
	}
	go func() {
		for range times {
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
		}
	}()
	return conn
}

func post(path, body string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, length, body)
}

// TestSlowBodies: four times as many requests as may wait are being sent, a byte of each.
// Twenty of twenty others are served beside them, from their address and from another.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	const queue = 64
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{}), Proxy: proxy.Config{MaxQueue: queue}, Node: node.Config{KVBlocks: 256}})
	pending := func() float64 { return c.metric(`kvferry:connections{state="pending"}`) }
	before := pending()
	for range 4 * queue {
		c.raw("127.0.0.1", post("/v1/completions", "{", 100), 1)
	}
	c.poll("the slow requests to be there", func() bool { return pending() >= before+4*queue })
	for i := range 20 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%2))}}
		other := &testCluster{Cluster: c.Cluster, t: t, http: &http.Client{Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}}
		other.do(call{Prompt: prompt(i, 32), MaxTokens: 4}).expect(t, 4)
	}
	if waiting := c.metric(`kvferry:requests{state="waiting"}`); waiting != 0 {
		t.Errorf("%v requests wait: a body that is not there yet counts", waiting)
	}
}

// TestUnreadAnswers: three clients of each kind that ask and read nothing are given up.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{}), Proxy: proxy.Config{RequestTimeout: 10 * time.Second}, Node: node.Config{KVBlocks: 256}})
	c.http.CloseIdleConnections()
	proxy := c.Process("proxy")
	before := descriptors(t, proxy)
	ids := `{"tokens":[1` + strings.Repeat(",1", 20_000) + `]}`
	text := `{"prompt":"` + strings.Repeat("!", 20_000) + `"}`
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	stream := `{"prompt":[1,2,3],"max_tokens":4000,"stream":true,"ignore_eos":true}`
	for _, request := range []struct {
		text  string
		times int // more of an answer than the kernel keeps
	}{
		{post("/detokenize", ids, len(ids)), 60},
		{post("/tokenize", text, len(text)), 60},
		{get("/metrics"), 500},
		{post("/v1/completions", stream, len(stream)), 20},
	} {
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { c.raw("127.0.0.1", request.text, request.times) })
		}
		all.Wait()
	}
	c.poll("all 12 connections to be closed", func() bool {
		c.http.CloseIdleConnections()
		return descriptors(t, proxy) <= before
	})
}
