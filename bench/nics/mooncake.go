package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"kvferry/bench"
	"kvferry/bench/document"
	"kvferry/internal/config"
	lab "kvferry/lab/nics"
)

// MooncakeConfig describes runs of a published workload over 1, 2, ... NICs of the
// lab: the prefill node on host 1 and the decode node on host 2, KV over the shaped
// links, and proxy and clients on host 1's management link.
type MooncakeConfig struct {
	Rate     int64    // of each link, bits a second
	Counts   []int    // NICs
	Settings []string // of bench.Settings with two nodes and sockets
	Row      string   // workload
	Prompts  int      // of each cell
	Bin      string   // folder of proxy, prefill, decode and kvferry; default this program's
	Out      string   // folder of each cell's results, required
	Stdout   io.Writer
	Progress io.Writer
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *MooncakeConfig) Validate() error {
	var bad config.Faults
	bad.Refuse(c.Rate <= 0, "Rate", c.Rate, "use a positive one")
	for _, n := range c.Counts {
		config.Between(&bad, "Counts", n, 1, 8)
	}
	for _, name := range c.Settings {
		if setting(name).Link != "tcp" {
			bad.Add("Settings", name, "use tcp, pull, push or layerwise, which have two nodes and sockets")
		}
	}
	if rows, err := bench.ParseRows(c.Row); err != nil {
		bad.Check("Row", err)
	} else if len(rows) != 1 {
		bad.Add("Row", c.Row, "it is one workload, like 1024/q2")
	}
	bad.Refuse(c.Prompts <= 0, "Prompts", c.Prompts, "use 1 or more")
	bad.Refuse(c.Out == "", "Out", nil, "name a folder for the results")
	for _, n := range c.Counts { // kvferry reproduce mooncake would refuse it, and its old row be read
		for _, setting := range c.Settings {
			bad.Check("Out", document.CheckNew(c.folder(setting, n)))
		}
	}
	return bad.Err("bench/nics.MooncakeConfig")
}

// setting returns the setting with a name, or the zero value.
func setting(name string) (s bench.Setting) {
	for _, known := range bench.Settings() {
		if known.Name == name {
			s = known
		}
	}
	return s
}

// folder is where a cell's results go.
func (c *MooncakeConfig) folder(setting string, nics int) string {
	return filepath.Join(c.Out, fmt.Sprintf("%s-%d", setting, nics))
}

// A MooncakeCell is a setting over so many NICs.
type MooncakeCell struct {
	NICs   int
	Row    bench.Row
	Shares []float64 // of each NIC in the bytes of both directions, 0 to 1
}

// Mooncake runs the cells and prints TTFT and TPOT by the number of NICs.
func Mooncake(ctx context.Context, cfg MooncakeConfig) (cells []MooncakeCell, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := findDaemons(&cfg.Bin); err != nil {
		return nil, err
	}
	if cfg.Out, err = filepath.Abs(cfg.Out); err != nil {
		return nil, err
	}
	for _, n := range cfg.Counts {
		for _, setting := range cfg.Settings {
			var cell *MooncakeCell
			if err == nil {
				cell, err = cfg.cell(ctx, n, setting)
			}
			if cell != nil {
				cells = append(cells, *cell)
			}
		}
	}
	err = errors.Join(context.Cause(ctx), err)
	if len(cells) > 0 {
		_, e := io.WriteString(cfg.Stdout, mooncakeTable(cells, cfg.Rate, cfg.Row, cfg.Prompts).Text())
		err = errors.Join(err, e)
	}
	return cells, err
}

// cell is one lab, one cluster and one run of kvferry reproduce mooncake.
func (c *MooncakeConfig) cell(ctx context.Context, n int, name string) (*MooncakeCell, error) {
	l, stop, err := startCluster(ctx, c.Bin, setting(name).Handoff, lab.Config{Rates: slices.Repeat([]int64{c.Rate}, n)}, lab.ManagementAddress)
	if err != nil {
		return nil, err
	}
	defer stop()
	out := c.folder(name, n)
	_, ended := output(ctx, l, 1, filepath.Join(c.Bin, "kvferry"), "reproduce", "mooncake", "--proxy", "http://"+httpAddress, "--settings", name, "--rows", c.Row,
		"--num-prompts", strconv.Itoa(c.Prompts), "--clock", "real", "--out", out)
	row, err := readRow(out)
	if err != nil {
		return nil, errors.Join(ended, err)
	}
	if row.Metrics != nil {
		fmt.Fprintf(c.Progress, "%s over %d NICs: %s: %d requests, mean TTFT %.1f ms, mean TPOT %.2f ms\n", name, n, row.Label, row.Metrics.Successful, row.Metrics.MeanTTFTMS, row.Metrics.MeanTPOTMS)
	}
	shares, err := shares(l, n)
	return &MooncakeCell{n, *row, shares}, errors.Join(ended, err)
}

// shares are what each NIC has carried of all bytes so far.
func shares(l *lab.Lab, n int) ([]float64, error) {
	all, sum := make([]float64, n), 0.0
	for nic := range n {
		for host := 1; host <= lab.Hosts; host++ {
			t, err := l.Traffic(host, nic)
			if err != nil {
				return nil, err
			}
			all[nic] += float64(t.SentBytes)
		}
		sum += all[nic]
	}
	for nic := range all {
		all[nic] /= max(sum, 1)
	}
	return all, nil
}

// readRow is the one row of a run's summary.
func readRow(dir string) (*bench.Row, error) {
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil {
		return nil, err
	}
	var s bench.Summary
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if len(s.Rows) != 1 {
		return nil, fmt.Errorf("%s has %d rows, and it was one", dir, len(s.Rows))
	}
	return &s.Rows[0], nil
}

// mooncakeTable sets the cells side by side, a hand-off's NICs in a row.
func mooncakeTable(cells []MooncakeCell, rate int64, row string, prompts int) document.Table {
	t := document.Table{
		Title: fmt.Sprintf("%s, %d requests a cell; compute modelled, transfer measured on N x %.3g Gbit/s real links; ms", row, prompts, float64(rate)/1e9),
		Left:  2,
		Head:  []string{"setting", "hand-off", "NICs", "TTFT mean", "median", "p99", "TPOT mean", "median", "p99", "wire mean", "KV GB", "failed", "blocks checked", "bad", "% by NIC"},
	}
	// Settings together, in the order of their first cell.
	order := map[string]int{}
	for _, c := range cells {
		if _, ok := order[c.Row.Setting]; !ok {
			order[c.Row.Setting] = len(order)
		}
	}
	sorted := slices.Clone(cells)
	slices.SortStableFunc(sorted, func(a, b MooncakeCell) int { return order[a.Row.Setting] - order[b.Row.Setting] })
	ms := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	for _, c := range sorted {
		m := c.Row.Metrics
		if m == nil {
			t.Add(c.Row.Setting, c.Row.Handoff, strconv.Itoa(c.NICs))
			continue
		}
		wire := ""
		if m.Stages != nil {
			wire = ms(m.Stages.Wire)
		}
		t.Add(
			c.Row.Setting, c.Row.Handoff, strconv.Itoa(c.NICs), ms(m.MeanTTFTMS), ms(m.MedianTTFTMS), ms(m.P99TTFTMS),
			ms(m.MeanTPOTMS), ms(m.MedianTPOTMS), ms(m.P99TPOTMS), wire, fmt.Sprintf("%.2f", float64(m.KVBytes)/1e9),
			strconv.Itoa(m.Failed), strconv.FormatInt(m.KVBlocksChecked, 10), strconv.FormatInt(m.KVBlocksBad, 10), percents(c.Shares),
		)
	}
	return t
}
