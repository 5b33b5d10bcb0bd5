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

	"kvferry/bench/figure"
	"kvferry/config"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/sim"
)

// A Simulation is a cluster and a load in virtual time. The zero values of
// numbers are not defaults: 0 requests a second is an error.
type Simulation struct {
	Profile                    *engine.Profile
	Prefill, Decode, Nondisagg int
	Chunked                    bool
	Handoff                    string
	Placement                  string
	PrefixCaching              bool
	KVBlocks                   int // of a node; the profile's if 0
	MaxModelLen                int // the profile's if 0
	NICs                       int // of a prefill or decode node
	NIC                        sim.NIC
	RPC                        time.Duration // see sim.Config

	Load load.Spec // what the cluster is asked; Vocab is the profile's
	// Longest is how many tokens the longest request has, prompt and output together, if
	// it is known: FitLoad goes by it.
	Longest int

	SLO        SLO
	Attainment float64 // share of requests that must keep the SLO

	// Records gets a line of JSON for every request, if not nil.
	Records io.Writer
}

// profile is the profile with the model length that was asked for. A step must
// be able to hold the longest prompt.
func (s *Simulation) profile() *engine.Profile {
	if s.MaxModelLen == 0 || s.MaxModelLen == s.Profile.MaxModelLen {
		return s.Profile
	}
	p := *s.Profile
	p.MaxModelLen = s.MaxModelLen
	p.MaxBatchedTokens = max(p.MaxBatchedTokens, s.MaxModelLen)
	return &p
}

// FitLoad raises MaxModelLen to what the longest request needs, as far as a node's pool
// holds it.
func (s *Simulation) FitLoad() {
	if s.MaxModelLen != 0 || s.Longest <= s.Profile.MaxModelLen {
		return
	}
	blocks := s.KVBlocks
	if blocks == 0 {
		blocks = s.Profile.Blocks()
	}
	s.MaxModelLen = max(min(s.Longest, blocks*s.Profile.KVGeometry.BlockTokens), s.Profile.MaxModelLen)
}

// config is the cluster. Faults of the hand-off and the NICs are in bad.
func (s *Simulation) config(bad *config.Faults) sim.Config {
	cfg := sim.Config{
		Profile: s.profile(), Prefill: s.Prefill, Decode: s.Decode, Nondisagg: s.Nondisagg, Chunked: s.Chunked,
		Placement: s.Placement, PrefixCaching: s.PrefixCaching, KVBlocks: s.KVBlocks, RPC: s.RPC,
	}
	if s.Nondisagg > 0 {
		return cfg
	}
	var err error
	cfg.Handoff, err = handoff.Parse(s.Handoff)
	bad.Check("Handoff", err)
	config.Between(bad, "NICs", s.NICs, 1, maxNICs)
	for range min(max(s.NICs, 1), maxNICs) {
		cfg.NICs = append(cfg.NICs, s.NIC)
	}
	return cfg
}

// maxNICs of a node: more than any server has slots for.
const maxNICs = 64

// Validate lists every fault by its field, as a [config.Invalid]. A profile that is set
// is valid.
func (s *Simulation) Validate() error {
	var bad, cluster config.Faults
	if s.Profile == nil {
		bad.Add("Profile", nil, "say what the modelled GPU costs")
		return bad.Err("simulation.Simulation")
	}
	cfg := s.config(&bad)
	cluster.Check("", cfg.Validate())
	nic := false
	for _, f := range cluster {
		_, inner, ofNIC := strings.Cut(f.Field, "].") // NICs are all alike here
		switch {
		case f.Field == "Handoff": // said above
		case !ofNIC:
			bad.Check(f.Field, f.Err)
		case !nic:
			nic = true
			bad.Check("NIC."+inner, f.Err)
		}
	}
	bad.Check("Load", s.load().Validate())
	if s.MaxModelLen < 0 {
		bad.Add("MaxModelLen", s.MaxModelLen, "use 1 or more")
	}
	config.Between(&bad, "Attainment", s.Attainment, 0, 1)
	return bad.Err("simulation.Simulation")
}

// load is what the cluster is asked, in the profile's tokens.
func (s *Simulation) load() load.Spec {
	l := s.Load
	l.Vocab = s.Profile.Vocab
	return l
}

// Run simulates. progress is told how many requests have ended. When ctx is done
// the error is its, and there is no result. An error of Records comes with the result.
func (s *Simulation) Run(ctx context.Context, progress func(ended int)) (*Result, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	cfg := s.config(&config.Faults{}) // Validate has seen to them
	asked, err := s.load().Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = asked.Close() }() // it was read only
	sum := summary{SLO: s.SLO}
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
	r := newResult(s, &cfg, &sum, stats)
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
		b = strconv.AppendFloat(b, figure.Seconds(d), 'f', -1, 64)
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

// ParseGoodput reads limits as vLLM's --goodput has them, ttft:2000,tpot:50,e2el:..
// in milliseconds, or none.
func ParseGoodput(text string) (SLO, error) {
	var slo SLO
	if text == "none" {
		return slo, nil
	}
	for pair := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, value, _ := strings.Cut(pair, ":")
		ms, err := strconv.ParseFloat(value, 64)
		if err != nil || !(ms > 0 && ms < 1e9) {
			return slo, fmt.Errorf("%q: write a metric and milliseconds above 0, such as ttft:2000", pair)
		}
		d := time.Duration(ms * float64(time.Millisecond))
		switch name {
		case "ttft":
			slo.TTFT = d
		case "tpot":
			slo.TPOT = d
		case "e2el":
			slo.E2EL = d
		default:
			return slo, fmt.Errorf("%q: the metric is unknown: use ttft, tpot or e2el", pair)
		}
	}
	if slo == (SLO{}) {
		return slo, fmt.Errorf("%q: write a metric and milliseconds, such as ttft:2000, or none", text)
	}
	return slo, nil
}
