package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kvferry/engine"
	"kvferry/transport/pacing"
)

// linkRate is what the node's link delivers, in bytes/s: the modelled NIC, or what its rails were
// last seen to; 0 if none has moved anything yet.
func (w *worker) linkRate() (rate uint64) {
	if w.cfg.Link != nil {
		return uint64(w.cfg.Link.BytesPerSecond)
	}
	for _, r := range w.kv.Rails() {
		rate += uint64(r.Rate)
	}
	return rate
}

// ResolveLink finds the link that a name or a description means, or a rate alone, such as 100gbit,
// which is its name too; nil is the network as it is.
func ResolveLink(p *engine.Profile, s string) (*pacing.Link, error) {
	if s == "" || s == "native" {
		return nil, nil
	}
	if l, ok := p.Links[s]; ok {
		return &pacing.Link{Name: s, BytesPerSecond: 1e9 / l.MSPerMB, Latency: time.Duration(l.LatencyUS * float64(time.Microsecond))}, nil
	}
	if strings.Contains(s, "=") {
		return pacing.ParseLink(s)
	}
	if _, err := pacing.ParseRate(s); err == nil {
		return pacing.ParseLink("name=" + s + ",rate=" + s)
	}
	use := "native, 100gbit or rate=1.29GB/s,latency=10us; profile " + p.Name + " has no links"
	if names := slices.Sorted(maps.Keys(p.Links)); len(names) > 0 {
		use = fmt.Sprintf("native, a link of profile %s (%s), 100gbit or rate=1.29GB/s,latency=10us", p.Name, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("%q: there is no such link: use %s", s, use)
}
