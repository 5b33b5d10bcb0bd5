package nics

import (
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kvferry/lab/wire"
)

// A network is two hosts and what joins them.
type network struct {
	cfg   Config           // with defaults
	hosts [Hosts]namespace // host 1 is at 0
	wires namespace
	mu    sync.Mutex // held by each change that comes after newNetwork
	links []*link    // by NIC; the last is for management; none: the lab is over
	netem struct {
		tried bool
		err   error // why there is none
	}
}

// A link is a veth for each host, whose other ends are ports of the wires. What joins them
// is a filter at each port, which costs next to nothing. A link that is to be bad has netem at
// its ports too, or a relay instead of the filters.
type link struct {
	nics, ports [Hosts]netlink.Link
	filtered    bool // the filters between the ports are there
	holed       bool // a black hole
	conditions  wire.Link
	emulated    bool        // netem is there
	relay       *wire.Relay // nil: the filters
}

// newNetwork builds it. What was built is gone when it fails.
func newNetwork(cfg Config) (n *network, err error) {
	n = &network{cfg: cfg}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	for _, ns := range []*namespace{&n.hosts[0], &n.hosts[1], &n.wires} {
		if *ns, err = newNamespace(); err != nil {
			return n, err
		}
	}
	// IPv6 would have each port announce itself, on the wires.
	if err := n.wires.set(sysctl{"ipv6/conf/all/disable_ipv6", "1"}, sysctl{"ipv6/conf/default/disable_ipv6", "1"}); err != nil {
		return n, err
	}
	for i := range n.hosts {
		if err := n.hosts[i].set(cfg.sysctls()...); err != nil {
			return n, fmt.Errorf("%s: %w", hostname(i+1), err)
		}
	}
	for nic := range cfg.Rates {
		if err := n.addLink(nic, Name(nic)); err != nil {
			return n, fmt.Errorf("link %d: %w", nic, err)
		}
	}
	if err := n.addLink(-1, management); err != nil {
		return n, fmt.Errorf("link %s: %w", management, err)
	}
	if cfg.MPTCP {
		for i := range n.hosts {
			if err := n.joinMPTCP(i); err != nil {
				return n, fmt.Errorf("MPTCP on %s: %w", hostname(i+1), err)
			}
		}
	}
	return n, nil
}

// sysctls of a host, set before it has NICs. Each NIC answers ARP for its own
// address only (arp_ignore 1), and asks in its own name (arp_announce 2); a reply may come
// in by any (rp_filter 0). The kernel's Documentation/networking/ip-sysctl.rst has them.
// IPv6 would only add its own traffic to what is counted; lo keeps it.
func (c Config) sysctls() []sysctl {
	ignore, announce := "1", "2"
	if c.NoRoutes {
		ignore, announce = "0", "0"
	}
	all := []sysctl{{"ipv6/conf/default/disable_ipv6", "1"}, {"mptcp/enabled", "1"}}
	for _, of := range []string{"all", "default"} {
		dir := "ipv4/conf/" + of
		all = append(all, sysctl{dir + "/arp_ignore", ignore}, sysctl{dir + "/arp_announce", announce}, sysctl{dir + "/rp_filter", "0"})
	}
	return all
}

// addLink makes a link; nic is -1 for management. The ports are made in the wires, the NICs
// with them in the hosts, so that a NIC never has a name or an address outside. The link
// is plugged in last: until then the hosts see no carrier.
func (n *network) addLink(nic int, name string) error {
	l := &link{}
	n.links = append(n.links, l)
	for i := range n.hosts {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = fmt.Sprintf("%s-%d", name, i+1), n.cfg.MTU
		port := &netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(n.hosts[i].fd)}
		if err := n.wires.LinkAdd(port); err != nil {
			return fmt.Errorf("veth: %w", err)
		}
		l.ports[i] = port
		var err error
		if l.nics[i], err = n.hosts[i].LinkByName(name); err != nil {
			return err
		}
		// clsact holds the filters of connect, and queues nothing.
		if err := n.wires.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: port.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}); err != nil {
			return fmt.Errorf("clsact: %w", err)
		}
	}
	if nic >= 0 {
		l.conditions = n.cfg.condition(nic)
	}
	if err := n.join(l, nic >= 0 && n.cfg.relayed(nic)); err != nil {
		return err
	}
	for i := range n.hosts {
		if err := n.configure(i, l, nic); err != nil {
			return err
		}
	}
	return n.plug(l, true)
}

// configure gives a host's NIC its addresses, rate and routes.
func (n *network) configure(i int, l *link, number int) error {
	h, nic, texts := n.hosts[i], l.nics[i], []string{ManagementAddress(i + 1)}
	if number >= 0 {
		texts = append([]string{n.cfg.address(i+1, number)}, Addresses(i+1, number, n.cfg.Addresses)[1:]...)
	}
	address := net.ParseIP(texts[0]).To4()
	for _, text := range texts {
		if err := h.AddrAdd(nic, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(text).To4(), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	if err := h.LinkSetUp(nic); err != nil {
		return err
	}
	if number < 0 {
		return nil
	}
	at, bucket := n.shaper(l, i, n.cfg.Rates[number])
	if err := at.QdiscReplace(bucket); err != nil {
		return fmt.Errorf("tbf: %w", err)
	}
	if n.cfg.Congestion != "" {
		// In place of the route that came with the address. A network namespace takes as its default only
		// what net.ipv4.tcp_allowed_congestion_control of the machine has; a route takes any.
		if err := h.RouteReplace(&netlink.Route{
			Dst:       &net.IPNet{IP: address.Mask(net.CIDRMask(24, 32)), Mask: net.CIDRMask(24, 32)},
			LinkIndex: nic.Attrs().Index, Src: address, Scope: netlink.SCOPE_LINK, Congctl: n.cfg.Congestion,
		}); err != nil {
			return fmt.Errorf("congestion control %s: %w", n.cfg.Congestion, err)
		}
	}
	if !n.cfg.SharedSubnet || n.cfg.NoRoutes {
		return nil
	}
	// A route for each source address: packets leave by the NIC whose address they have.
	// Tables 253 to 255 and rules from 32766 are the kernel's own; a lower number goes first.
	table := 100 + number
	rule := netlink.NewRule()
	rule.Src, rule.Table, rule.Priority = &net.IPNet{IP: address, Mask: net.CIDRMask(32, 32)}, table, 1000+number
	if err := h.RuleAdd(rule); err != nil {
		return fmt.Errorf("rule for %s: %w", address, err)
	}
	if err := h.RouteAdd(&netlink.Route{
		Dst:       &net.IPNet{IP: address.Mask(net.CIDRMask(24, 32)), Mask: net.CIDRMask(24, 32)},
		LinkIndex: nic.Attrs().Index, Table: table, Src: address, Scope: netlink.SCOPE_LINK,
	}); err != nil {
		return fmt.Errorf("route for %s: %w", address, err)
	}
	return nil
}

// bucket shapes what a NIC sends to rate, in bits a second. The kernel keeps a burst as the
// time that it takes, in ticks, and a queue's latency as the bytes of it; a tick is what
// /proc/net/psched says. tc-tbf(8) does the same arithmetic.
func (c Config) bucket(nic netlink.Link, rate int64) *netlink.Tbf {
	perSecond := float64(rate) / 8
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: nic.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       uint64(perSecond),
		Limit:      uint32(min(perSecond*c.Latency.Seconds()+float64(c.Burst), math.MaxUint32)),
		Buffer:     uint32(min(float64(c.Burst)/perSecond*float64(time.Second/time.Microsecond)*netlink.TickInUsec(), math.MaxUint32)),
	}
}

// shaper is what shapes what a host sends by a link, and where it is: the NIC, or with
// Config.SwitchQueue the port in front of the other host.
func (n *network) shaper(l *link, i int, rate int64) (*netlink.Handle, *netlink.Tbf) {
	if n.cfg.SwitchQueue == 0 {
		return n.hosts[i].Handle, n.cfg.bucket(l.nics[i], rate)
	}
	port := n.cfg
	port.Burst = max(portBurst, port.MTU+100)
	bucket := port.bucket(l.ports[1-i], rate)
	bucket.Limit = uint32(port.SwitchQueue)
	return n.wires.Handle, bucket
}

// join has the ports joined as the link's conditions ask for: by filters, with netem or alone, or
// by a relay. A relay or netem that is there stays, so that a change loses nothing.
func (n *network) join(l *link, relayed bool) error {
	switch {
	case l.relay != nil:
		l.relay.Change(l.conditions)
		return nil
	case l.emulated:
		return n.emulate(l)
	case !relayed && l.conditions.Clean():
		return n.filter(l, !l.holed)
	}
	if netem, err := n.hasNetem(); err != nil {
		return err
	} else if netem {
		if err := n.emulate(l); err != nil {
			return err
		}
		return n.filter(l, !l.holed)
	}
	if err := n.filter(l, false); err != nil {
		return err
	}
	var ports [2]int
	for i, port := range l.ports {
		ports[i] = port.Attrs().Index
	}
	return n.wires.do(func() (err error) {
		l.relay, err = wire.NewRelay(ports, l.conditions, n.cfg.Seed+uint64(ports[0]))
		return err
	})
}

// hole has a link lose all that comes, or not any more.
func (n *network) hole(l *link, on bool) error {
	l.holed = on
	if l.relay != nil {
		l.relay.Hole(on)
		return nil
	}
	if err := n.filter(l, !on); err != nil || !on || !l.emulated {
		return err
	}
	return n.drain(l)
}

// filter adds or removes the filters that move what comes in at one port out of
// the other. Without them a frame for another's address ends in the wires' stack.
func (n *network) filter(l *link, on bool) error {
	if on == l.filtered {
		return nil
	}
	for i, port := range l.ports {
		filter := &netlink.U32{ // without keys it matches all
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: port.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL,
			},
			Actions: []netlink.Action{netlink.NewMirredAction(l.ports[1-i].Attrs().Index)},
		}
		change, verb := n.wires.FilterAdd, "adding"
		if !on {
			change, verb = n.wires.FilterDel, "removing"
		}
		if err := change(filter); err != nil {
			return fmt.Errorf("%s the filter of a wire (cls_u32, act_mirred): %w", verb, err)
		}
	}
	l.filtered = on
	return nil
}

// plug pulls the cable of a link at both ends, or plugs it in.
func (n *network) plug(l *link, on bool) error {
	change := n.wires.LinkSetUp
	if !on {
		change = n.wires.LinkSetDown
	}
	for _, port := range l.ports {
		if err := change(port); err != nil {
			return err
		}
	}
	if !on && l.relay != nil {
		l.relay.Cut()
	}
	return nil
}

// setRate takes effect with the next packet, in both directions; what is queued stays.
func (n *network) setRate(l *link, rate int64) error {
	for i := range n.hosts {
		at, bucket := n.shaper(l, i, rate)
		if err := at.QdiscChange(bucket); err != nil {
			return fmt.Errorf("tbf: %w", err)
		}
	}
	return nil
}

// change runs do on the link of a NIC, one change at a time, unless the lab is over.
func (n *network) change(nic int, do func(*link) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.links) == 0 {
		return errOver
	}
	return do(n.links[nic])
}

var errOver = fmt.Errorf("the lab is over: %w", net.ErrClosed)

// The changes that faults are. Each is done when it returns: netlink answers once the kernel
// has made it.

func (n *network) setLink(nic int, up bool) error {
	return n.change(nic, func(l *link) error { return n.plug(l, up) })
}

func (n *network) changeRate(nic int, rate int64) error {
	return n.change(nic, func(l *link) error { return n.setRate(l, rate) })
}

func (n *network) blackHole(nic int) error {
	return n.change(nic, func(l *link) error { return n.hole(l, true) })
}

// changeCondition has a condition of a link be another from now on, host's direction first.
func (n *network) changeCondition(nic, host int, name, value string) error {
	return n.change(nic, func(l *link) error {
		next := l.conditions
		if err := next.Set(name, value, host-1); err != nil {
			return err
		}
		if err := next.Validate(); err != nil {
			return err
		}
		l.conditions = next
		return n.join(l, true)
	})
}

// silence makes black holes of all links, the management's too.
func (n *network) silence() error {
	return n.change(0, func(*link) error {
		for _, l := range n.links {
			if err := n.hole(l, true); err != nil {
				return err
			}
		}
		return nil
	})
}

// clear makes a link what it was at the start. The cable comes last: when the hosts see a
// carrier, the link is whole.
func (n *network) clear(nic int) error {
	return n.change(nic, func(l *link) error {
		if err := n.setRate(l, n.cfg.Rates[nic]); err != nil {
			return err
		}
		l.conditions = n.cfg.condition(nic)
		if err := n.join(l, l.relay != nil || l.emulated); err != nil {
			return err
		}
		if err := n.hole(l, false); err != nil {
			return err
		}
		return n.plug(l, true)
	})
}

// traffic is what a host's own side of a NIC counts: of what was lost in the wires the sender
// has counted, and the receiver has not.
func (n *network) traffic(host, nic int) (t Traffic, err error) {
	err = n.change(nic, func(l *link) error {
		now, err := n.hosts[host-1].LinkByIndex(l.nics[host-1].Attrs().Index)
		if err != nil {
			return err
		}
		s := now.Attrs().Statistics
		t = Traffic{
			SentBytes: int64(s.TxBytes), SentPackets: int64(s.TxPackets),
			ReceivedBytes: int64(s.RxBytes), ReceivedPackets: int64(s.RxPackets),
		}
		return nil
	})
	return t, err
}

// lines is what a link has done to packets, and by which; none if it was always clean.
func (n *network) lines(nic int) (conditions wire.Link, lines [Hosts]wire.Counts, dropped int64, by By, err error) {
	err = n.change(nic, func(l *link) (err error) {
		conditions = l.conditions
		switch {
		case l.relay != nil:
			by = ByRelay
			lines, dropped = l.relay.Counts()
		case l.emulated:
			by = ByNetem
			lines, err = n.counts(l)
		}
		return err
	})
	return conditions, lines, dropped, by, err
}

// do runs fn in a host. The lab may end meanwhile; the thread stays there, by a descriptor of its
// own, so that the lock is not held while fn runs.
func (n *network) do(host int, fn func() error) error {
	fd := -1
	err := n.change(0, func(*link) (err error) {
		fd, err = unix.FcntlInt(uintptr(n.hosts[host-1].fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return namespace{fd: netns.NsHandle(fd)}.do(fn)
}

// namespace returns a descriptor of a host's namespace, or -1 once the lab is over.
func (n *network) namespace(host int) (fd int) {
	if n.change(0, func(*link) error { fd = int(n.hosts[host-1].fd); return nil }) != nil {
		return -1
	}
	return fd
}

// close takes the links away at once, even if a socket holds on to a host.
func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		if l.relay != nil {
			l.relay.Close()
		}
		for _, port := range l.ports {
			if port != nil {
				_ = n.wires.LinkDel(port) // and with it its end at the host
			}
		}
	}
	n.links = nil
	for _, ns := range n.hosts {
		if ns.Handle != nil {
			// Sockets that were closed with something to send would keep the
			// namespace until TCP gives up, after some two minutes (8 tries by
			// default, each after twice the time; 1 takes a second).
			_ = ns.set(sysctl{"ipv4/tcp_orphan_retries", "1"})
			ns.close()
		}
	}
	if n.wires.Handle != nil {
		n.wires.close()
	}
}
