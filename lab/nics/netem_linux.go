package nics

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"kvferry/internal/config"
	"kvferry/lab/wire"
)

// What a port sends to its host is what the link does in that direction. By netem it is two
// queueing disciplines:
//
//	tbf 1: ──► netem 10:
//
// TCP hands frames of up to 64 KiB over, and netem takes each for one packet: it would lose
// 45 at once. tbf cuts up what is more than its bucket, and so the bucket holds one packet of the
// wire, at a rate that is no limit, unless all that happens is a delay.
const (
	netemMajor = 10
	tbfMajor   = 1
	// bucketTick is the least time that a bucket may be worth: one tick of 64 ns (pkt_sched.h).
	bucketTick = 64e-9
	wholeTicks = 64 // a bucket for frames of 64 KiB at an MTU of 1500, and for longer ones at a larger
	// netemLimit is packets: 1 Gbit/s for 12 s, more than the relay keeps.
	netemLimit = 1 << 20
)

// hasNetem says whether the links are emulated by netem: as the Config says, or if the kernel has
// it. The caller holds n.mu, or n is being built.
func (n *network) hasNetem() (bool, error) {
	if n.cfg.By == ByRelay {
		return false, nil
	}
	if !n.netem.tried {
		n.netem.tried, n.netem.err = true, n.probeNetem()
	}
	if n.netem.err != nil && n.cfg.By == ByNetem {
		return false, config.NewFault("By", n.cfg.By, "this kernel has none (CONFIG_NET_SCH_NETEM): %w: use relay, or leave it out", n.netem.err)
	}
	return n.netem.err == nil, nil
}

// probeNetem puts a netem on lo of the wires and takes it away.
func (n *network) probeNetem() error {
	lo, err := n.wires.LinkByName("lo")
	if err != nil {
		return err
	}
	q := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}, netlink.NetemQdiscAttrs{})
	if err := n.wires.QdiscAdd(q); err != nil {
		return err
	}
	return n.wires.QdiscDel(q)
}

// emulate has the ports do to packets what the link's conditions say: port 1 is where host 1's frames
// leave for host 2. Those that wait stay.
func (n *network) emulate(l *link) error {
	for i, c := range l.conditions {
		port := l.ports[1-i].Attrs().Index
		for _, q := range n.cfg.disciplines(port, c) {
			change := n.wires.QdiscAdd
			if l.emulated {
				change = n.wires.QdiscChange
			}
			if err := change(q); err != nil {
				return fmt.Errorf("%s on a port: %w", q.Type(), err)
			}
		}
	}
	l.emulated = true
	return nil
}

// drain loses all that is on its way, as a black hole does.
func (n *network) drain(l *link) error {
	for i, c := range l.conditions {
		netem := n.cfg.disciplines(l.ports[1-i].Attrs().Index, c)[1]
		if err := n.wires.QdiscDel(netem); err != nil {
			return fmt.Errorf("netem of a port: %w", err)
		}
		if err := n.wires.QdiscAdd(netem); err != nil {
			return fmt.Errorf("netem of a port: %w", err)
		}
	}
	return nil
}

// disciplines are tbf and netem of a port, in the units of their messages.
func (c Config) disciplines(port int, w wire.Conditions) [2]netlink.Qdisc {
	// ticks of a rate at which one tick is worth a packet, its Ethernet header and some more.
	ticks, rate := uint32(1), float64(c.MTU+100)/bucketTick
	if w == (wire.Conditions{Delay: w.Delay}) {
		ticks = wholeTicks
	}
	bucket := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: port, Handle: netlink.MakeHandle(tbfMajor, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       uint64(rate), Buffer: ticks, Limit: 1, // of its own queue, in which nothing is
	}
	netem := netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: port, Handle: netlink.MakeHandle(netemMajor, 0), Parent: netlink.MakeHandle(tbfMajor, 1)},
		netlink.NetemQdiscAttrs{
			Latency: uint32(w.Delay.Microseconds()), Jitter: uint32(w.Jitter.Microseconds()), Limit: netemLimit,
			Loss: float32(100 * w.Loss), Duplicate: float32(100 * w.Duplicate), ReorderProb: float32(100 * w.Reorder), CorruptProb: float32(100 * w.Corrupt),
		})
	// A share of 0 is left out of the message, and the kernel then keeps the one before. This is
	// 1 packet in 4,294,967,296.
	netem.CorruptProb = max(netem.CorruptProb, 1)
	return [2]netlink.Qdisc{bucket, netem}
}

// counts reads what the ports' netem count: packets and those lost, also for want of room.
func (n *network) counts(l *link) (lines [Hosts]wire.Counts, err error) {
	for i := range lines {
		all, err := n.wires.QdiscList(l.ports[1-i])
		if err != nil {
			return lines, err
		}
		for _, q := range all {
			if s := q.Attrs().Statistics; q.Type() == "netem" && s != nil {
				lines[i].Packets, lines[i].Lost = int64(s.Basic.Packets)+int64(s.Queue.Drops), int64(s.Queue.Drops)
			}
		}
	}
	return lines, nil
}
