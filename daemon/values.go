package daemon

import (
	"maps"
	"slices"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/placement"
	"kvferry/proxy"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// Values are what flags take that choose among names, for a shell's completion: by the
// flag's name without dashes. What ends in "/" or "=" goes on. The daemons and kvferry share
// them, as far as they have these flags.
func Values() map[string][]string {
	links := []string{"native", "rate="}
	if p, err := engine.LoadProfile(engine.DefaultProfile); err == nil {
		links = append(links, slices.Sorted(maps.Keys(p.Links))...)
	}
	selections := make([]string, len(transport.Selections))
	for i, s := range transport.Selections {
		selections[i] = string(s)
	}
	return map[string][]string{
		"handoff":    handoff.Names(),
		"placement":  placement.Names(),
		"migration":  placement.Migrations(),
		"mode":       {proxy.ModeAuto, proxy.ModeDisagg, proxy.ModeNondisagg},
		"rail":       {rails.TCP + "/", rails.RDMA + "/", rails.CMA, rails.SHM},
		"select":     selections,
		"profile":    {engine.DefaultProfile, "zero"},
		"link":       links,
		"log-level":  {"debug", "info", "warn", "error"},
		"log-format": {"text", "json"},
	}
}
