package tcp

import (
	"context"
	"time"

	"kvferry/transport"
	"kvferry/transport/bundle"
)

// A path is an endpoint whose number of connections the tuner decides.
type path struct {
	*bundle.Endpoint
	addr    string
	connect func(context.Context) (transport.Endpoint, error)
	step    func(now time.Duration, l bundle.Look) (more int) // of its bundle.Width
}

// widen has a path have as many connections as help, from now on.
func (t *tuner) widen(ep *bundle.Endpoint, addr string, connect func(context.Context) (transport.Endpoint, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paths[&path{Endpoint: ep, addr: addr, connect: connect, step: new(bundle.Width).Step}] = struct{}{}
}

// growWithin bounds the making of one more connection.
const growWithin = 5 * time.Second

// fit has a path have as many connections as its width says.
func (t *tuner) fit(p *path, now time.Time) {
	l, ok := p.Look()
	if !ok {
		t.mu.Lock()
		delete(t.paths, p)
		t.mu.Unlock()
		return
	}
	cfg := &t.rail.cfg
	switch p.step(now.Sub(t.rail.began), l) {
	case 1:
		t.growing.Go(func() {
			ctx, cancel := context.WithTimeout(t.ctx, growWithin)
			defer cancel()
			cfg.Logger.Debug("transport/tcp: one more connection is tried", "rail", cfg.Name, "peer", p.addr, "conns", l.Conns, "err", p.Grow(ctx, 1, p.connect))
		})
	case -1:
		p.Shrink()
		cfg.Logger.Debug("transport/tcp: one connection less", "rail", cfg.Name, "peer", p.addr, "conns", l.Conns)
	}
}
