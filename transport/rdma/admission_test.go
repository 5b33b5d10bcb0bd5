package rdma

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
)

// TestCrowd: strangers that take all places and do nothing more, before the greeting
// or after it, keep nobody out.
func TestCrowd(t *testing.T) {
	const conns, transfers = 16, 3
	for _, greet := range []bool{false, true} {
		log := &clocktest.Log{}
		p := newPairing(t, 1<<16, func(c *Config) {
			c.MaxConns, c.ConnsPerPeer, c.Logger = conns, conns, slog.New(slog.NewTextHandler(log, nil))
		})
		// The pairing has taken one of the places, and shows a key.
		if err := p.submit(t, transport.Write, transport.BatchOptions{}); err != nil {
			t.Fatal(err)
		}
		strangers := p.f.rail(t)
		defer strangers.Close()
		for range conns + 5 {
			if greet {
				if _, err := strangers.Dial(t.Context(), p.rb.Addr()); err != nil {
					t.Fatal(err)
				}
				continue
			}
			c, err := net.Dial("tcp", p.rb.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		if st := p.a.Rails()[0]; st.Dials != 1 {
			t.Errorf("greeting %v: a connection with a key was ended for one without: %+v", greet, st)
		}
		late := p.f.rail(t) // comes when all places are taken
		e, err := transport.New(transport.Config{Rails: []transport.Rail{late}})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		src, err := e.RegisterLocal("src", bytes.Repeat([]byte{9}, 1<<16), "cpu:0")
		if err != nil {
			t.Fatal(err)
		}
		tgt, err := e.Open(p.dst.Info())
		if err != nil {
			t.Fatal(err)
		}
		well := 0
		for range transfers {
			b := e.Submit(tgt, []transport.Request{{Local: src.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second})
			if <-b.Done(); b.Err() == nil {
				well++
			} else {
				t.Log(b.Err())
			}
		}
		if t.Logf("greeting %v: %d of %d transfers beside %d strangers", greet, well, transfers, conns+5); well != transfers {
			t.Error("strangers keep others out")
		}
		if !strings.Contains(log.String(), "no room for a connection") {
			t.Errorf("the log does not say so: %s", log.String())
		}
	}
}
