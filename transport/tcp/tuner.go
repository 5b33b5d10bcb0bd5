package tcp

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"kvferry/transport/bundle"
	"kvferry/transport/socket"
)

// A tuner looks at a rail's connections, those made and those served, and has them be what
// their tuning decides. Both ends of a connection do so: the bytes of a READ are sent by the
// target.
type tuner struct {
	rail *Rail
	kick chan struct{} // there is a first connection
	ctx  context.Context
	stop func()        // ends ctx, and so run
	over chan struct{} // run has ended
	told socket.Told   // algorithms that the kernel refused

	credits credits
	growing sync.WaitGroup // connections that are added

	mu      sync.Mutex
	conns   map[*tuned]string  // algorithm of congestion control
	changes int64              // of it
	losses  map[string]*losses // by the peer's host
	paths   map[*path]struct{}
}

// A tuned connection belongs to the tuner until the kernel knows it no more.
type tuned struct {
	raw     syscall.RawConn
	peer    string
	tuning  tuning
	credit  credit
	granted int64     // what the kernel was told; 0 before
	due     time.Time // of the next look
}

// A connection that carries something is looked at every tuneEvery: several times in what it
// takes to fill a long path. One at rest is looked at ten times as rarely.
const tuneEvery = 50 * time.Millisecond

func newTuner(r *Rail) *tuner {
	t := &tuner{rail: r, kick: make(chan struct{}, 1), over: make(chan struct{}), conns: make(map[*tuned]string), losses: make(map[string]*losses), paths: make(map[*path]struct{})}
	t.ctx, t.stop = context.WithCancel(context.Background())
	go t.run()
	return t
}

// opened takes a new connection, and has its buffers be right from the first byte.
func (t *tuner) opened(c socket.Conn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	cfg := &t.rail.cfg
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // the kernel's
	u := &tuned{credit: credit{Host: host}, raw: raw, peer: c.RemoteAddr().String(), tuning: tuning{congestionFixed: cfg.Congestion != "", sendFixed: cfg.SendBuffer != 0, losses: t.with(host)}}
	if !t.look(u, time.Now()) {
		return
	}
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// with are the losses of the connections with a host, of which there is one more.
func (t *tuner) with(host string) *losses {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.losses[host]
	if l == nil {
		l = &losses{}
		t.losses[host] = l
	}
	l.users++
	return l
}

// look looks at a connection and reports false if it is gone.
func (t *tuner) look(u *tuned, now time.Time) bool {
	i, err := look(u.raw)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.conns, u)
		if u.tuning.losses.users--; u.tuning.losses.users == 0 {
			delete(t.losses, u.credit.Host)
		}
		return false
	}
	last := u.tuning.last
	u.credit.Seen, u.credit.Received, u.credit.MinRTT, u.credit.Segment = now.Sub(t.rail.began), i.Received, i.MinRTT, i.Segment
	t.mu.Lock()
	d := u.tuning.step(now.Sub(t.rail.began), i)
	t.mu.Unlock()
	if u.due = now.Add(tuneEvery); i.Sent == last.Sent && i.Received == last.Received {
		u.due = now.Add(10 * tuneEvery)
	}
	t.apply(u, i.Congestion, d)
	return true
}

// apply does what was decided of a connection that has an algorithm.
func (t *tuner) apply(u *tuned, algorithm string, d decision) {
	err := d.apply(u.raw)
	changed := int64(0)
	if d.Congestion != "" && err == nil {
		algorithm, changed = d.Congestion, 1
	}
	if d.Congestion != "" {
		t.tell(u, d, err)
	}
	t.mu.Lock()
	t.conns[u] = algorithm
	t.changes += changed
	t.mu.Unlock()
}

// tell logs a decision about congestion control, and how it went.
func (t *tuner) tell(u *tuned, d decision, err error) {
	log := t.rail.cfg.Logger.With("rail", t.rail.cfg.Name, "peer", u.peer, "algorithm", d.Congestion, "why", d.Why)
	if err == nil {
		log.Info("transport/tcp: congestion control changed")
		return
	}
	u.tuning.congestionFixed = true // by the kernel
	if t.told.First(d.Congestion) {
		log.Warn("transport/tcp: congestion control not changed: the kernel lacks it (modprobe tcp_"+d.Congestion+") or does not let this user have it (sysctl net.ipv4.tcp_allowed_congestion_control)", "err", err)
	}
}

// counts are those of transport.Congested.
func (t *tuner) counts() (conns map[string]int, changes int64) {
	conns = make(map[string]int)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.conns {
		conns[a]++
	}
	return conns, t.changes
}

// grant has each connection receive no more at a time than its credit.
func (t *tuner) grant(now time.Time, all []*tuned) {
	list := make([]*credit, len(all))
	for i, u := range all {
		list[i] = &u.credit
	}
	t.credits.step(now.Sub(t.rail.began), list)
	for _, u := range all {
		to := u.credit.Grant
		if to == 0 {
			to = noLimit
		}
		if u.granted == to || u.granted == 0 && to == noLimit || max(to, u.granted)-min(to, u.granted) < u.granted/8 {
			continue
		}
		u.granted = to
		clampWindow(u.raw, to)
	}
}

// noLimit is a window that is larger than any.
const noLimit = 1 << 30

func (t *tuner) run() {
	defer close(t.over)
	tick := time.NewTicker(tuneEvery)
	defer tick.Stop()
	var fitted time.Time
	for {
		t.mu.Lock()
		all, paths := slices.Collect(maps.Keys(t.conns)), slices.Collect(maps.Keys(t.paths))
		t.mu.Unlock()
		now := time.Now()
		for _, u := range all {
			if !now.Before(u.due) {
				t.look(u, now)
			}
		}
		if now.Sub(fitted) >= bundle.Often/2 { // not for each new connection
			fitted = now
			for _, p := range paths {
				t.fit(p, now)
			}
		}
		if t.rail.nic != "" { // on loopback no queue stands in front of a NIC
			t.grant(now, all)
		}
		next := tick.C
		if len(all)+len(paths) == 0 {
			next = nil
		}
		select {
		case <-next:
		case <-t.kick:
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *tuner) close() {
	t.stop()
	<-t.over
	t.growing.Wait()
}
