package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kvferry/config"
	"kvferry/engine"
	"kvferry/handoff"
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

	Random sim.Random // without Trace; its Vocab is the profile's
	Trace  *TraceFile
	Speed  float64 // of the trace

	SLO        sim.SLO
	Attainment float64 // share of requests that must keep the SLO

	// Records gets a line of JSON for every request, if not nil.
	Records io.Writer
}

// A TraceFile is a trace that has been looked through.
type TraceFile struct {
	Path     string
	Requests int // to take, at most what the file has
	Longest  int // tokens of prompt and output together, of these
}

// OpenTrace looks through a trace and takes its first n requests, or all of them
// if n is 0. Errors name the file and the line.
func OpenTrace(path string, n int) (*TraceFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, config.FileError(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, config.FileError(path, syscall.EISDIR)
	}
	requests, longest, err := sim.ScanTrace(path, f, n)
	if err != nil {
		return nil, err
	}
	if requests == 0 {
		return nil, fmt.Errorf("%q: it has no requests", path)
	}
	return &TraceFile{Path: path, Requests: requests, Longest: longest}, nil
}

// requests is how many there will be.
func (s *Simulation) requests() int {
	if s.Trace != nil {
		return s.Trace.Requests
	}
	return s.Random.Requests
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

// FitTrace raises MaxModelLen to what the trace's longest request needs, as far
// as a node's pool holds it.
func (s *Simulation) FitTrace() {
	if s.Trace == nil || s.MaxModelLen != 0 || s.Trace.Longest <= s.Profile.MaxModelLen {
		return
	}
	blocks := s.KVBlocks
	if blocks == 0 {
		blocks = s.Profile.Blocks()
	}
	s.MaxModelLen = max(min(s.Trace.Longest, blocks*s.Profile.KVGeometry.BlockTokens), s.Profile.MaxModelLen)
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
		return bad.Err("bench.Simulation")
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
	if s.Trace == nil {
		r := s.Random
		r.Vocab = s.Profile.Vocab
		bad.Check("Random", r.Validate())
	} else if !(s.Speed > 0) || math.IsInf(s.Speed, 0) {
		bad.Add("Speed", s.Speed, "use more than 0: at 2 requests come twice as fast")
	}
	if s.MaxModelLen < 0 {
		bad.Add("MaxModelLen", s.MaxModelLen, "use 1 or more")
	}
	config.Between(&bad, "Attainment", s.Attainment, 0, 1)
	return bad.Err("bench.Simulation")
}

// load opens the requests; close ends with it.
func (s *Simulation) load() (load sim.Load, end func(), err error) {
	if s.Trace == nil {
		r := s.Random
		r.Vocab = s.Profile.Vocab
		return r.Load(), func() {}, nil
	}
	f, err := os.Open(s.Trace.Path)
	if err != nil {
		return nil, nil, err
	}
	trace, err := sim.NewTrace(s.Trace.Path, f, s.Speed, s.Profile.Vocab)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	trace.Limit(s.Trace.Requests)
	return trace, func() { _ = f.Close() }, nil
}

// Run simulates. progress is told how many requests have ended. When ctx is done
// the error is its, and there is no result. An error of Records comes with the result.
func (s *Simulation) Run(ctx context.Context, progress func(ended int)) (*SimulationResult, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	cfg := s.config(&config.Faults{}) // Validate has seen to them
	load, end, err := s.load()
	if err != nil {
		return nil, err
	}
	defer end()
	summary := sim.Summary{SLO: s.SLO}
	records := newOutcomes(s.Records)
	cfg.OnOutcome = func(o *sim.Outcome) {
		summary.Outcome(o)
		records.add(o)
	}
	cfg.OnGap = summary.Gap
	cfg.OnProgress = progress
	began := time.Now()
	stats, err := sim.Run(ctx, cfg, load)
	lost := records.flush() // of an interrupted run too: what is there ends with a whole line
	if err != nil {
		return nil, errors.Join(err, lost)
	}
	r := newSimulationResult(s, &cfg, &summary, stats)
	r.WallS = time.Since(began).Seconds()
	r.TTFT, r.TPOT = &summary.TTFT, &summary.TPOT
	if r.Failed == r.Requests && r.Requests > 0 {
		return r, errors.Join(fmt.Errorf("every request was refused, the first because: %w", summary.FirstFailure), lost)
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
		b = strconv.AppendFloat(b, seconds(d), 'f', -1, 64)
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
func ParseGoodput(text string) (sim.SLO, error) {
	var slo sim.SLO
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
	if slo == (sim.SLO{}) {
		return slo, fmt.Errorf("%q: write a metric and milliseconds, such as ttft:2000, or none", text)
	}
	return slo, nil
}
