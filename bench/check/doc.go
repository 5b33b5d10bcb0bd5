// Package check looks at the rails between two machines before they serve: what the kernel
// says of each, what a datagram finds out of its path, and what the transfer engine moves over
// it, alone and with the others. [Judge] turns that into findings and a verdict a rail.
//
//	facts     the kernel's, of either end: speed, MTU, carrier, congestion control, limits
//	route     whether packets to the other end leave by the rail's own NIC, at either end
//	probes    datagrams as large as a frame may be, that must not be cut up, there and back
//	rates     bench/rail over each rail alone and over all, both ways, every byte compared; of
//	          what has arrived, from when that is steady
//	clock     how far the other's clock is off, and how exactly that is known
//
// The other end is a [Listener]: an HTTP server for facts, probes and clock, and beside it
// bench/rail's server. Whoever reaches it may have it map memory, as there. The memory is
// made as a node makes its KV pool. A finding is a pure function of what was seen: a case of a
// fault is data.
//
// Rates are bytes a second, GB 1e9 bytes, sizes bytes.
package check

import (
	"time"

	"kvferry/bench/rail"
)

// Facts are what an end's kernel says of a rail. Zero is unknown, unless it is said else.
type Facts struct {
	Rail       string  `json:"rail"` // its name
	Addr       string  `json:"addr"` // where peers reach it
	Kind       string  `json:"kind"`
	NIC        string  `json:"nic,omitempty"` // the network interface
	LineRate   float64 `json:"line_rate"`
	MTU        int     `json:"mtu"`
	NoCarrier  bool    `json:"no_carrier"`
	Changes    int     `json:"carrier_changes"`     // of the carrier, since the interface is there
	Congestion string  `json:"congestion"`          // the system's; a rail's own is cubic, and bbr where packets are lost
	BBR        bool    `json:"bbr"`                 // may be used
	Elsewhere  string  `json:"elsewhere,omitempty"` // why packets to the other end do not leave by the NIC
	Routed     bool    `json:"routed,omitempty"`    // they go by a gateway
}

// A Host is what an end's kernel says of the machine.
type Host struct {
	Memlock   int64  `json:"memlock_bytes"` // RLIMIT_MEMLOCK; -1 is no limit
	HugeFree  int64  `json:"huge_pages_free_bytes"`
	HugePages string `json:"transparent_huge_pages"` // always, madvise or never; "" is unknown
	Available int64  `json:"memory_available_bytes"`
}

// Probes are datagrams sent as one frame and echoed.
type Probes struct {
	Size  int    `json:"packet_bytes"` // with the headers of IP and UDP
	Sent  int    `json:"sent"`
	Back  int    `json:"back"`
	Wrong int    `json:"wrong"` // came back with other bytes
	Error string `json:"error,omitempty"`
}

// A Rate is what was moved in one direction.
type Rate struct {
	GBps    float64 `json:"gb_per_s"`
	Checked int64   `json:"blocks_checked"`
	Bad     int64   `json:"blocks_bad"`
	BadAt   string  `json:"bad_at,omitempty"`
}

// Rates are those of one rail, or of all together.
type Rates struct {
	Write  Rate         `json:"write"`
	Read   Rate         `json:"read"`
	Error  string       `json:"error,omitempty"`
	Result *rail.Result `json:"result,omitempty"` // all that was recorded
}

// least is the slower direction's.
func (r *Rates) least() float64 { return min(r.Write.GBps, r.Read.GBps) }

// A Rail is all that was seen of one.
type Rail struct {
	Spec  string `json:"spec"`
	Here  Facts  `json:"here"`
	There Facts  `json:"there"`
	After Facts  `json:"here_after"` // the rates
	Small Probes `json:"small_probes"`
	Full  Probes `json:"full_probes"`
	Rates Rates  `json:"rates"`
}

// A Clock is the other end's against this one's.
type Clock struct {
	Offset    time.Duration `json:"offset_ns"`     // theirs is ahead by so much
	RoundTrip time.Duration `json:"round_trip_ns"` // the shortest; the offset is known to half of it
}

// Seen is all that a check has found out.
type Seen struct {
	Started time.Time `json:"started"`
	Command []string  `json:"command"`
	Peer    string    `json:"peer"`
	Segment int64     `json:"segment_bytes"`
	Here    Host      `json:"here"`
	There   Host      `json:"there"`
	Clock   *Clock    `json:"clock,omitempty"` // nil of one machine
	Rails   []Rail    `json:"rails"`
	All     *Rates    `json:"all,omitempty"` // together; nil of one rail
}
