package nics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/transport"
)

// A load is blocks in batches; depth batches are under way.
type load struct {
	Block int64
	Batch int
	Depth int
}

var (
	large = load{1 << 20, 8, 4}
	small = load{64 << 10, 64, 4} // what a layer of a prompt's KV is cut into
)

func (l load) String() string { return fmt.Sprintf("%s x %d", config.FormatSize(l.Block), l.Batch) }

// A sweep is one run of kvferry rail bench: a row for each count of NICs and selection.
type sweep struct {
	links   []int64 // bits a second
	load    load
	counts  []int // of links used, from the first
	selects []transport.Selection
	mptcp   bool // one connection over all links instead; counts and selects are one
}

var gbit = int64(1e9)

// Links of the experiments.
var (
	Even   = []int64{2 * gbit, 2 * gbit, 2 * gbit, 2 * gbit}
	Uneven = []int64{4 * gbit, 2 * gbit, 2 * gbit, 1 * gbit}
)

// sweeps are all runs of kvferry rail bench of one round, those on the same links in a
// row.
var sweeps = []sweep{
	{links: Even, load: large, counts: []int{1, 2, 4}, selects: []transport.Selection{transport.Affinity}},
	{links: Even, load: small, counts: []int{1, 4}, selects: []transport.Selection{transport.Affinity}},
	{links: Even, load: large, counts: []int{4}, selects: []transport.Selection{transport.Affinity}, mptcp: true},
	{links: Uneven, load: large, counts: []int{4}, selects: []transport.Selection{transport.Affinity, transport.Static, transport.RoundRobin, transport.Single}},
	{links: Uneven, load: large, counts: []int{4}, selects: []transport.Selection{transport.Affinity}, mptcp: true},
}

// A Key names a row: the same experiment of every round.
type Key struct {
	Links  string `json:"links"` // "4 x 2", "4/2/2/1" Gbit/s
	NICs   int    `json:"nics"`  // used
	Select string `json:"select"`
	Load   string `json:"load"`
}

func (k Key) String() string {
	return fmt.Sprintf("%s Gbit, %d NICs, %s, %s", k.Links, k.NICs, k.Select, k.Load)
}

// multipath is the selection that is the kernel's.
const multipath = "MPTCP"

func (s *sweep) key(count int, sel transport.Selection) Key {
	k := Key{Links: linksName(s.links), NICs: count, Select: string(sel), Load: s.load.String()}
	if s.mptcp {
		k.Select = multipath
	}
	return k
}

// linksName is "4 x 2" or "4/2/2/1".
func linksName(links []int64) string {
	var names []string
	for _, r := range links {
		names = append(names, strconv.FormatFloat(float64(r)/1e9, 'g', 3, 64))
	}
	if len(slices.Compact(slices.Clone(names))) == 1 {
		return fmt.Sprintf("%d x %s", len(names), names[0])
	}
	return strings.Join(names, "/")
}

// Ideal is what links of these rates carry of payload, in bytes a second.
func Ideal(links []int64) (sum float64) {
	for _, r := range links {
		sum += float64(r) / 8 * rail.Payload
	}
	return sum
}

// ideal is that of a row. A single link is the first.
func (s *sweep) ideal(count int, sel transport.Selection) float64 {
	if sel == transport.Single {
		count = 1
	}
	return Ideal(s.links[:count])
}

// specs are the rails of a sweep.
func (s *sweep) specs() (all []string) {
	if s.mptcp {
		return []string{"tcp/eth0?mptcp=1"}
	}
	for i := range s.links {
		all = append(all, fmt.Sprintf("tcp/eth%d", i))
	}
	return all
}
