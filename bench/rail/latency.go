package rail

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// LatencyBlocks are the sizes of a run of latencies that names none.
var LatencyBlocks = []int64{8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}

// addModels puts the sizes of the models' KV among the blocks: alone if none are named.
func (c *Config) addModels() (all []KVSize) {
	for _, l := range c.Models {
		for _, size := range l.Sizes(c.BlockTokens) {
			all = append(all, size)
			if !slices.Contains(c.Blocks, size.Bytes) {
				c.Blocks = append(slices.Clone(c.Blocks), size.Bytes)
			}
		}
	}
	if len(all) > 0 {
		slices.Sort(c.Blocks)
	}
	return all
}

// checkLatency checks what is of latencies, of several initiators and of models.
func (c *Config) checkLatency(bad *config.Faults) {
	for _, n := range c.Peers {
		config.Between(bad, "Peers", n, 1, maxPeers)
		if n <= 1 {
			continue
		}
		for _, text := range c.Rails {
			if spec, err := rails.Parse(text); err == nil && spec.Listen != "" {
				if _, port, _ := net.SplitHostPort(spec.Listen); port != "0" {
					bad.Add("Rails", text, "%d initiators cannot all listen there: use port 0", n)
				}
			}
		}
	}
	if c.Latency && len(c.Depths) > 0 && !slices.Equal(c.Depths, []int{1}) {
		bad.Add("Depths", c.Depths, "latencies are of one batch at a time: leave it out")
	}
	for _, name := range c.Beside {
		_, err := ParseReference(name)
		bad.Check("Beside", err)
	}
	switch {
	case len(c.Beside) == 0:
	case !c.Latency:
		bad.Add("Beside", c.Beside, "it stands beside latencies: ask for those too, or leave it out")
	case slices.Contains(c.Rails, Mem):
		bad.Add("Beside", c.Beside, "the rail %s has both ends in this process: leave one out", Mem)
	}
	bad.Refuse(c.BlockTokens < 0 || c.BlockTokens > 1<<16, "BlockTokens", c.BlockTokens, "use 1 to %d tokens", 1<<16)
}

// maxPeers bounds initiators: each has a connection a rail, and threads of its own.
const maxPeers = 4096

// A Reference is what was measured of a size by something else.
type Reference struct {
	Op    string `json:"op"`
	Block int64  `json:"block_bytes"`
	Name  string `json:"name"`
	ReferenceFigures
	Error string `json:"error,omitempty"`
}

// references measures what stands beside a point, once for each op and size. What is not
// installed is said once, and not tried again.
func (s *session) references(ctx context.Context, p *plan) error {
	for _, name := range s.cfg.Beside {
		if _, missing := s.missing[name]; missing || slices.ContainsFunc(s.r.References, func(r Reference) bool { return r.Op == p.Op.String() && r.Block == p.Block && r.Name == name }) {
			continue
		}
		err := ReferenceInstalled(name)
		if err != nil {
			err = fmt.Errorf("%w here", err)
		}
		r := Reference{Op: p.Op.String(), Block: p.Block, Name: name}
		if err == nil {
			r.ReferenceFigures, err = s.reference(ctx, name, p)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			s.missing[name] = struct{}{}
			s.r.Notes = append(s.r.Notes, fmt.Sprintf("%s is left out from %s of %s on: %v", name, p.Op, config.FormatSize(p.Block), err))
			r.Error = err.Error()
		}
		s.r.References = append(s.r.References, r)
	}
	return nil
}

func (s *session) reference(ctx context.Context, name string, p *plan) (ReferenceFigures, error) {
	local := s.link.peer.lines.conn.LocalAddr()
	path := pathOf(s.cfg.Rails[0], s.initiators[0].engine.Rails()[0].Addr, local)
	return MeasureReference(ctx, name, path, p.shape(s.mem, false), s.cfg.Duration, func() (string, error) {
		m, err := s.ask(ctx, &message{Type: "reference", Name: name, Plan: p}, "serving")
		if err == nil && m.Why != "" {
			err = fmt.Errorf("at the target: %s", m.Why)
		}
		if err != nil {
			return "", err
		}
		return m.Addr, nil
	})
}

// refer starts the target's end of a reference, in place of the one before.
func (t *target) refer(m *message) (*message, error) {
	if err := m.Plan.validate(); err != nil {
		return nil, err
	}
	if m.Plan.Segment != int64(len(t.mem)) || !slices.Contains(ReferenceNames, m.Name) {
		return nil, fmt.Errorf("a reference %q for %d bytes makes no sense here", m.Name, m.Plan.Segment)
	}
	if err := t.endReference(); err != nil {
		return nil, err
	}
	var err error
	info := t.seg.Info()
	t.reference, err = ServeReference(m.Name, pathOf(t.specs[0], info.Rails[0].Addr, t.control), m.Plan.shape(t.mem, true))
	if err != nil {
		return &message{Type: "serving", Why: err.Error()}, nil
	}
	return &message{Type: "serving", Addr: t.reference.Addr}, nil
}

func (t *target) endReference() error {
	if t.reference == nil {
		return nil
	}
	err := t.reference.Close()
	t.reference = nil
	return err
}

// shape is what a reference moves: the first thread's blocks, in its order.
func (p *plan) shape(mem []byte, target bool) ReferenceShape {
	order := p.order(0, target)
	return ReferenceShape{Read: p.Op == transport.Read, Block: p.Block, Memory: func(i int) []byte {
		at := p.offset(0, order[i%len(order)])
		return mem[at : at+p.Block]
	}}
}

// pathOf is how a rail's bytes go at an end: by its own address if that is one of IP, else by
// that of the control connection.
func pathOf(rail, addr string, control net.Addr) ReferencePath {
	path := ReferencePath{Host: "127.0.0.1"}
	for _, at := range []string{addr, control.String()} {
		if host, _, err := net.SplitHostPort(at); err == nil && net.ParseIP(host) != nil {
			path.Host = host
			break
		}
	}
	spec, err := rails.Parse(rail)
	if err != nil {
		return path
	}
	switch path.Kind, path.NIC = spec.Kind, spec.NIC; {
	case spec.Kind == rails.RDMA:
		path.NIC += ":" + strconv.Itoa(max(spec.Port, 1))
	case spec.Kind == rails.TCP && path.NIC == "":
		path.NIC = interfaceOf(net.JoinHostPort(path.Host, "0"))
	}
	return path
}

// byInitiator are the bytes of each, of threads that have ended.
func (l *load) byInitiator() []int64 {
	bytes := make([]int64, len(l.initiators))
	for i, th := range l.threads {
		bytes[i%len(bytes)] += th.count.bytes
	}
	return bytes
}
