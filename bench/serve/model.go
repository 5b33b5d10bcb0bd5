package serve

import (
	"context"
	"fmt"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/report"
	"kvferry/bench/simulation"
	"kvferry/internal/config"
	"kvferry/load"
	"kvferry/sim"
	"kvferry/tokenizer"
)

// Model is a cluster in virtual time. link is what its NICs are called in the label. Run is a
// function of the load and the cluster: the same twice, and no machine makes it slower or faster.
func Model(c simulation.Cluster, link string) Target { return &model{cluster: c, link: link} }

// InWords is a cluster as reports say it: the profile of its nodes, and what kvferry sim says.
func InWords(c simulation.Cluster) string {
	r := c.Record()
	return fmt.Sprintf("%s (%s), %s", r.Profile, r.GPU, &r)
}

// model has nothing open between its runs: each begins with empty caches, as a cluster does that
// was started for it.
type model struct {
	cluster simulation.Cluster
	link    string
}

// Open computes nothing: what a model is, its Profile says. Pids and Scrape are left out, as there
// is no process and no server.
func (m *model) Open(context.Context) (Facts, error) {
	if err := m.cluster.Validate(); err != nil {
		return Facts{}, err
	}
	p := m.cluster.Profile
	f := Facts{
		Clock: report.ClockVirtual, Model: p.Model, Vocab: p.Vocab, System: m.cluster, Cluster: InWords(m.cluster),
		Label: fmt.Sprintf("virtual time: compute modelled (%s), no KV transfer", p.GPU),
	}
	f.Tokenizer = func(context.Context) (load.Tokenizer, error) { return tokenizer.Own(p.Vocab) }
	if m.cluster.Nondisagg == 0 || m.cluster.Migration.Migrates() {
		f.Label = fmt.Sprintf("virtual time: compute modelled (%s), transfer modelled at %.2f GB/s (%s)", p.GPU, float64(m.cluster.NICs)*m.cluster.NIC.BytesPerSecond/1e9, m.link)
	}
	return f, nil
}

func (m *model) Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error) {
	cfg := m.cluster.Config(&config.Faults{}) // Validate has seen to them
	cfg.RecordTokens = true                   // a record's TokenTimes, which ITL and the timelines are made of
	last := l.End                             // a load of a --duration lasts so long, whatever ends before
	cfg.OnOutcome = func(o *sim.Outcome) {
		last = max(last, o.Last)
		done(simulation.Record(o))
	}
	_, err := sim.Run(ctx, cfg, l)
	return last, err
}

func (m *model) Close() error { return nil }
