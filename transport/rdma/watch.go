package rdma

import (
	"fmt"
	"time"

	"kvferry/transport"
)

// reopenEvery is how often a device that went away is looked for. The kernel's uevents would
// tell, and take a socket and a parser for what hardly ever happens.
const reopenEvery = 500 * time.Millisecond

// watch follows the device's events until the rail is closed. A port that goes
// down ends all connections at once, where waiting for retries to run out would
// take seconds; the engine's paths come back when the port does.
func (r *Rail) watch(dev device) {
	for dev != nil {
		ev, err := dev.event()
		if err != nil {
			return // closed
		}
		switch ev {
		case portDown:
			r.goDown("is down: bring its link up")
		case portUp:
			r.mu.Lock()
			r.down = ""
			r.mu.Unlock()
			r.cfg.Logger.Info("transport/rdma: port is up", "rail", r.cfg.Name)
		case deviceGone:
			dev = r.replace(dev)
		}
	}
}

// goDown ends everything under way for a reason, and has new connections refused for it until
// the port is up.
func (r *Rail) goDown(why string) {
	r.mu.Lock()
	r.down = fmt.Sprintf("%s %s", r.cfg.Device, why)
	why = r.down
	r.mu.Unlock()
	r.cfg.Logger.Warn("transport/rdma: "+why, "rail", r.cfg.Name)
	r.cutAll(fmt.Errorf("%w: %s", transport.ErrUnreachable, why))
}

// replace lets go of a device that was removed (the kernel waits for that), and
// waits for one of its name to come. All memory is registered again; keys stay,
// as peers ask what a key means when they connect.
func (r *Rail) replace(dev device) device {
	r.goDown("was removed")
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.dev = nil
	r.mu.Unlock()
	r.users.Wait()
	r.regs.pinning.Lock()
	r.regs.lost()
	err := dev.close()
	r.regs.pinning.Unlock()
	if err != nil {
		r.cfg.Logger.Warn("transport/rdma: closing a removed device", "rail", r.cfg.Name, "err", err)
	}
	tick := time.NewTicker(reopenEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.quit:
			return nil
		case <-tick.C:
		}
		dev, err := r.open(&r.cfg)
		if err != nil {
			continue // not there yet
		}
		if err := r.regs.restore(dev); err != nil {
			r.cfg.Logger.Warn("transport/rdma: registering memory again", "rail", r.cfg.Name, "err", err)
			_ = dev.close()
			continue
		}
		r.mu.Lock()
		closed := r.closed
		if !closed {
			r.dev, r.down = dev, ""
		}
		r.mu.Unlock()
		if closed {
			r.regs.close()
			_ = dev.close()
			return nil
		}
		r.cfg.Logger.Info("transport/rdma: device is back", "rail", r.cfg.Name)
		return dev
	}
}
