package rdma

import (
	"errors"
	"fmt"
	"strings"
)

// choose picks a port and one of its GIDs, and says why, for the log: a wrong GID is the
// most common reason for a RoCE connection that never comes up. It asks nobody, so that tests
// choose among ports that no device has.
func choose(cfg *Config, ports []port) (port, gid, string, error) {
	p, why, err := choosePort(cfg, ports)
	if err != nil {
		return port{}, gid{}, "", err
	}
	g, because, err := chooseGID(cfg, p)
	return p, g, why + "; " + because, err
}

// choosePort is the port that the configuration names, whatever its state, or the first that is
// active.
func choosePort(cfg *Config, ports []port) (port, string, error) {
	var seen []string
	for _, p := range ports {
		seen = append(seen, fmt.Sprintf("%d is %s", p.num, p.state))
		if cfg.Port == p.num {
			return p, fmt.Sprintf("port %d as Config.Port says", p.num), nil
		}
		if cfg.Port == 0 && p.active {
			return p, fmt.Sprintf("port %d is the first that is active", p.num), nil
		}
	}
	if cfg.Port != 0 {
		return port{}, "", fmt.Errorf("Config.Port is %d: %s has no such port (%s)", cfg.Port, cfg.Device, strings.Join(seen, ", "))
	}
	return port{}, "", fmt.Errorf("no port of %s is active (%s): bring its link up (ip link set DEV up, ibv_devinfo shows the state)", cfg.Device, strings.Join(seen, ", "))
}

// chooseGID prefers what reaches furthest: RoCE v2 is routed as UDP, and an
// address that is link-local is not. IPv4 before IPv6, as addresses that come and
// go (privacy extensions) are IPv6's.
func chooseGID(cfg *Config, p port) (gid, string, error) {
	if cfg.GIDIndex != nil {
		for _, g := range p.gids {
			if g.index == *cfg.GIDIndex {
				return g, fmt.Sprintf("GID %v as Config.GIDIndex says", g), nil
			}
		}
		return gid{}, "", fmt.Errorf("Config.GIDIndex is %d: port %d has %s", *cfg.GIDIndex, p.num, gidList(p.gids))
	}
	rank := func(g gid) int { // the index of its text in why
		ip := g.ip()
		switch {
		case g.addr == [16]byte{}:
			return 0
		case g.kind == gidIB && p.infini:
			return 6
		case g.kind == gidRoCE2 && ip.Is4():
			return 5
		case g.kind == gidRoCE2 && !ip.IsLinkLocalUnicast():
			return 4
		case g.kind == gidRoCE2:
			return 3
		case g.kind == gidRoCE1:
			return 2
		}
		return 1
	}
	var best gid
	for _, g := range p.gids {
		if rank(g) > rank(best) {
			best = g
		}
	}
	why := [...]string{"", "the only one there is", "no RoCE v2: it reaches the same subnet only", "link-local: it reaches the same link only", "RoCE v2 and routable", "RoCE v2 and IPv4", "InfiniBand"}
	if best.addr == [16]byte{} {
		return gid{}, "", errors.New("port " + fmt.Sprint(p.num) + " has no GID: give its network interface an address (ip addr add)")
	}
	return best, fmt.Sprintf("GID %v: %s", best, why[rank(best)]), nil
}

func gidList(gids []gid) string {
	var list []string
	for _, g := range gids {
		list = append(list, g.String())
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}
