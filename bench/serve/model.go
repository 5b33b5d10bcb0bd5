package serve

import (
	"context"
	"fmt"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/report"
	"kvferry/bench/simulation"
	"kvferry/cluster"
	"kvferry/load"
	"kvferry/sim"
	"kvferry/tokenizer"
)

// Model is a cluster in virtual time. Run is a function of the load and the cluster: the same
// twice, and no machine makes it slower or faster.
func Model(c cluster.Spec) Target { return &model{cluster: c} }

// InWords is a cluster as reports say it: the profile of its nodes, and what kvferry sim says.
func InWords(c cluster.Spec) string {
	r := c.Record()
	return fmt.Sprintf("%s (%s), %s", r.Profile, r.GPU, &r)
}

// model has nothing open between its runs: each begins with empty caches, as a cluster does that
// was started for it.
type model struct{ cluster cluster.Spec }

// Open computes nothing: what a model is, its Profile says. Pids and Scrape are left out, as there
// is no process and no server.
func (m *model) Open(context.Context) (Facts, error) {
	cfg, err := m.cluster.Model()
	if err != nil {
		return Facts{}, err
	}
	p, record := cfg.Profile, m.cluster.Record()
	f := Facts{
		Clock: report.ClockVirtual, Model: p.Model, Vocab: p.Vocab, System: record, Cluster: InWords(m.cluster),
		Label: fmt.Sprintf("virtual time: compute modelled (%s), no KV transfer", p.GPU),
	}
	f.Tokenizer = func(context.Context) (load.Tokenizer, error) { return tokenizer.Own(p.Vocab) }
	if m.cluster.MovesKV() {
		f.Label = fmt.Sprintf("virtual time: compute modelled (%s), transfer modelled at %.2f GB/s (%s)", p.GPU, float64(len(cfg.NICs))*cfg.NICs[0].BytesPerSecond/1e9, m.cluster.Link)
	}
	return f, nil
}

func (m *model) Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error) {
	cfg, err := m.cluster.Model()
	if err != nil {
		return 0, err
	}
	cfg.RecordTokens = true // a record's TokenTimes, which ITL and the timelines are made of
	last := l.End           // a load of a --duration lasts so long, whatever ends before
	cfg.OnOutcome = func(o *sim.Outcome) {
		last = max(last, o.Last)
		done(simulation.Record(o))
	}
	_, err = sim.Run(ctx, cfg, l)
	return last, err
}

func (m *model) Close() error { return nil }
