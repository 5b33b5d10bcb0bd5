package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRoCETwoNICs: two RoCE NICs both carry, every block checked; and when the cable of
// one is pulled under load and plugged in again, that is noticed, and nothing is lost or
// comes twice. How much two carry of what one does, and how soon they do after a fault,
// is printed: emulated hosts are as quick as this machine has time for them.
func TestRoCETwoNICs(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	out := run(t, Config{
		NICs: 2, Rate: 80e6, Until: 2, Timeout: hang, Out: dir,
		Files:   []File{{From: "testdata/roce-nics.sh"}, compile(t, "cmd/kvferry", "build")},
		Command: []string{"sh", "/lab/roce-nics.sh"},
		Faults: []Fault{
			{After: "LOADING", Delay: 4 * time.Second, Action: LinkDown, Host: 2, NIC: 1},
			{After: "LOADING", Delay: 8 * time.Second, Action: LinkUp, Host: 2, NIC: 1},
		},
	})
	t.Log(out)
	read := func(name string, into any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "host2", name))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var transfer struct {
		Points []struct {
			Count   int     `json:"rail_count"`
			Seconds float64 `json:"rails_s"`
			Bad     *int64  `json:"bad"`
			Errors  int     `json:"errors"`
			Rails   []struct {
				Bytes int64 `json:"bytes"`
			} `json:"rails"`
		} `json:"points"`
	}
	read("transfer/results.json", &transfer)
	rate := map[int]float64{}
	for _, p := range transfer.Points {
		sum := int64(0)
		for i, r := range p.Rails {
			sum += r.Bytes
			if r.Bytes == 0 {
				t.Errorf("%d NICs: rail %d carried nothing", p.Count, i)
			}
		}
		if p.Bad == nil || *p.Bad != 0 || p.Errors != 0 || p.Seconds == 0 {
			t.Errorf("%d NICs: not sound: %+v", p.Count, p)
			continue
		}
		rate[p.Count] = float64(sum) / p.Seconds
	}
	t.Logf("one NIC %.3f MB/s, two %.3f MB/s: %.2f times", rate[1]/1e6, rate[2]/1e6, rate[2]/rate[1])
	if len(rate) != 2 {
		t.Errorf("one NIC and two were to be measured: %v", rate)
	}
	var failover struct {
		Bytes   int64 `json:"bytes"`
		Counted int64 `json:"counted_bytes"`
		Errors  int   `json:"errors"`
		Checked int64 `json:"checked"`
		Bad     int64 `json:"bad"`
		Faults  []struct {
			Action  string         `json:"action"`
			Detect  *time.Duration `json:"detect_ns"`
			Recover *time.Duration `json:"recover_ns"`
		} `json:"faults"`
	}
	read("failover/failover.json", &failover)
	if failover.Checked == 0 || failover.Bad != 0 || failover.Errors != 0 || failover.Bytes != failover.Counted || len(failover.Faults) != 2 {
		t.Errorf("not sound: %+v", failover)
	}
	for _, f := range failover.Faults {
		t.Logf("%s: found after %v, recovered after %v", f.Action, f.Detect, f.Recover)
		if f.Detect == nil {
			t.Errorf("%s was not found", f.Action)
		}
	}
}
