package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/rail"
	"kvferry/lab"
	"kvferry/lab/nics"
)

// inLab runs this test's binary as kvferry on two hosts joined by links: on host 2 as
// the target, on host 1 what the script has it do, whose rails are $rails and whose
// target is $target. It returns what was printed and the folder of host 1.
func inLab(t *testing.T, cfg nics.Config, script string) (out, dir string) {
	t.Helper()
	if err := nics.Check(); err != nil {
		t.Skipf("no lab here: %v", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cfg.Out, cfg.Until, cfg.Timeout = t.TempDir(), 1, 2*time.Minute
	cfg.Stdout, cfg.Stderr, cfg.Log = &said, &said, &said
	cfg.Env = []string{mainEnv + "=1", "kvferry=" + exe}
	cfg.Command = []string{"sh", "-c", `
		rails=""; for k in $(seq 0 $((KVFERRY_LAB_NICS - 1))); do rails="$rails --rail tcp/eth$k"; done
		if [ $KVFERRY_LAB_HOST = 2 ]; then exec $kvferry rail bench $rails --server --listen $KVFERRY_LAB_MGMT:18515; fi
		target=$KVFERRY_LAB_MGMT_PEER:18515
		tries=0
		until $kvferry rail bench $rails $target --block 4k --batch 1 --iters 1 --segment 1m --out $KVFERRY_LAB_OUT/probe >$KVFERRY_LAB_OUT/probed 2>&1; do
			tries=$((tries + 1)); [ $tries -lt 50 ] || { cat $KVFERRY_LAB_OUT/probed; exit 1; }
		done
		` + script}
	r, err := nics.Run(t.Context(), cfg)
	if err != nil || r.ExitCode() != 0 {
		t.Fatalf("%v, %+v\n%s", err, r, said.String())
	}
	return said.String(), filepath.Join(cfg.Out, "host1")
}

func readResult(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestWeakHost: four NICs in one network. Routed by source, each carries some. Without
// that all would leave by the first, whatever their sockets are bound to: the other
// rails are not used, and both ends say why.
func TestWeakHost(t *testing.T) {
	t.Parallel()
	const each = 100e6
	for _, c := range []struct {
		name     string
		noRoutes bool
		carry    int // NICs, from the first
	}{
		{"routed by source", false, 4},
		{"as the system routes", true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, dir := inLab(t, nics.Config{Rates: []int64{each, each, each, each}, SharedSubnet: true, NoRoutes: c.noRoutes},
				`$kvferry rail bench $rails $target --block 256k --batch 8 --segment 16m --iters 20 --select static --check --out $KVFERRY_LAB_OUT/got`)
			for _, want := range []string{"tcp/eth2 does not reach", "leave by eth0, not eth2", "answers to a peer do not leave by the NIC"} {
				if strings.Contains(out, want) != c.noRoutes {
					t.Errorf("%q is said, or is not:\n%s", want, out)
				}
			}
			var got rail.Result
			readResult(t, filepath.Join(dir, "got", "results.json"), &got)
			if len(got.Points) != 1 || len(got.Points[0].Rails) != 4 || got.Points[0].Bad == nil || *got.Points[0].Bad != 0 {
				t.Fatalf("%+v\n%s", got, out)
			}
			for i, r := range got.Points[0].Rails {
				if (r.Bytes > 0) != (i < c.carry) {
					t.Errorf("eth%d carried %d bytes, of %d NICs that should carry some", i, r.Bytes, c.carry)
				}
			}
		})
	}
}

// carriedOn says whether bytes went over a rail that is back after a fault, or over the
// others if it is not.
func carriedOn(r *rail.FailoverResult, f rail.Recovery) bool {
	back := f.Action == string(lab.LinkUp) || f.Action == string(lab.Clear)
	at := slices.IndexFunc(r.Samples, func(s rail.Sample) bool { return s.At > f.At+*f.Detect })
	if at < 0 {
		return false
	}
	for rail, before := range r.Samples[at].Bytes {
		if (rail == f.Rail) == back && r.Samples[len(r.Samples)-1].Bytes[rail] > before {
			return true
		}
	}
	return false
}

// TestFailoverInLab: a link is cut and restored, and another is a black hole, under
// load: nothing is lost or comes twice, both are found, and both come back. How soon is
// measured by make bench-nics. A busy machine may take longer than the links stay as
// they are, and is given more time then.
func TestFailoverInLab(t *testing.T) {
	t.Parallel()
	const each = 200e6
	for slower := time.Duration(1); ; slower *= 2 {
		_, dir := inLab(t, nics.Config{
			Rates: []int64{each, each, each},
			Faults: []lab.Fault{
				{After: "LOADING", Delay: slower * 500 * time.Millisecond, Action: lab.LinkDown, Host: 1, NIC: 1},
				{After: "LOADING", Delay: slower * 1500 * time.Millisecond, Action: lab.LinkUp, Host: 1, NIC: 1},
				{After: "LOADING", Delay: slower * 3500 * time.Millisecond, Action: lab.BlackHole, Host: 1, NIC: 2},
				{After: "LOADING", Delay: slower * 5 * time.Second, Action: lab.Clear, Host: 1, NIC: 2},
			},
		}, `$kvferry rail failover $rails $target --faults $KVFERRY_LAB_OUT/faults.jsonl --segment 32m --block 64k --slice 64k --out $KVFERRY_LAB_OUT/got --duration `+(slower*7*time.Second).String())
		var got rail.FailoverResult
		readResult(t, filepath.Join(dir, "got", "failover.json"), &got)
		if got.Checked == 0 || got.Bad != 0 || got.Errors != 0 || got.Bytes != got.Counted {
			t.Fatalf("not sound: %+v", got)
		}
		found := 0
		for _, f := range got.Recoveries {
			t.Logf("%s: found after %v, recovered after %v", f.Action, f.Detect, f.Recover)
			if f.Detect != nil && carriedOn(&got, f) {
				found++
			}
		}
		if found == 4 {
			return
		}
		if slower == 8 {
			t.Fatalf("%d of 4 faults were found, and recovered from", found)
		}
	}
}
