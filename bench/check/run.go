package check

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// Why a check has no good end.
var (
	ErrFailed      = errors.New("not fit to serve")                // a rail fails
	ErrInterrupted = errors.New("no verdict, and nothing is kept") // it was stopped before it had seen all
)

// Config describes a check. Rails is required.
type Config struct {
	Rails []string
	// Peer is the Listener's host, or host:port. Empty: both ends are here, the other one a
	// child process, and there is no path to look at.
	Peer     string
	Segment  int64         // at either end, as a node's KV pool has it
	Location string        // of this end's memory
	Duration time.Duration // of each rate, a rail, a direction: from when it is steady, at the least. Default 1 s
	Probes   int           // of each rail; negative is none. Default 1000
	Timeout  time.Duration // of an answer, and of one batch. Default 10 s
	// LineRates are the rails' in bytes a second, instead of what the NICs say.
	LineRates []float64
	Limits    Limits
	Out       string
	Command   []string
	Stdout    io.Writer
	Progress  io.Writer
	Logger    *slog.Logger
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	if t := c.transfer(); len(c.Rails) == 0 {
		bad.Add("Rails", nil, "name one, %s", rails.Forms())
	} else {
		bad.Check("", t.Validate())
	}
	if topology.CheckLocation(cmp.Or(c.Location, topology.Any)) == nil {
		bad.Check("Location", c.place())
	}
	bad.Refuse(slices.Contains(c.Rails, rail.Mem), "Rails", rail.Mem, "it is no rail that serves: leave it out")
	if n := len(c.LineRates); n > 0 && n != len(c.Rails) {
		bad.Check("LineRates", fmt.Errorf("%d rates: there are %d rails: give a rate for each", n, len(c.Rails)))
	}
	for _, share := range []struct {
		name string
		v    float64
	}{{"Limits.Line", c.Limits.Line}, {"Limits.Best", c.Limits.Best}, {"Limits.Together", c.Limits.Together}, {"Limits.Lost", c.Limits.Lost}} {
		bad.Refuse(!(share.v >= 0 && share.v <= 1), share.name, share.v, "use a share from 0, which turns it off, to 1")
	}
	bad.Refuse(c.Limits.Flaps < 0, "Limits.Flaps", c.Limits.Flaps, "use 1 or more, or 0 for any number")
	bad.Refuse(c.Limits.Clock < 0, "Limits.Clock", c.Limits.Clock, "use a positive duration, or 0 for any")
	return bad.Err("bench/check.Config")
}

// mostDepth is how many blocks may be under way: what a link needs is less.
const mostDepth = 1024

// transfer is what of the configuration is the transfers'.
func (c *Config) transfer() rail.Config {
	return rail.Config{
		Rails: c.Rails, Server: c.Peer, Segment: c.Segment, Location: c.Location, Duration: c.Duration, Timeout: c.Timeout, Check: true,
		Ops: []transport.Op{transport.Write, transport.Read}, Blocks: []int64{rail.MostBlock}, Batches: []int{1}, Depths: []int{mostDepth},
		Steady: true, Logger: c.Logger,
	}
}

// place says whether this machine has memory at the location.
func (c *Config) place() error {
	mem, free, err := transport.MapMemory(os.Getpagesize())
	if err != nil {
		return err
	}
	return errors.Join(topology.Bind(mem, cmp.Or(c.Location, topology.Any)), free())
}

// Run looks, judges, prints and writes check.json, if there is a folder. A rail that fails is
// ErrFailed.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Duration, time.Second)
	config.Default(&cfg.Probes, 1000)
	config.Default(&cfg.Timeout, 10*time.Second)
	config.Default(&cfg.Segment, rail.DefaultSegment())
	config.Default(&cfg.Progress, io.Discard)
	config.Default(&cfg.Stdout, io.Discard)
	r := &Report{Seen: Seen{Started: time.Now(), Command: cfg.Command, Peer: cfg.Peer, Segment: cfg.Segment}, Limits: cfg.Limits, Machine: observe.Describe()}
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
		err = fmt.Errorf("%w: %s", ErrFailed, strings.Join(bad, ", "))
	}
	return r, err
}

// look finds everything out.
func (c *Config) look(ctx context.Context, s *Seen) error {
	names, addrs, err := c.open()
	if err != nil {
		return err
	}
	s.Here = root("/").host()
	var there *peer
	a := answer{Host: s.Here}
	if c.Peer != "" {
		there = newPeer(c.Peer, c.Timeout)
		defer there.close()
		if a, err = there.ask(ctx, question{Protocol: protocol, Rails: addrs, Echo: c.Probes > 0}); err != nil {
			return err
		}
		if len(a.Rails) != len(c.Rails) || len(a.Echoes) != len(a.Rails) {
			return config.NewFault("Rails", strings.Join(c.Rails, ","), "the other end has %d rails and this one %d: name as many at both, in one order", len(a.Rails), len(c.Rails))
		}
		if s.Clock, err = there.clock(ctx); err != nil {
			return err
		}
	}
	s.There = a.Host
	for i, spec := range c.Rails {
		r := Rail{Spec: spec}
		to := ""
		if there != nil {
			r.There, to = a.Rails[i], a.Rails[i].Addr
		}
		r.Here = root("/").facts(spec, names[i], addrs[i], to)
		if there == nil {
			r.There = r.Here
		}
		if len(c.LineRates) > 0 {
			r.Here.LineRate, r.There.LineRate = c.LineRates[i], c.LineRates[i]
		}
		if there != nil && a.Echoes[i].Addr != "" && r.Here.MTU > 0 && r.There.MTU > 0 {
			fmt.Fprintf(c.Progress, "probing %s\n", spec)
			host, _, _ := net.SplitHostPort(addrs[i])
			r.Small = probe(ctx, host, a.Echoes[i], smallProbe, min(c.Probes, 2*probesAhead))
			r.Full = probe(ctx, host, a.Echoes[i], min(r.Here.MTU, r.There.MTU, mostPacket), c.Probes)
		}
		s.Rails = append(s.Rails, r)
	}
	for i := range s.Rails {
		r := &s.Rails[i]
		if r.Rates, err = c.rates(ctx, a.Transfer, i, 1); err != nil {
			return err
		}
		r.After = root("/").facts(r.Spec, r.Here.Rail, r.Here.Addr, "")
	}
	if len(s.Rails) > 1 {
		all, err := c.rates(ctx, a.Transfer, 0, len(s.Rails))
		if err != nil {
			return err
		}
		s.All = &all
	}
	return nil
}

// open opens the rails to see what they are called and where they are reached.
func (c *Config) open() (names, addrs []string, err error) {
	opened, err := rails.OpenAll(c.Rails, rails.Options{Logger: c.Logger})
	for _, r := range opened {
		names, addrs = append(names, r.Name()), append(addrs, r.Addr())
		err = errors.Join(err, r.Close())
	}
	return names, addrs, err
}

// rates moves bytes over n rails from the first. What fails is a part of what was seen; the
// error is ctx's, or says that nothing can be moved at all.
func (c *Config) rates(ctx context.Context, port string, first, n int) (r Rates, err error) {
	cfg := c.transfer()
	cfg.Segment = c.Segment
	cfg.Rails = c.Rails[first : first+n]
	if c.Peer != "" {
		cfg.Place = first
		host, _ := address(c.Peer)
		cfg.Server = net.JoinHostPort(host, port)
	}
	fmt.Fprintf(c.Progress, "moving bytes over %s\n", strings.Join(cfg.Rails, ", "))
	got, err := rail.Run(ctx, cfg)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if got == nil { // the other end has said no port
		return r, err
	}
	if r.Result = got; err != nil && !errors.Is(err, rail.ErrFaults) {
		r.Error = err.Error()
	}
	for _, p := range got.Points {
		rate := Rate{GBps: p.GBps, BadAt: p.BadAt}
		if p.Checked != nil {
			rate.Checked, rate.Bad = *p.Checked, *p.Bad
		}
		if p.Error != "" && r.Error == "" {
			r.Error = p.Error
		}
		if p.Op == transport.Write.String() {
			r.Write = rate
		} else {
			r.Read = rate
		}
	}
	return r, nil
}

// address splits a peer's, whose port may be left out.
func address(text string) (host, port string) {
	if host, port, err := net.SplitHostPort(text); err == nil {
		return host, port
	}
	return strings.Trim(text, "[]"), DefaultPort
}

// A peer is the Listener, as it is talked to.
type peer struct {
	url    string
	client http.Client
}

func newPeer(text string, timeout time.Duration) *peer {
	host, port := address(text)
	return &peer{url: "http://" + net.JoinHostPort(host, port), client: http.Client{Timeout: timeout, Transport: &http.Transport{}}}
}

func (p *peer) close() { p.client.CloseIdleConnections() }

// mostAnswer bounds what is read of an answer.
const mostAnswer = 1 << 20

func (p *peer) say(ctx context.Context, method, path string, body []byte) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return a, fmt.Errorf("no kvferry rail check --listen at %s: start one there: %w", p.url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil || resp.StatusCode != http.StatusOK || a.Protocol != protocol {
		return a, fmt.Errorf("%s does not speak version %d of kvferry rail check's protocol: is the same kvferry there? it said %.100q", p.url, protocol, text)
	}
	return a, nil
}

func (p *peer) ask(ctx context.Context, q question) (answer, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	return p.say(ctx, http.MethodPost, "/facts", body)
}

// clock asks the time a few times; the shortest round trip says it best (as NTP does, RFC 5905).
func (p *peer) clock(ctx context.Context) (*Clock, error) {
	best := &Clock{}
	for range 20 {
		sent := time.Now()
		a, err := p.say(ctx, http.MethodGet, "/clock", nil)
		if err != nil {
			return nil, err
		}
		took := time.Since(sent)
		if best.RoundTrip == 0 || took < best.RoundTrip {
			best.RoundTrip, best.Offset = took, time.Duration(a.Clock-sent.Add(took/2).UnixNano())
		}
	}
	return best, nil
}
