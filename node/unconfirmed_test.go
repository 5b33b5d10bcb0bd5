package node

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestUnconfirmed loses the connection of a layerwise transfer when everything has
// arrived, the immediate with the last bytes, and nothing is acknowledged. The question
// whether it has come finds the window of a transfer closed that is over: nothing has failed.
func TestUnconfirmed(t *testing.T) {
	// The rail advertises the gate's address, and listens at the same port beside it.
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer lis.Close()
	s := startNodes(t, handoff.Layerwise.Name, func(c *Config) {
		c.Profile.KVGeometry.Layers = 1
		if c.Role == proto.Role_ROLE_DECODE {
			c.Rails = []string{"127.0.0.2:" + port + "?advertise=" + lis.Addr().String()}
		}
	}, "prefill-0", "decode-0")
	defer s.end()

	cut := make(chan struct{})
	all.Go(func() { welcomeFirst(t, lis, "127.0.0.2:"+port, cut) })

	answer := make(chan int, 1)
	go func() {
		_, status := s.text(1, 16, 4)
		answer <- status
	}()
	prefill, decode := s.nodes["prefill-0"].daemon, s.nodes["decode-0"].daemon
	s.until("the layer to arrive, and the window to be closed", func() bool {
		return decode.kv.Rails()[0].ImmIn == 1 && decode.kv.Left().Grants == 0
	})
	close(cut)
	if status := clocktest.Receive(t, answer, "the answer"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	s.until("both nodes to be idle", func() bool {
		left := 0
		for _, n := range s.nodes {
			s.onLoop(n.daemon.w, func() { left += len(n.daemon.w.live) })
		}
		return left == 0
	})
	if st := prefill.kv.Rails()[0]; st.Retries != 0 || st.Errors != 2 || st.Posted != 2 {
		t.Errorf("the immediate was not lost, asked after and refused: %+v", st)
	}
	for _, n := range s.nodes {
		s.onLoop(n.daemon.w, func() {
			if got := n.daemon.w.core.Totals(); got.Failed != 0 || got.Transfers != 1 {
				t.Errorf("%s: %+v: want one transfer, and none failed", n.daemon.cfg.ID, got)
			}
		})
	}
}

// welcomeFirst passes connections to lis on until it is closed. Of the first one's answers only
// the welcome passes; it is cut when cut is closed.
func welcomeFirst(t *testing.T, lis net.Listener, addr string, cut <-chan struct{}) {
	var all sync.WaitGroup
	defer all.Wait()
	for first := true; ; first = false {
		c, err := lis.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", addr)
		if err != nil {
			t.Error(err)
			c.Close()
			return
		}
		all.Go(func() {
			_, _ = io.Copy(to, c)
			to.Close()
		})
		all.Go(func() {
			defer c.Close()
			if !first {
				_, _ = io.Copy(c, to)
				return
			}
			_, _ = io.CopyN(c, to, 16) // a welcome, see package transport/socket
			<-cut
			to.Close()
		})
	}
}
