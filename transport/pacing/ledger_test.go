package pacing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
)

type rail string

func (r rail) Addr() string { return string(r) }

// start is a pacer of 100 bytes a second that runs until the test's end. name is its rail's.
func start(t *testing.T, file, name string) *Pacer {
	t.Helper()
	p, err := New(Link{BytesPerSecond: 100}, file, clock.Std(), []rail{rail(name), rail(name + "/2")})
	if err != nil {
		t.Fatal(err)
	}
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		p.Run(stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-over
	})
	return p
}

// move begins one now, and returns when it was over by the test's clock.
func move(t *testing.T, p *Pacer, n int64, in bool, peer string) <-chan time.Time {
	t.Helper()
	d, err := p.Move(p.network.clock.Now(), 0, n, in, peer)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan time.Time, 1)
	if !d.Held(func() { over <- time.Now() }) {
		t.Fatal("over at once")
	}
	return over
}

// TestLedger: pacers that have never met, and whose clocks began at other times, share the NIC of a
// fourth that moves nothing, each way by itself.
func TestLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "ledger")
		begin := time.Now()
		a := start(t, file, "a")
		<-time.After(time.Second)
		b := start(t, file, "b")
		c := start(t, file, "c")
		start(t, file, "d")

		into := []<-chan time.Time{move(t, a, 100, false, "d"), move(t, b, 50, false, "d/2")}
		out := move(t, c, 100, true, "d")
		alone := move(t, c, 100, true, "nobody's") // it leaves half of c's way in to the other
		<-time.After(500 * time.Millisecond)
		late := move(t, c, 25, false, "d")
		// Into d: 50/s each for 0.5 s; then 33.3/s each until 25 more bytes of b and those of c are
		// there at 1.25 s; then a's 50 that are left, alone, until 1.75 s.
		for i, want := range []time.Duration{1750, 1250, 2000, 2000, 1250} {
			at := []<-chan time.Time{into[0], into[1], out, alone, late}[i]
			if took := (<-at).Sub(begin) - time.Second; took < want*time.Millisecond || took > want*time.Millisecond+time.Microsecond {
				t.Errorf("move %d took %v, want %v", i, took, want*time.Millisecond)
			}
		}

		// Another file is another network.
		e := start(t, filepath.Join(t.TempDir(), "ledger"), "e")
		began := time.Now()
		one, other := move(t, a, 100, false, "d"), move(t, e, 100, false, "d")
		if took := [2]time.Duration{(<-one).Sub(began), (<-other).Sub(began)}; took[0] > 1001*time.Millisecond || took[1] > 1001*time.Millisecond {
			t.Errorf("moves of two networks took %v", took)
		}

		// What is long over holds nobody back that comes later.
		f := start(t, file, "f")
		began = time.Now()
		if took := (<-move(t, f, 100, false, "d")).Sub(began); took > 1001*time.Millisecond {
			t.Errorf("a move alone took %v", took)
		}
	})
}

// TestLedgerFaults: a file that is none is left as it is, and one that turns bad fails what comes.
func TestLedgerFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	const text = "a letter\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Link{BytesPerSecond: 100}, file, clock.Std(), []rail{"a"}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p := start(t, file, "a")
	if err := os.WriteFile(file, []byte(strings.Repeat(text, 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Move(0, 0, 100, false, "b"); err == nil {
		t.Error("a move over a network that cannot be read")
	}
}

// TestLedgerTurnsBad: what is in the file before the line that is none counts once, however often
// it is read.
func TestLedgerTurnsBad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	a, b := start(t, file, "a"), start(t, file, "b")
	if _, err := b.Move(0, 0, 100, false, "a"); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("half a li\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := a.Move(0, 0, 100, false, "b"); err == nil || !strings.Contains(err.Error(), "half a li") {
			t.Errorf("a move over a network that cannot be read: %v", err)
		}
		a.network.mu.Lock()
		if got := a.rx[0].Bytes(); got != 100 {
			t.Errorf("%v bytes have come, want 100", got)
		}
		a.network.mu.Unlock()
	}
}

// TestLedgerCut: a move that the file lost is an error, and not one that never ends.
func TestLedgerCut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	p := start(t, file, "a")
	if _, err := p.Move(0, 0, 100, false, "b"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Move(0, 0, 100, false, "b"); err == nil || !strings.Contains(err.Error(), "somebody has cut the file") {
		t.Errorf("a move that nobody knows of: %v", err)
	}
}
