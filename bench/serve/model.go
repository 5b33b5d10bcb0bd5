package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/report"
	"kvferry/bench/simulation"
	"kvferry/config"
	"kvferry/load"
	"kvferry/sim"
	"kvferry/tokenizer"
)

// Model is a cluster in virtual time. link is what its NICs are called.
func Model(c simulation.Cluster, link string) Target { return &model{cluster: c, link: link} }

type model struct {
	cluster simulation.Cluster
	link    string
}

func (m *model) Open(context.Context) (Facts, error) {
	if err := m.cluster.Validate(); err != nil {
		return Facts{}, err
	}
	p := m.cluster.Profile
	f := Facts{
		Clock: report.ClockVirtual, Model: p.Model, Vocab: p.Vocab, System: m.cluster,
		Label: fmt.Sprintf("virtual time: compute modelled (%s), no KV transfer", p.GPU),
	}
	f.Tokenizer = func(context.Context) (load.Tokenizer, error) { return tokenizer.Own(p.Vocab) }
	if m.cluster.Nondisagg == 0 {
		f.Label = fmt.Sprintf("virtual time: compute modelled (%s), transfer modelled at %.2f GB/s (%s)", p.GPU, float64(m.cluster.NICs)*m.cluster.NIC.BytesPerSecond/1e9, m.link)
	}
	return f, nil
}

// ErrAdapters is what the model cannot answer.
var ErrAdapters = errors.New("adapters (LoRA) have no costs in virtual time yet: leave them out, or measure with --clock real")

func (m *model) Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error) {
	cfg := m.cluster.Config(&config.Faults{}) // Validate has seen to them
	cfg.RecordTokens = true
	last := l.End
	cfg.OnOutcome = func(o *sim.Outcome) {
		last = max(last, o.Last)
		done(simulation.Record(o))
	}
	l.Source = plain{l.Source}
	_, err := sim.Run(ctx, cfg, l)
	return last, err
}

func (m *model) Close() error { return nil }

// plain refuses what the model does not know.
type plain struct{ load.Source }

func (p plain) Next() (load.Request, bool, error) {
	r, ok, err := p.Source.Next()
	if err == nil && ok && r.Adapter != "" {
		err = ErrAdapters
	}
	return r, ok, err
}
