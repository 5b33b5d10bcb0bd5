package nics

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The kernel's path manager, as linux/mptcp_pm.h (linux/mptcp.h before Linux 6.7) numbers
// its messages. The netlink package has none of them; ip-mptcp(8) sends the same.
const (
	pathManager = "mptcp_pm"

	cmdAddAddress = 1
	cmdSetLimits  = 5

	attrAddress      = 1 // nested, of the five below
	attrAcceptLimit  = 2 // addresses of the peer that a connection takes up
	attrSubflowLimit = 3 // further connections of one

	addressFamily = 1
	addressID     = 2
	addressIPv4   = 3
	addressFlags  = 6
	addressNIC    = 7

	flagSignal = 1 // tell the peer
)

// joinMPTCP has a host's kernel (0 is host 1's) tell its peers the addresses of its NICs, and
// connect to those it is told. One side's word is enough for a subflow; it goes out
// by the NIC of the network that the address is in. (Endpoints of kind subflow
// would connect from each NIC to the first address, over the first link.)
func (n *network) joinMPTCP(host int) error {
	family, err := n.hosts[host].GenlFamilyGet(pathManager)
	if err != nil {
		return fmt.Errorf("generic netlink has no %s (CONFIG_MPTCP): %w", pathManager, err)
	}
	send := func(command uint8, attrs ...*nl.RtAttr) error {
		request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
		request.AddData(&nl.Genlmsg{Command: command, Version: 1})
		for _, a := range attrs {
			request.AddData(a)
		}
		_, err := request.Execute(unix.NETLINK_GENERIC, 0)
		return err
	}
	return n.hosts[host].do(func() error {
		// The kernel's limit is 8 (MPTCP_PM_ADDR_MAX), and so is that of this lab's links.
		// Its default is 2 subflows and no address, which joins nothing.
		more := nl.Uint32Attr(uint32(maxNICs))
		if err := send(cmdSetLimits, nl.NewRtAttr(attrAcceptLimit, more), nl.NewRtAttr(attrSubflowLimit, more)); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
		for nic := range n.cfg.Rates {
			text := n.cfg.address(host+1, nic)
			a := nl.NewRtAttr(attrAddress|unix.NLA_F_NESTED, nil)
			a.AddRtAttr(addressFamily, nl.Uint16Attr(unix.AF_INET))
			a.AddRtAttr(addressID, nl.Uint8Attr(uint8(nic+1)))
			a.AddRtAttr(addressIPv4, net.ParseIP(text).To4())
			a.AddRtAttr(addressFlags, nl.Uint32Attr(flagSignal))
			a.AddRtAttr(addressNIC, nl.Uint32Attr(uint32(n.links[nic].nics[host].Attrs().Index)))
			if err := send(cmdAddAddress, a); err != nil {
				return fmt.Errorf("endpoint %s: %w", text, err)
			}
		}
		return nil
	})
}
