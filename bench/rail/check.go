package rail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"kvferry/bench/observe"
	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/topology"
)

// Why a check has no good end.
var (
	ErrUnfit       = errors.New("not fit to serve")                // a rail fails
	ErrInterrupted = errors.New("no verdict, and nothing is kept") // it was stopped before it had seen all
)

// A CheckConfig configures a check of rails. Config's fields have their meaning; lists of points, Iterations and Warmup
// are not for it. Duration is how long each rate is measured from when it is steady, at the least: default 1 s. RailLimits
// replace what the NICs say of themselves.
type CheckConfig struct {
	Config
	Probes int // datagrams of each rail; negative is none. Default 1000
	Limits Limits
}

// Probes are datagrams sent as one frame and echoed.
type Probes struct {
	Size  int    `json:"packet_bytes"` // with the headers of IP and UDP
	Sent  int    `json:"sent"`
	Back  int    `json:"back"`
	Wrong int    `json:"wrong"` // came back with other bytes
	Error string `json:"error,omitempty"`
}

// A Rate is what was moved in one direction.
type Rate struct {
	GBps    float64 `json:"gb_per_s"`
	Checked int64   `json:"blocks_checked"`
	Bad     int64   `json:"blocks_bad"`
	BadAt   string  `json:"bad_at,omitempty"`
}

// Rates are the rates of one rail, or of all together.
type Rates struct {
	Write  Rate    `json:"write"`
	Read   Rate    `json:"read"`
	Error  string  `json:"error,omitempty"`
	Points []Point `json:"points,omitempty"` // all that was recorded
}

// least returns the slower direction's rate.
func (r *Rates) least() float64 { return min(r.Write.GBps, r.Read.GBps) }

// A CheckedRail is all that was seen of a rail.
type CheckedRail struct {
	Spec  string `json:"spec"`
	Here  Facts  `json:"here"`
	There Facts  `json:"there"`
	After Facts  `json:"here_after"` // the rates
	Small Probes `json:"small_probes"`
	Full  Probes `json:"full_probes"`
	Rates Rates  `json:"rates"`
}

// A Clock compares the other end's clock with this one's.
type Clock struct {
	Offset    time.Duration `json:"offset_ns"`     // theirs is ahead by so much
	RoundTrip time.Duration `json:"round_trip_ns"` // the shortest; the offset is known to half of it
}

// Seen is all that a check has found out.
type Seen struct {
	Started time.Time     `json:"started"`
	Command []string      `json:"command"`
	Peer    string        `json:"peer"`
	Segment int64         `json:"segment_bytes"`
	Here    Host          `json:"here"`
	There   Host          `json:"there"`
	Clock   *Clock        `json:"clock,omitempty"` // nil of one machine
	Rails   []CheckedRail `json:"rails"`
	All     *Rates        `json:"all,omitempty"` // together; nil of one rail
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *CheckConfig) Validate() error {
	var bad config.Faults
	bad.Refuse(slices.Contains(c.Rails, Mem), "Rails", Mem, "it is no rail that serves: leave it out")
	t := c.transfers()
	if err := t.Validate(); len(bad) == 0 {
		bad.Check("", err)
	}
	if topology.CheckLocation(cmp.Or(c.Location, topology.Any)) == nil {
		bad.Check("Location", c.place())
	}
	for _, share := range []struct {
		name string
		v    float64
	}{{"Limits.Line", c.Limits.Line}, {"Limits.Best", c.Limits.Best}, {"Limits.Together", c.Limits.Together}, {"Limits.Lost", c.Limits.Lost}} {
		bad.Refuse(!(share.v >= 0 && share.v <= 1), share.name, share.v, "use a share from 0, which turns it off, to 1")
	}
	bad.Refuse(c.Limits.Flaps < 0, "Limits.Flaps", c.Limits.Flaps, "use 1 or more, or 0 for any number")
	bad.Refuse(c.Limits.Clock < 0, "Limits.Clock", c.Limits.Clock, "use a positive duration, or 0 for any")
	return bad.Err("bench/rail.CheckConfig")
}

// mostDepth is how many blocks may be under way: what a link needs is less.
const mostDepth = 1024

// transfers returns the configuration of the transfers: large blocks, many under way, each compared.
func (c *CheckConfig) transfers() Config {
	t := c.Config
	t.Ops, t.Blocks, t.Batches, t.Depths = []transport.Op{transport.Write, transport.Read}, []int64{mostBlock}, []int{1}, []int{mostDepth}
	t.Check, t.steady = true, true
	config.Default(&t.Duration, time.Second)
	return t
}

// place reports whether this machine has memory at the location.
func (c *CheckConfig) place() error {
	mem, free, err := transport.MapMemory(os.Getpagesize())
	if err != nil {
		return err
	}
	return errors.Join(topology.Bind(mem, cmp.Or(c.Location, topology.Any)), free())
}

// Check looks at the rails, judges them, prints the report and writes CheckFile, if there is a folder. A rail that fails is
// ErrUnfit.
func Check(ctx context.Context, cfg CheckConfig) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Config = cfg.transfers()
	cfg.setDefaults()
	config.Default(&cfg.Probes, 1000)
	r := &Report{Seen: Seen{Started: time.Now(), Command: cfg.Command, Peer: cfg.Server, Segment: cfg.Segment, Here: *root("/").host()}, Limits: cfg.Limits, Machine: observe.Describe()}
	if err := cfg.look(ctx, &r.Seen); ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
	} else if err != nil {
		return nil, err
	}
	r.Findings = Judge(&r.Seen, cfg.Limits)
	for i := range r.Rails {
		r.Verdicts = append(r.Verdicts, Verdict(r.Rails[i].Spec, r.Findings))
	}
	err := r.document().Keep(cfg.Stdout, cfg.Out)
	var bad []string
	for _, f := range r.Findings {
		if f.Grade == Fail && !slices.Contains(bad, f.Rail) {
			bad = append(bad, f.Rail)
		}
	}
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("%w: %s", ErrUnfit, strings.Join(bad, ", "))
	}
	return r, err
}

// look finds everything out, in one session with the other end.
func (c *CheckConfig) look(ctx context.Context, s *Seen) error {
	return withSession(ctx, &c.Config, &Result{limit: func(int) float64 { return 0 }}, nil, func(ctx context.Context, x *session) error {
		here, err := x.here()
		if err != nil {
			return err
		}
		there := &message{Host: &s.Here}
		if c.Server != "" {
			if there, err = c.ask(ctx, x, here, s); err != nil {
				return err
			}
		}
		s.There = *there.Host
		for i, spec := range c.Rails {
			s.Rails = append(s.Rails, c.path(ctx, i, spec, here[i], there))
		}
		for i := range s.Rails {
			r := &s.Rails[i]
			r.Rates = c.rates(ctx, x, i, 1)
			r.After = root("/").facts(r.Spec, r.Here.Rail, r.Here.Addr, "")
		}
		if n := len(s.Rails); n > 1 {
			all := c.rates(ctx, x, 0, n)
			s.All = &all
		}
		return nil
	})
}

// here opens this end's rails to see what they are called and where they are reached.
func (s *session) here() (all []Facts, err error) {
	opened, err := s.link.open(0, len(s.cfg.Rails))
	for _, r := range opened {
		all = append(all, Facts{Rail: r.Name(), Addr: r.Addr()})
		err = errors.Join(err, r.Close())
	}
	return all, err
}

// ask asks the other end for its facts, and for the time: a few times, since the shortest round trip says it best (as
// NTP does, RFC 5905).
func (c *CheckConfig) ask(ctx context.Context, x *session, here []Facts, s *Seen) (*message, error) {
	there, err := x.ask(ctx, &message{Type: "facts", Facts: here, Echo: c.Probes > 0}, "known")
	if err != nil {
		return nil, err
	}
	if there.Host == nil || len(there.Echoes) != len(there.Facts) {
		return nil, fmt.Errorf("%s answers facts with a part of them", x.link.peer.name)
	}
	if len(there.Facts) != len(here) {
		return nil, config.NewFault("Rails", strings.Join(c.Rails, ","), "the other end has %d rails and this one %d: name as many at both, in one order", len(there.Facts), len(here))
	}
	s.Clock = &Clock{}
	for range 20 {
		sent := time.Now()
		m, err := x.ask(ctx, &message{Type: "clock"}, "time")
		if err != nil {
			return nil, err
		}
		if took := time.Since(sent); s.Clock.RoundTrip == 0 || took < s.Clock.RoundTrip {
			*s.Clock = Clock{RoundTrip: took, Offset: time.Duration(m.Clock - sent.Add(took/2).UnixNano())}
		}
	}
	return there, nil
}

// path looks at the way of a rail's packets: by the kernel of either end, and by probes where the other end echoes them.
func (c *CheckConfig) path(ctx context.Context, i int, spec string, here Facts, there *message) CheckedRail {
	r := CheckedRail{Spec: spec}
	if c.Server != "" {
		r.There = there.Facts[i]
	}
	r.Here = root("/").facts(spec, here.Rail, here.Addr, r.There.Addr)
	if c.Server == "" {
		r.There = r.Here
	}
	if len(c.RailLimits) > 0 {
		r.Here.LineRate, r.There.LineRate = c.RailLimits[i], c.RailLimits[i]
	}
	if c.Server != "" && there.Echoes[i].Addr != "" && r.Here.MTU > 0 && r.There.MTU > 0 {
		fmt.Fprintf(c.Progress, "probing %s\n", spec)
		host, _, _ := net.SplitHostPort(here.Addr)
		r.Small = probe(ctx, host, there.Echoes[i], smallProbe, min(c.Probes, 2*probesAhead))
		r.Full = probe(ctx, host, there.Echoes[i], min(r.Here.MTU, r.There.MTU, mostPacket), c.Probes)
	}
	return r
}

// rates moves bytes over n rails from the first, both ways. What fails is a part of what was seen, and ends these rails'
// rates.
func (c *CheckConfig) rates(ctx context.Context, x *session, first, n int) (r Rates) {
	fmt.Fprintf(c.Progress, "moving bytes over %s\n", strings.Join(c.Rails[first:first+n], ", "))
	for _, shape := range c.shapes() {
		shape.Number, shape.setup = 1+x.points, setup{first: first, count: n, sel: c.Selects[0], peers: 1}
		p, err := x.point(ctx, &shape)
		if p != nil {
			r.Points = append(r.Points, *p)
			rate := Rate{GBps: p.GBps, BadAt: p.BadAt}
			if p.Checked != nil {
				rate.Checked, rate.Bad = *p.Checked, *p.Bad
			}
			r.Error = cmp.Or(r.Error, p.Error)
			if shape.Op == transport.Write {
				r.Write = rate
			} else {
				r.Read = rate
			}
		}
		if err != nil {
			r.Error = err.Error()
			return r
		}
	}
	return r
}
