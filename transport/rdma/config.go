package rdma

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"kvferry/transport"
)

// Config describes a rail. Only Name is required.
type Config struct {
	// Name of the rail, "rdma/mlx5_0" or "rdma/rxe0": rdma/ and its device.
	Name string
	// Device is the verbs device, if the name does not end with it.
	Device string
	// Port of the device, from 1. Default: the first that is active.
	Port int
	// GIDIndex chooses an entry of the port's GID table. Default (nil): a
	// RoCE v2 address that others can route to, IPv4 before IPv6.
	GIDIndex *int
	// Listen is the host:port peers connect to before they have queue pairs.
	// Default: the GID's address and a free port.
	Listen string
	// Advertise replaces the host, or host:port, that peers are told to dial.
	// It is required if Listen is a wildcard.
	Advertise string
	// QueuePairs to each peer. Default 1: an immediate waits for what was
	// posted before it on the others.
	QueuePairs int
	// QueueDepth is the number of operations a queue pair has under way, and
	// of immediates that it can take. Default 256, or what the device has.
	QueueDepth int
	// Poll is how long a completion is polled for, where that pays off, before
	// the poller sleeps until the device wakes it. Default 20 µs; negative: never.
	Poll time.Duration
	// MaxConns bounds the connections served, and ConnsPerPeer those from one host (of
	// IPv6, one network of 64 bits). Idle ones make room for others, see
	// transport.Admission. Default 1024, and a quarter of MaxConns.
	MaxConns, ConnsPerPeer int
	// Logger gets a line about the choice of port and GID, and one for each
	// connection that is not a rail's or breaks the protocol.
	// Default slog.Default().
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	if c.Device == "" {
		c.Device = strings.TrimPrefix(c.Name, "rdma/")
	}
	if c.QueuePairs == 0 {
		c.QueuePairs = 1
	}
	if c.QueueDepth == 0 {
		c.QueueDepth = 256
	}
	if c.Poll == 0 {
		c.Poll = 20 * time.Microsecond
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

const (
	maxQueuePairs = 16
	maxQueueDepth = 8192
)

// Validate lists every fault, naming the field and the fix.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("transport/rdma: Config."+format, args...))
	}
	if !strings.HasPrefix(c.Name, "rdma/") || c.Name == "rdma/" {
		bad("Name is %q: name the rail rdma/ and its device, like rdma/mlx5_0 (ibv_devices lists them)", c.Name)
	}
	if c.Port < 0 || c.Port > 255 {
		bad("Port is %d: use 1 to 255, or 0 for the first that is active", c.Port)
	}
	if c.GIDIndex != nil && (*c.GIDIndex < 0 || *c.GIDIndex > 255) {
		bad("GIDIndex is %d: use 0 to 255, or nothing to have one chosen", *c.GIDIndex)
	}
	if c.Listen != "" {
		host, _, err := net.SplitHostPort(c.Listen)
		if err != nil {
			bad("Listen is %q: write host:port, like 10.0.0.1:0, or nothing for the GID's address", c.Listen)
		} else if ip := net.ParseIP(host); (host == "" || ip != nil && ip.IsUnspecified()) && c.Advertise == "" {
			bad("Advertise is empty and Listen %q a wildcard: set Advertise to the address peers can dial, or Listen to the interface's", c.Listen)
		}
	}
	if c.QueuePairs < 0 || c.QueuePairs > maxQueuePairs {
		bad("QueuePairs is %d: use 1 to %d, or 0 for 1", c.QueuePairs, maxQueuePairs)
	}
	if c.QueueDepth < 0 || c.QueueDepth > maxQueueDepth {
		bad("QueueDepth is %d: use 1 to %d, or 0 for 256", c.QueueDepth, maxQueueDepth)
	}
	if c.MaxConns < 0 {
		bad("MaxConns is %d: use a positive number, or 0 for %d", c.MaxConns, transport.DefaultConns)
	}
	if c.ConnsPerPeer < 0 {
		bad("ConnsPerPeer is %d: use a positive number, or 0 for a quarter of MaxConns", c.ConnsPerPeer)
	}
	return errors.Join(errs...)
}

// ErrNotBuilt: the program has no verbs in it.
var ErrNotBuilt = errors.New("built without verbs: install libibverbs-dev and build with CGO_ENABLED=1 and -tags rdma (make build does, if it is there)")
