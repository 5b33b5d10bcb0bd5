package connection

import (
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock/clocktest"
)

// A scripted listener answers Accept as it is told, and is closed then.
type scripted struct {
	net.Listener
	script []error // nil: a connection
	conn   net.Conn
}

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.script) == 0 {
		return nil, net.ErrClosed
	}
	err := s.script[0]
	s.script = s.script[1:]
	if err != nil {
		return nil, err
	}
	return s.conn, nil
}

// TestAcceptBacksOff: where connections cannot be accepted it is tried ten times a second, and goes on
// once they can. The log says so once.
func TestAcceptBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &clocktest.Log{}
		a := NewAdmission(AdmissionConfig{Rail: "tcp/lo", Logger: slog.New(slog.NewTextHandler(log, nil))})
		conn, other := net.Pipe()
		defer other.Close()
		defer conn.Close()
		full := os.NewSyscallError("accept4", syscall.EMFILE)
		ln := &scripted{script: append(slices.Repeat([]error{full}, 5), nil, nil), conn: conn}
		served, began := 0, time.Now()
		a.Accept(ln, func(c net.Conn) {
			if c != conn {
				t.Error("another connection")
			}
			served++
		})
		if served != 2 {
			t.Errorf("%d connections were served, want 2", served)
		}
		if d := time.Since(began); d != 5*acceptAgain {
			t.Errorf("five failures took %v, want %v each", d, acceptAgain)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "too many open files") {
			t.Errorf("the log: %s", text)
		}
	})
}
