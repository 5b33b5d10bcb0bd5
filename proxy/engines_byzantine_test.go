package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/proxy/upstream"
	"kvferry/proxy/upstream/upstreamtest"
)

// listenByzantine serves an engine at an address of its own until the test ends.
func listenByzantine(t *testing.T, b *upstreamtest.Byzantine) (url string, end func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { b.Serve(conn) })
		}
	})
	return "http://" + l.Addr().String(), func() {
		l.Close()
		served.Wait()
	}
}

// engineTime is the time that a request has. Half of it an engine may be silent.
const engineTime = 4 * time.Second

// runEngineProxy runs a proxy of these engines, and returns where it listens: here, or as the program KVFERRY_PROXY.
func runEngineProxy(t *testing.T, u upstream.URLs) (addr string, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if program := os.Getenv("KVFERRY_PROXY"); program != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr = l.Addr().String()
		l.Close()
		cmd := exec.CommandContext(ctx, program, "--http", addr, "--request-timeout", engineTime.String(), "--lease-ttl", "150ms", "--placement", "round-robin")
		for flag, urls := range map[string][]string{"--upstream-prefill": u.Prefill, "--upstream-decode": u.Decode, "--upstream": u.Both, "--upstream-bootstrap": u.Bootstrap} {
			if len(urls) > 0 {
				cmd.Args = append(cmd.Args, flag, strings.Join(urls, ","))
			}
		}
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", program, err)
			}
		})
	} else {
		p, err := New(Config{HTTPAddr: "127.0.0.1:0", Upstreams: u, RequestTimeout: engineTime, LeaseTTL: 150 * time.Millisecond, Placement: "round-robin", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		addr = p.HTTPAddr()
		running.Go(func() { _ = p.Run(ctx) })
	}
	return addr, func() {
		cancel()
		running.Wait()
	}
}

// TestByzantineEngines: byzantine engines behind a whole proxy, over TCP. KVFERRY_PROXY has it be another process.
func TestByzantineEngines(t *testing.T) {
	log.SetOutput(io.Discard) // net/http's, of what comes on idle connections
	defer log.SetOutput(os.Stderr)
	slots := make(chan struct{}, 16)
	var all sync.WaitGroup
	var mu sync.Mutex
	right, failed := 0, 0
	for seed := range min(clocktest.Seeds(t, 12), 200) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			a, b := engineWorld(t, seed)
			mu.Lock()
			defer mu.Unlock()
			right, failed = right+a, failed+b
		})
	}
	all.Wait()
	t.Logf("%d requests answered, %d ended with an error", right, failed)
}

// engineWorld is one proxy with its engines and clients.
func engineWorld(t *testing.T, seed int) (right, failed int) {
	s, r := upstreamtest.SettingOf(seed)
	urls := make(map[string]string)
	for name, b := range s.Engines(r) {
		url, end := listenByzantine(t, b)
		defer end()
		urls[name] = url
	}
	addr, end := runEngineProxy(t, urlsOfSetting(s, func(name string) string { return urls[name] }))
	defer end()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := &http.Client{Transport: transport}
	clocktest.Until(t, "the proxy is ready", func() bool {
		resp, err := c.Get("http://" + addr + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	var clients sync.WaitGroup
	var mu sync.Mutex
	for i := range s.Clients {
		clients.Go(func() {
			for round := range 2 {
				ok, err := askEngines(c, addr, s, 2*i+round)
				if err != nil {
					t.Errorf("%v, client %d: %v", s, i, err)
				}
				mu.Lock()
				if ok {
					right++
				} else {
					failed++
				}
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return right, failed
}

// askEngines asks for one answer. What is no clear end of it is an error.
func askEngines(c *http.Client, addr string, s upstreamtest.Setting, i int) (right bool, err error) {
	path, body, want := s.Request(i)
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		return false, err
	}
	start := time.Now()
	resp, err := c.Do(q)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	answer, broken := io.ReadAll(resp.Body)
	if took := time.Since(start); took > engineTime+5*time.Second {
		return false, fmt.Errorf("it took %v", took)
	}
	if resp.StatusCode != http.StatusOK {
		if !strings.Contains(string(answer), `"message":`) || resp.StatusCode < 400 || len(resp.Header.Get("Retry-After")) > 4 {
			return false, fmt.Errorf("no clear error: %d %v %s", resp.StatusCode, resp.Header, answer)
		}
		return false, nil
	}
	text, whole, err := upstreamtest.TextOf(string(answer), s.Stream)
	switch {
	case err != nil:
		return false, err
	case whole && broken == nil && text == want:
		return true, nil
	case broken == nil:
		return false, fmt.Errorf("the text is %q, want %q; ended %v", text, want, whole)
	case !strings.Contains(string(answer), `data: {"error":`):
		return false, fmt.Errorf("it breaks off without an error: %s", answer)
	case !strings.HasPrefix(want, text) && !s.Misplaces():
		return false, fmt.Errorf("the text until the error is %q, want %q", text, want)
	}
	return false, nil
}

// urlsOfSetting are the URLs of a setting's engines, where at says each is.
func urlsOfSetting(s upstreamtest.Setting, at func(name string) string) upstream.URLs {
	u := upstream.URLs{Prefill: []string{at("p0"), at("p1")}, Decode: []string{at("d0"), at("d1")}}
	switch s.Mode {
	case "alone":
		u = upstream.URLs{Both: u.Decode}
	case "layerwise":
		u.Bootstrap = u.Prefill
	}
	return u
}
