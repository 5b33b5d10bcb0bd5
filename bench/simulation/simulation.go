package simulation

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/load"
	"kvferry/sim"
	"kvferry/tokenizer"
)

// A Simulation is a cluster and a load in virtual time. The zero values of
// numbers are not defaults: 0 requests a second is an error.
type Simulation struct {
	cluster.Spec
	Load load.Spec // what the cluster is asked; Vocab is the profile's

	SLO        stats.SLO
	Attainment float64 // share of requests that must keep the SLO

	// Records gets a line of JSON for every request, if not nil.
	Records io.Writer
}

// Validate lists every fault by its field, as a [config.Invalid].
func (s *Simulation) Validate() error {
	var bad config.Faults
	cfg, err := s.Model()
	bad.Check("", err)
	if cfg.Profile != nil {
		l, err := InTokens(s.Load, cfg.Profile)
		bad.Check("Profile", err)
		if err == nil {
			bad.Check("Load", l.Validate())
		}
	}
	config.Between(&bad, "Attainment", s.Attainment, 0, 1)
	return bad.Err("simulation.Simulation")
}

// InTokens is a load in a profile's tokens. What is texts is counted by kvferry's own tokenizer of
// that vocabulary, as a modelled node counts it, unless the load has another.
func InTokens(l load.Spec, p *engine.Profile) (load.Spec, error) {
	l.Vocab = p.Vocab
	if l.Tokenizer != nil || !l.Texts() {
		return l, nil
	}
	t, err := tokenizer.Own(p.Vocab)
	if err != nil {
		return l, fmt.Errorf("a load of texts: %w", err)
	}
	l.Tokenizer = t
	return l, nil
}

// Run simulates. progress is told how many requests have ended. When ctx is done
// the error is its, and there is no result. An error of Records comes with the result.
func (s *Simulation) Run(ctx context.Context, progress func(ended int)) (*Result, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	cfg, err := s.Model()
	if err != nil {
		return nil, err
	}
	l, err := InTokens(s.Load, cfg.Profile)
	if err != nil {
		return nil, err
	}
	asked, err := l.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = asked.Close() }() // it was read only
	sum := summary{SLO: s.SLO, ModelLen: cfg.Profile.MaxModelLen}
	records := newOutcomes(s.Records)
	cfg.OnOutcome = func(o *sim.Outcome) {
		sum.outcome(o)
		records.add(o)
	}
	cfg.OnGap = sum.gap
	cfg.OnProgress = progress
	began := time.Now()
	stats, err := sim.Run(ctx, cfg, asked)
	lost := records.flush() // of an interrupted run too: what is there ends with a whole line
	if err != nil {
		return nil, errors.Join(err, lost)
	}
	r := newResult(s, &sum, stats)
	r.WallS = time.Since(began).Seconds()
	r.TTFT, r.TPOT = &sum.TTFT, &sum.TPOT
	if r.Failed == r.Requests && r.Requests > 0 {
		return r, errors.Join(fmt.Errorf("every request was refused, the first because: %w", sum.FirstFailure), lost)
	}
	return r, lost
}

// outcomes writes a line of JSON a request: times in seconds since the start.
type outcomes struct {
	w   *bufio.Writer
	buf []byte
	err error
}

func newOutcomes(w io.Writer) *outcomes {
	if w == nil {
		return &outcomes{}
	}
	return &outcomes{w: bufio.NewWriterSize(w, 1<<16)}
}

// add formats by hand: encoding/json takes longer for a million requests than
// simulating them.
func (o *outcomes) add(r *sim.Outcome) {
	if o.w == nil || o.err != nil {
		return
	}
	b := o.buf[:0]
	number := func(key string, v int64) {
		b = append(b, key...)
		b = strconv.AppendInt(b, v, 10)
	}
	at := func(key string, d time.Duration) {
		b = append(b, key...)
		b = strconv.AppendFloat(b, stats.Seconds(d), 'f', -1, 64)
	}
	number(`{"index":`, int64(r.Index))
	number(`,"prompt_tokens":`, int64(r.PromptTokens))
	number(`,"cached_tokens":`, int64(r.Cached))
	number(`,"output_tokens":`, int64(r.Tokens))
	at(`,"arrived":`, r.Arrived)
	if r.Err != nil {
		text, _ := json.Marshal(r.Err.Error()) // a string always has JSON
		b = append(append(b, `,"error":`...), text...)
	} else {
		at(`,"first_token":`, r.First)
		at(`,"finish":`, r.Last)
		number(`,"kv_bytes":`, r.Breakdown.Bytes)
		if r.Migrations > 0 {
			number(`,"migrations":`, int64(r.Migrations))
			number(`,"migration_pause_us":`, r.Paused.Microseconds())
			number(`,"migrated_bytes":`, r.Breakdown.Migrated)
		}
	}
	b = append(b, "}\n"...)
	_, o.err = o.w.Write(b)
	o.buf = b
}

func (o *outcomes) flush() error {
	if o.w == nil {
		return nil
	}
	return errors.Join(o.err, o.w.Flush())
}

// ParseGoodput reads bounds as stats.ParseSLO does, or none alone.
func ParseGoodput(items []string) (stats.SLO, error) {
	if len(items) == 1 && items[0] == "none" {
		return nil, nil
	}
	slo, err := stats.ParseSLO(items)
	if err != nil {
		return nil, err
	}
	for _, b := range slo {
		if !(b.MS > 0 && b.MS < 1e9) {
			return nil, fmt.Errorf("%s:%g: write milliseconds above 0", b.Metric, b.MS)
		}
	}
	if len(slo) == 0 {
		return nil, fmt.Errorf("%q: write a metric and milliseconds, such as ttft:2000, or none", strings.Join(items, " "))
	}
	return slo, nil
}
