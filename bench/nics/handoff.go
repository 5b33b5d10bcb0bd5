package nics

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"kvferry/bench"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	lab "kvferry/lab/nics"
)

// HandoffConfig describes a run of one cluster over long links: proxy and prefill node on host 1,
// the decode node on host 2, KV and the control plane over the links. Prompts are asked one after
// the other for two tokens, and the second is held to
//
//	prefill + 2 round trips + wire of the last part + one decode step
//
// One round trip takes the last part there and the token back. The other is for what has to be
// asked of the decode node, and is not needed where prompts go ahead.
type HandoffConfig struct {
	Handoff  string
	NICs     int
	Rate     int64 // of each link, bits a second
	RTT      time.Duration
	Prompts  int
	InputLen int    // tokens of a prompt
	Bin      string // folder of proxy, prefill, decode and kvferry; default this program's
	Out      string // folder of the client's results, required
	Stdout   io.Writer
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *HandoffConfig) Validate() error {
	var bad config.Faults
	if h, err := handoff.Parse(c.Handoff); err != nil {
		bad.Check("Handoff", err)
	} else if !h.Moves(handoff.PrefillLeg) {
		bad.Add("Handoff", c.Handoff, "use layerwise or push, in which the prefill node writes and the bound holds")
	}
	config.Between(&bad, "NICs", c.NICs, 1, 8)
	config.Between(&bad, "Prompts", c.Prompts, 1, 10_000)
	config.Between(&bad, "InputLen", c.InputLen, 1, 8192)
	bad.Refuse(c.Rate <= 0, "Rate", c.Rate, "use a positive one")
	config.Between(&bad, "RTT", c.RTT, 0, time.Second)
	bad.Check("Out", document.CheckNew(c.Out))
	return bad.Err("bench/nics.HandoffConfig")
}

// A HandoffResult is medians over the prompts, in milliseconds.
type HandoffResult struct {
	Prefill    float64 // the prompt's step, as the node says
	RoundTrips float64
	Wire       float64
	DecodeStep float64
	Bound      float64 // of their sums
	First      float64 // token, at the client
	Second     float64
	Ahead      int // prompts, as the proxy counts; the client's warm-up too
	Undirected int // of these, given up
}

// Handoff runs the prompts, prints the terms and holds the second token to their sum.
func Handoff(ctx context.Context, cfg HandoffConfig) (*HandoffResult, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := findDaemons(&cfg.Bin); err != nil {
		return nil, err
	}
	var err error
	if cfg.Out, err = filepath.Abs(cfg.Out); err != nil {
		return nil, err
	}
	links := lab.Config{Rates: slices.Repeat([]int64{cfg.Rate}, cfg.NICs), Conditions: long(cfg.NICs, cfg.RTT/2)}
	l, stop, err := startCluster(ctx, cfg.Bin, cfg.Handoff, links, func(host int) string { return lab.Address(host, 0) })
	if err != nil {
		return nil, err
	}
	defer stop()
	_, ended := output(ctx, l, 1, filepath.Join(cfg.Bin, "kvferry"), "bench", "--base-url", "http://"+httpAddress, "--dataset-name", "random",
		"--random-input-len", strconv.Itoa(cfg.InputLen), "--random-output-len", "2", "--num-prompts", strconv.Itoa(cfg.Prompts),
		"--max-concurrency", "1", "--out", cfg.Out)
	if ended != nil {
		return nil, cmp.Or(context.Cause(ctx), ended)
	}
	r, err := cfg.read()
	if err != nil {
		return nil, err
	}
	if r.Ahead, r.Undirected, err = aheads(ctx, l); err != nil {
		return nil, err
	}
	if err := cfg.write(r); err != nil {
		return nil, err
	}
	if r.Second > r.Bound {
		return r, fmt.Errorf("%w: the second token comes %.1f ms late", ErrMissed, r.Second-r.Bound)
	}
	return r, nil
}

// read takes the client's records.
func (c *HandoffConfig) read() (*HandoffResult, error) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		return nil, err
	}
	h, err := handoff.Parse(c.Handoff)
	if err != nil {
		return nil, err
	}
	last := c.InputLen * prof.KVGeometry.TokenBytes() / h.Parts.Count(prof.KVGeometry.Layers)
	r := &HandoffResult{
		RoundTrips: 2 * c.RTT.Seconds() * 1e3,
		Wire:       1e3 * float64(last) / Ideal(slices.Repeat([]int64{c.Rate}, c.NICs)),
		DecodeStep: prof.Disagg.DecodeStepMS + prof.Costs.DecodeSeqMS,
	}
	f, err := os.Open(filepath.Join(c.Out, "results.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := bench.ReadRecords(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	var prefill, first, second []float64
	for i := range records {
		got := &records[i]
		if got.Failure() != "" || len(got.TokenTimes) < 2 || got.Breakdown == nil {
			return nil, fmt.Errorf("%s: request %d: %d tokens, %s", f.Name(), got.Index, len(got.TokenTimes), got.Failure())
		}
		prefill = append(prefill, float64(got.Breakdown.PrefillUS)/1e3)
		first = append(first, 1e3*got.TTFT())
		second = append(second, 1e3*(got.TokenTimes[1]-got.Sent))
	}
	if len(second) != c.Prompts {
		return nil, fmt.Errorf("%s has %d of %d requests", f.Name(), len(second), c.Prompts)
	}
	r.Prefill, r.First, r.Second = median(prefill), median(first), median(second)
	r.Bound = r.Prefill + r.RoundTrips + r.Wire + r.DecodeStep
	return r, nil
}

// aheads are the proxy's counts of prompts that went ahead, and of those of them that were given up.
func aheads(ctx context.Context, l *lab.Lab) (ahead, undirected int, err error) {
	web := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = l.Do(1, func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	page, err := observe.FetchMetrics(ctx, &web, "http://"+httpAddress+"/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	ahead, undirected = countAheads(page)
	return ahead, undirected, nil
}

// countAheads returns the counts of a page of metrics.
func countAheads(page *observe.Snapshot) (ahead, undirected int) {
	n, _ := page.Counter("kvferry:prompts_ahead_total")
	up, _ := page.Counter("kvferry:prompts_undirected_total")
	return int(n), int(up)
}

// write prints the terms.
func (c *HandoffConfig) write(r *HandoffResult) error {
	t := document.Table{
		Title: fmt.Sprintf("%s over %d x %.3g Gbit/s, RTT %v; %d prompts of %d tokens, one at a time; medians, ms", c.Handoff, c.NICs, float64(c.Rate)/1e9, c.RTT, c.Prompts, c.InputLen),
		Left:  1,
		Head:  []string{"what", "ms"},
	}
	for _, row := range []struct {
		what string
		ms   float64
	}{
		{"prefill", r.Prefill},
		{"2 round trips", r.RoundTrips},
		{"wire of the last part", r.Wire},
		{"one decode step", r.DecodeStep},
		{"together: the bound", r.Bound},
		{"second token", r.Second},
		{"first token", r.First},
	} {
		t.Add(row.what, fmt.Sprintf("%.1f", row.ms))
	}
	_, err := fmt.Fprintf(c.Stdout, "%s%d prompts went ahead, the client's first look included; %d of them were given up\n", t.Text(), r.Ahead, r.Undirected)
	return err
}
