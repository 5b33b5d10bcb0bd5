package rail

// This file measures what the latency of a transfer is set beside: bare sockets,
// and other programs if they are installed.
//
//	bare     a ping over one TCP connection by blocking read and write, one thread at either
//	         end, as a C program would do it: write sends a block and waits for one byte;
//	         read sends one byte and waits for a block. It is this process's own code
//	ucx      ucx_perftest: ucp_put_lat for writes, ucp_get with one outstanding for reads
//	iperf3   the rate of one stream in writes of the block's size: it measures no latency
//
// They do not measure the same thing, and a report says so with [ReferenceFigures.Of]. ucp_put_lat
// prints half of a round trip of two puts, where either end finds the other's by looking at
// its memory all the time (a core each); a bare ping and a transfer are confirmed and sleep.
// ucx_perftest and iperf3 use the same buffer again and again, bare and transfers walk a
// segment. ucx_perftest says one percentile a run, so that three runs make a row.
//
// The target's end of each is a [ReferenceServer], which serves one client and is closed by its
// owner; nothing of it is left then. The other's end is [MeasureReference].

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// What there is to measure beside a transfer.
const (
	Bare   = "bare"
	UCX    = "ucx"
	Iperf3 = "iperf3"
)

// ReferenceNames lists the references that can be measured.
var ReferenceNames = []string{Bare, UCX, Iperf3}

// programs are what has to be installed.
var programs = map[string]string{UCX: "ucx_perftest", Iperf3: "iperf3"}

// ParseReference returns the name of a reference, or the error of one that there is not.
func ParseReference(name string) (string, error) {
	if !slices.Contains(ReferenceNames, name) {
		return "", fmt.Errorf("%q: use some of %s", name, strings.Join(ReferenceNames, ", "))
	}
	return name, nil
}

// ReferenceInstalled returns nil if the named reference can be measured on this machine, else why it cannot.
func ReferenceInstalled(name string) error {
	program, ok := programs[name]
	if !ok {
		return nil
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is not installed", program)
	}
	return nil
}

// A ReferencePath says what a reference uses at one end: the NIC and the address of the rail there.
type ReferencePath struct {
	Kind string // of the rail: tcp, rdma, ...
	NIC  string // interface or device; "" is what the system chooses
	Host string // address of this end
}

// environment has UCX use the rail's NIC, where the rail has one.
func (p ReferencePath) environment() []string {
	var env []string
	switch p.Kind {
	case "tcp":
		env = append(env, "UCX_TLS=tcp")
	case "rdma":
		env = append(env, "UCX_TLS=rc")
	default:
		return nil // between processes of a host: what UCX finds best
	}
	if p.NIC != "" {
		env = append(env, "UCX_NET_DEVICES="+p.NIC)
	}
	return env
}

// A ReferenceShape describes the blocks to move, one at a time.
type ReferenceShape struct {
	Read  bool // the target's memory to the initiator's, else the other way
	Block int64
	// Memory is where the i-th block lies at this end.
	Memory func(i int) []byte
}

// A Rank is a percentile, which is nil where too few samples were taken to know it.
type Rank = *float64

// ReferenceFigures hold the measured latencies and rate of a reference.
type ReferenceFigures struct {
	Of      string  `json:"of"` // what they are figures of
	Samples int64   `json:"samples"`
	P50US   Rank    `json:"p50_us"`
	P99US   Rank    `json:"p99_us"`
	P999US  Rank    `json:"p99_9_us"`
	GBps    float64 `json:"gb_per_s"`
}

// MeasureReference measures against a ReferenceServer at addr for about so long. serve starts a new one and
// says where it is: some programs end with each run.
func MeasureReference(ctx context.Context, name string, p ReferencePath, s ReferenceShape, d time.Duration, serve func() (addr string, err error)) (ReferenceFigures, error) {
	switch name {
	case Bare:
		addr, err := serve()
		if err != nil {
			return ReferenceFigures{}, err
		}
		return pingFor(ctx, p.Host, addr, s, d)
	case UCX:
		return ucx(ctx, p, s, d, serve)
	}
	addr, err := serve()
	if err != nil {
		return ReferenceFigures{}, err
	}
	return iperf3(ctx, p, s, d, addr)
}

// A ReferenceServer is the target's end. Addr is where it waits for its one client; Close ends it.
type ReferenceServer struct {
	Addr  string
	close func() error
}

// Close ends it, and returns when nothing of it is left.
func (s *ReferenceServer) Close() error { return s.close() }

// ServeReference starts the target's end of a measurement.
func ServeReference(name string, p ReferencePath, s ReferenceShape) (*ReferenceServer, error) {
	if err := ReferenceInstalled(name); err != nil {
		return nil, err
	}
	if name == Bare {
		return serveBare(p.Host, s)
	}
	return serveProgram(name, p)
}
