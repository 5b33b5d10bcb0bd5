package lab

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needLab skips a test that boots hosts, which takes a minute of two cores.
func needLab(t *testing.T) {
	t.Helper()
	if os.Getenv("KVFERRY_LAB") != "1" {
		t.Skip("boots hosts in QEMU: set KVFERRY_LAB=1 to run it")
	}
	if err := Check(""); err != nil {
		t.Skipf("KVFERRY_LAB=1, but %v", err)
	}
}

// lines collects what a lab prints.
type lines struct{ strings.Builder }

func (l *lines) has(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(l.String(), w) {
			t.Errorf("no %q in\n%s", w, l.String())
		}
	}
}

// TestPingAndFaults: two hosts reach each other on both NICs and have an active
// RDMA device on each; a pulled cable takes the carrier away; files come back.
func TestPingAndFaults(t *testing.T) {
	needLab(t)
	var out lines
	dir := t.TempDir()
	waits := make(chan struct{}, 1)
	l, err := Start(t.Context(), Config{
		Delay: 30 * time.Millisecond, Rate: 50e6, Timeout: 2 * time.Minute, Out: dir, Env: []string{"GREETING=it's $HOME"},
		Stdout: &out, Stderr: &out,
		OnLine: func(l Line) {
			if l.Host == 1 && l.Text == "PULL" {
				waits <- struct{}{}
			}
		},
		Command: []string{"sh", "-c", `
			echo "$GREETING" | tee "$KVFERRY_LAB_OUT/greeting"; echo oops >/dev/stderr; rdma link
			eval "other=\$KVFERRY_LAB_PEER_$((3 - KVFERRY_LAB_HOST))_1"
			ping -c 3 -W 5 "$KVFERRY_LAB_PEER" && ping -c 3 -W 5 "$other" || exit 9
			[ "$KVFERRY_LAB_HOST" = 1 ] || exit 3
			echo PULL
			until [ "$(cat /sys/class/net/eth1/carrier)" = 0 ]; do sleep 0.1; done; echo "eth0 $(cat /sys/class/net/eth0/carrier)"
			exit 4`},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	select {
	case <-waits:
		if err := l.SetLink(1, 1, false); err != nil {
			t.Error(err)
		}
	case <-l.done:
	}
	r, err := l.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode() != 4 || r.Hosts[1].ExitCode != 3 {
		t.Errorf("%+v", r)
	}
	out.has(t, "host1| it's $HOME", "host2| oops", "host2| link rxe1/1 state ACTIVE", "3 packets received, 0% packet loss", "host1| eth0 1")
	if strings.Contains(out.String(), "time=5.") {
		t.Errorf("a round trip takes 60 ms:\n%s", out.String())
	}
	if text, err := os.ReadFile(filepath.Join(dir, "host2", "greeting")); err != nil || string(text) != "it's $HOME\n" {
		t.Errorf("%q, %v", text, err)
	}
	t.Logf("boot %v, command %v", r.Boot, r.Command)
}

// TestDeaths: a host that a fault kills does not count, one that panics does.
func TestDeaths(t *testing.T) {
	needLab(t)
	fault, err := ParseFault("after=UP:0s:kill:2")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{
		NICs: 1, Timeout: 2 * time.Minute, Faults: []Fault{fault},
		Command: []string{"sh", "-c", `[ "$KVFERRY_LAB_HOST" = 2 ] && echo UP && exec sleep 1000; while ping -c 1 -W 1 "$KVFERRY_LAB_PEER"; do sleep 0.2; done; exit 0`},
	})
	if err != nil || r.ExitCode() != 0 || !r.Hosts[1].Killed || r.Hosts[0].Killed {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = Run(t.Context(), Config{
		Hosts: 1, NICs: 1, Timeout: 2 * time.Minute, Command: []string{"sh", "-c", "echo c >/proc/sysrq-trigger"},
	})
	if !errors.Is(err, ErrPanic) || !strings.Contains(err.Error(), "host1 died without reporting") || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("%v: want what the kernel said", err)
	}
	_, err = Run(t.Context(), Config{Hosts: 1, NICs: 1, Timeout: 20 * time.Second, Command: []string{"sleep", "1000"}})
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("%v, want a timeout", err)
	}
}
