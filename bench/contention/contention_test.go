package contention

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/engine"
	"kvferry/handoff"
)

// eight is eight transfers of 470 MB at 1 GB/s, and one.
func eight() Config {
	return Config{
		Profile: engine.DefaultProfile, Transfers: []int{1, 8}, Handoff: []string{handoff.Pull.Name, handoff.Push.Name}, Tokens: 8192, Link: "1GB/s", Oversubscription: []float64{1, 2}, Clock: Virtual,
	}
}

// TestVirtual: n transfers into one node take n times as long as one, and through switches that
// are oversubscribed 2:1 twice that. Others' rules stand beside it.
func TestVirtual(t *testing.T) {
	var out strings.Builder
	cfg := eight()
	cfg.Out = filepath.Join(t.TempDir(), "out")
	if err := Run(t.Context(), cfg, &out); err != nil {
		t.Fatal(err)
	}
	var r Result
	if text, err := os.ReadFile(filepath.Join(cfg.Out, "contention.json")); err != nil || json.Unmarshal(text, &r) != nil || len(r.Rows) != 8 {
		t.Fatalf("contention.json: %s, %v", text, err)
	}
	const alone = 469.76 // ms: 8192 tokens of 57,344 bytes at 1 GB/s
	for i, row := range r.Rows {
		want := []float64{alone, 8 * alone, 2 * alone, 16 * alone}[i%4]
		if got := row.Virtual.Mean; math.Abs(got/want-1) > 0.05 {
			t.Errorf("%d transfers, %s, %g:1: %.1f ms, want %.1f", row.Transfers, row.Handoff, row.Oversubscription, got, want)
		}
	}
	others := r.Rows[1].Others
	if others["Dynamo"] != r.Rows[0].Others["Dynamo"] || math.Abs(others["BLIS fair"]/(8*alone)-1) > 0.01 {
		t.Errorf("others: %v", others)
	}
	for _, want := range []string{"469.8 MB each", "Dynamo mocker 1.6.1", "3758.1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

// TestReal: real bytes come when the modelled NIC of the node that they go into has them, whoever
// moves them, not before, and are right; also in a last block that is not full.
func TestReal(t *testing.T) {
	cfg := eight()
	cfg.Transfers, cfg.Tokens, cfg.Link, cfg.Oversubscription, cfg.Clock, cfg.Rail = []int{1, 4}, 100, "50MB/s", []float64{1}, real, "127.0.0.1:0"
	r, err := cfg.Meet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		link := float64(row.Transfers) * float64(r.Bytes) / r.Rate * 1e3
		if row.Virtual != nil || row.Real == nil || row.Handoff == "" || row.Real.First < link-0.01 || row.Compared == 0 {
			t.Errorf("%d transfers, %s, take the link %.2f ms: %+v, %d bytes compared", row.Transfers, row.Handoff, link, row.Real, row.Compared)
		}
		if row.Disturbance == nil {
			t.Errorf("%d transfers: nobody watched the machine", row.Transfers)
		}
	}
}

// TestDisturbed: a row beside which the machine did other things is marked, and a line says what.
func TestDisturbed(t *testing.T) {
	row := Row{Handoff: "pull", Transfers: 4, Oversubscription: 1, Virtual: &Added{Mean: 100}, Real: &Added{Mean: 123}, Disturbance: &observe.Disturbance{}}
	r := Result{Rows: []*Row{&row}}
	printed := func() string {
		var b strings.Builder
		if err := r.document().WriteText(&b); err != nil {
			t.Error(err)
		}
		return b.String()
	}
	if text := printed(); strings.Contains(text, "~") {
		t.Errorf("a quiet machine: %s", text)
	}
	row.Disturbance.Why = []string{"timers came 9.0 ms late on average (limit 1)"}
	if text := printed(); !strings.Contains(text, "+23.0 %~") || !strings.Contains(text, "~ pull, 4 transfers, in real time: the machine did other things too: timers came") {
		t.Errorf("a busy machine: %s", text)
	}
}

// TestPlots: a plot for each hand-off and switch has ours and those that say something of it; what nobody
// measured has no curve.
func TestPlots(t *testing.T) {
	row := func(handoff string, ratio float64, n int) *Row {
		return &Row{Handoff: handoff, Transfers: n, Oversubscription: ratio, Virtual: &Added{Mean: float64(n) * 100 * ratio}, Others: others.rules(n, ratio, 100)}
	}
	r := Result{Rows: []*Row{row("pull", 1, 1), row("pull", 1, 8), row("pull", 2, 1), row("pull", 2, 8), row("push", 1, 8)}}
	r.Rows[4].Real = &Added{Mean: 1000}
	all := r.Plots()
	if len(all) != 3 {
		t.Fatalf("%d plots", len(all))
	}
	for i, want := range []struct {
		title, names string
		top          float64
	}{
		{"pull, switches 1:1: added by KV (ms)", "kvferry, virtual; Dynamo; BLIS fair; BLIS", 800},
		{"pull, switches 2:1: added by KV (ms)", "kvferry, virtual; Dynamo; BLIS", 1600}, // a rule for shared NICs says nothing of switches
		{"push, switches 1:1: added by KV (ms)", "kvferry, virtual; kvferry, real; Dynamo; BLIS fair; BLIS", 1000},
	} {
		p := all[i].(document.Chart)
		_, to, _ := p.Ends()
		svg, err := document.SVG(p)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range figures() {
			if strings.Contains(string(svg), ">"+c.name+"<") {
				names = append(names, c.name)
			}
		}
		if got := strings.Join(names, "; "); p.Title != want.title || got != want.names || to.X < 8 || to.Y < want.top || to.Y > 1.2*want.top {
			t.Errorf("%q up to %g and %g with %s; want %+v", p.Title, to.X, to.Y, got, want)
		}
	}
}

// TestInterrupted: the rows before are kept.
func TestInterrupted(t *testing.T) {
	cfg := eight()
	cfg.Handoff, cfg.Transfers, cfg.Oversubscription = []string{handoff.Pull.Name}, []int{1, 2}, []float64{1}
	for looks := 0; ; looks++ {
		var out strings.Builder
		cfg.Out = filepath.Join(t.TempDir(), "out")
		switch err := Run(&limited{context.Background(), looks}, cfg, &out); {
		case err == nil:
			t.Fatal("no run was interrupted between two rows")
		case out.Len() == 0:
			continue
		case !errors.Is(err, context.Canceled) || !strings.Contains(out.String(), "469.8"):
			t.Errorf("interrupted after a row: %v\n%s", err, &out)
		}
		if _, err := os.Stat(filepath.Join(cfg.Out, "contention.json")); err != nil {
			t.Error(err)
		}
		return
	}
}

// limited is a context that is done once it has been asked for so often.
type limited struct {
	context.Context
	looks int
}

func (l *limited) Err() error {
	if l.looks--; l.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestFaults: each is named.
func TestFaults(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"Transfers":        func(c *Config) { c.Transfers = []int{0} },
		"Handoff":          func(c *Config) { c.Handoff = []string{"v0"} },
		"Tokens":           func(c *Config) { c.Tokens = 0 },
		"Link":             func(c *Config) { c.Link = "0GB/s" },
		"Profile":          func(c *Config) { c.Profile = "none such" },
		"Oversubscription": func(c *Config) { c.Oversubscription = []float64{0.5} },
		"Clock":            func(c *Config) { c.Clock = "wall" },
		"Rail":             func(c *Config) { c.Clock, c.Rail = real, "nothing/" },
	} {
		c := eight()
		spoil(&c)
		if err := Run(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s in it", err, want)
		}
	}
}

// TestInterruptedWork: what is done beside the transfers, which takes seconds where much memory is seen for the first
// time, ends as soon as nobody wants it any more: making the bytes, taking memory for them, and comparing them.
func TestInterruptedWork(t *testing.T) {
	cfg := eight()
	cfg.Handoff, cfg.Transfers, cfg.Tokens, cfg.Oversubscription, cfg.Clock, cfg.Rail = []string{handoff.Pull.Name}, []int{2}, 100, []float64{1}, real, "127.0.0.1:0"
	looks := 0
	for ; ; looks++ {
		r, err := cfg.Meet(&limited{context.Background(), looks})
		if err == nil {
			break
		}
		if r != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted at look %d: %v, %v", looks, r, err)
		}
	}
	if looks != 4 { // 5.7 MB are one piece: made, cleared, and compared for each transfer
		t.Errorf("it looked %d times, want 4", looks)
	}
	done := 0
	err := piecewise(&limited{context.Background(), 2}, 10*piece, func(from, to int) error {
		done += to - from
		return nil
	})
	if !errors.Is(err, context.Canceled) || done != 2*piece {
		t.Errorf("%d bytes were gone through: %v", done, err)
	}
}
