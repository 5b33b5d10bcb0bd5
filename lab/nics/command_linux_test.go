package nics

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/lab"
)

// run runs a shell on both hosts and returns what they and the lab printed.
func run(t *testing.T, cfg Config, script string) (*Result, string, error) {
	t.Helper()
	needLab(t)
	var out strings.Builder
	cfg.Command = []string{"sh", "-c", script}
	cfg.Stdout, cfg.Stderr, cfg.Log = &out, &out, &out
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * patience
	}
	if len(cfg.Rates) == 0 {
		cfg.Rates = []int64{1e9}
	}
	r, err := Run(t.Context(), cfg)
	return r, out.String(), err
}

func has(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

// TestHost: what a command finds: its host's name, processes, NICs and folder, and
// its peer over every NIC.
func TestHost(t *testing.T) {
	dir := t.TempDir()
	r, out, err := run(t, Config{Rates: []int64{1e9, 5e8}, Out: dir, Env: []string{"GREETING=it's $HOME"}}, `
		echo "$GREETING" | tee "$KVFERRY_LAB_OUT/greeting"; echo oops >/dev/stderr
		echo "$(uname -n) $(cat /proc/sys/kernel/hostname) $$ $(cat /proc/1/comm) $(ls -m /sys/class/net)"
		[ -d "/proc/self/fd" ] || echo no proc
		cat /sys/class/net/eth1/mtu
		[ "$KVFERRY_LAB_HOST" = 1 ] || exit 3`)
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode() != 3 || r.Hosts[0].ExitCode != 0 || len(r.Traffic[1]) != 2 {
		t.Errorf("%+v", r)
	}
	has(t, out, "host1| it's $HOME", "host2| oops", "host1| host1 host1", "host2| host2 host2", "exe eth0, eth1, lo, mgmt", "host1| 1500",
		"2 hosts up after", "links of 1gbit, 500mbit, running sh", "host1 sent eth0")
	if text, err := os.ReadFile(filepath.Join(dir, "host2", "greeting")); err != nil || string(text) != "it's $HOME\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestEnds: exit statuses, signals, hosts that are stopped, time that runs out.
func TestEnds(t *testing.T) {
	t.Run("signal", func(t *testing.T) {
		r, out, err := run(t, Config{}, `[ $KVFERRY_LAB_HOST = 1 ] || exit 0; kill -9 $$`)
		if err != nil || r.ExitCode() != 137 {
			t.Errorf("%+v, %v\n%s", r, err, out)
		}
	})
	t.Run("until", func(t *testing.T) {
		// What host 2 has started in the background is stopped too. The hosts share the
		// machine's files.
		r, out, err := run(t, Config{Until: 1, Env: []string{"TRAPPED=" + filepath.Join(t.TempDir(), "trapped")}}, `
			[ $KVFERRY_LAB_HOST = 1 ] && { until [ -e $TRAPPED ]; do sleep 0.02; done; exit 7; }
			trap 'echo stopped; exit 5' TERM; echo "memory: $(ls $KVFERRY_LAB_OUT)"; sleep 1000 & touch $TRAPPED; wait`)
		if err != nil || r.ExitCode() != 7 || !r.Hosts[1].Stopped || r.Hosts[1].ExitCode != 5 {
			t.Errorf("%+v, %v\n%s", r, err, out)
		}
		has(t, out, "host2| stopped", "host2| memory: faults.jsonl")
	})
	t.Run("timeout", func(t *testing.T) {
		// How long a busy machine takes to get that far is not known.
		for limit := 300 * time.Millisecond; ; limit *= 2 {
			_, _, err := run(t, Config{Timeout: limit}, `[ $KVFERRY_LAB_HOST = 1 ] || exec sleep 1000`)
			if !errors.Is(err, lab.ErrTimeout) {
				t.Fatal(err)
			}
			if strings.Contains(err.Error(), "host1 exited 0, host2 runs") {
				break
			}
			if limit > patience {
				t.Fatalf("within %v: %v", limit, err)
			}
		}
	})
	t.Run("host gone", func(t *testing.T) {
		r, out, err := run(t, Config{Faults: []lab.Fault{{After: "READY", Action: lab.Kill, Host: 2}}}, `
			[ $KVFERRY_LAB_HOST = 1 ] || { echo READY; exec sleep 1000; }
			while [ -z "$(cat $KVFERRY_LAB_OUT/faults.jsonl)" ]; do sleep 0.05; done; exit 4`)
		if err != nil || r.ExitCode() != 4 || !r.Hosts[1].Killed || r.Hosts[1].ExitCode != 137 {
			t.Errorf("%+v, %v\n%s", r, err, out)
		}
	})
}

// TestJournal: faults of the schedule happen on time, are printed, and written down
// for the commands.
func TestJournal(t *testing.T) {
	dir := t.TempDir()
	faults := []lab.Fault{
		{Delay: 100 * time.Millisecond, Action: lab.SetRate, Host: 1, Rate: 2e8},
		{Delay: 200 * time.Millisecond, Action: lab.LinkDown, Host: 2},
		{After: "CUT", Action: lab.Clear, Host: 1},
		{Delay: time.Hour, Action: lab.LinkUp, Host: 1},
	}
	began := time.Now()
	r, out, err := run(t, Config{Faults: faults, Out: dir}, `
		[ $KVFERRY_LAB_HOST = 1 ] || exit 0
		until [ "$(cat /sys/class/net/eth0/carrier)" = 0 ]; do sleep 0.02; done
		echo CUT; [ "$(cat /sys/class/net/eth0/flags)" = 0x1003 ] || exit 8
		until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do sleep 0.02; done`)
	if err != nil || r.ExitCode() != 0 {
		t.Fatalf("%+v, %v\n%s", r, err, out)
	}
	has(t, out, "fault 100ms:rate:1:0:200mbit at ", "fault 200ms:link-down:2:0 at ", "fault after=CUT:0s:clear:1:0", "fault 1h0m0s:link-up:1:0 did not happen")
	first, err := os.ReadFile(filepath.Join(dir, "host1", journalName))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(filepath.Join(dir, "host2", journalName))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("%q, %v: want that of host 1, %q", second, err, first)
	}
	var records []Record
	for in := json.NewDecoder(bytes.NewReader(first)); in.More(); {
		var r Record
		if err := in.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.UnixNS < began.UnixNano() || r.UnixNS > time.Now().UnixNano() || r.MonotonicNS <= 0 || r.TookNS <= 0 || r.Error != "" {
			t.Errorf("%+v", r)
		}
		records = append(records, r)
	}
	if len(records) != 3 || records[0].Rate != 2e8 || records[1].Action != lab.LinkDown || records[1].Fault != "200ms:link-down:2:0" ||
		time.Duration(records[1].SinceStartNS) < 200*time.Millisecond || records[2].Action != lab.Clear {
		t.Errorf("%+v", records)
	}
}
