package rdma

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/transport/connection"
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
	// QueuePairs to each peer, 1 to 16. Default 1: an immediate waits for what was
	// posted before it on the others.
	QueuePairs int
	// QueueDepth is the number of operations a queue pair has under way, and
	// of immediates that it can take. A connection uses the lesser of both sides'.
	// Default 256, or what the device has.
	QueueDepth int
	// Poll is how long a completion is polled for, where that pays off, before
	// the poller sleeps until the device wakes it. Default 20 µs; negative: never.
	Poll time.Duration
	// MaxConns bounds the connections served, and ConnsPerPeer those from one host (of
	// IPv6, one network of 64 bits). Idle ones make room for others, see
	// connection.Admission. Default connection.DefaultConns, and a quarter of MaxConns.
	MaxConns, ConnsPerPeer int
	// Logger gets a line about the choice of port and GID, and one for each
	// connection that is not a rail's or breaks the protocol.
	// Default slog.Default().
	Logger *slog.Logger
}

// setDefaults leaves Port, GIDIndex and Listen to what opens the device and knows its ports.
func (c *Config) setDefaults() {
	config.Default(&c.Device, strings.TrimPrefix(c.Name, "rdma/"))
	config.Default(&c.QueuePairs, 1)
	config.Default(&c.QueueDepth, 256)
	config.Default(&c.Poll, 20*time.Microsecond)
	config.Default(&c.Logger, slog.Default())
}

// Limits of a rail, which a greeting is held to as well: it may come from anybody, and memory
// and queue pairs are made by what it says.
const (
	maxQueuePairs = 16   // KV_MAX_PAIRS of verbs.h
	maxQueueDepth = 8192 // letters of 40 bytes in both directions: 640 KiB a pair
)

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	if !strings.HasPrefix(c.Name, "rdma/") || c.Name == "rdma/" {
		bad.Add("Name", c.Name, "name the rail rdma/ and its device, like rdma/mlx5_0 (ibv_devices lists them)")
	}
	if c.Port < 0 || c.Port > 255 {
		bad.Add("Port", c.Port, "use 1 to 255, or 0 for the first that is active")
	}
	if c.GIDIndex != nil {
		config.Between(&bad, "GIDIndex", *c.GIDIndex, 0, 255)
	}
	if c.Listen != "" {
		host, _, err := config.Address(c.Listen)
		bad.Check("Listen", err)
		if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) && c.Advertise == "" {
			bad.Add("Advertise", nil, "%q is all addresses, and peers are told to dial one: name it, or listen at it", c.Listen)
		}
	}
	if c.QueuePairs < 0 || c.QueuePairs > maxQueuePairs {
		bad.Add("QueuePairs", c.QueuePairs, "use 1 to %d, or 0 for 1", maxQueuePairs)
	}
	if c.QueueDepth < 0 || c.QueueDepth > maxQueueDepth {
		bad.Add("QueueDepth", c.QueueDepth, "use 1 to %d, or 0 for 256", maxQueueDepth)
	}
	if c.MaxConns < 0 {
		bad.Add("MaxConns", c.MaxConns, "use a positive number, or 0 for %d", connection.DefaultConns)
	}
	if c.ConnsPerPeer < 0 {
		bad.Add("ConnsPerPeer", c.ConnsPerPeer, "use a positive number, or 0 for a quarter of all connections")
	}
	return bad.Err("transport/rdma.Config")
}

// ErrNoVerbs: libibverbs cannot be opened, or the program was built without cgo, which opens it.
var ErrNoVerbs = errors.New("no RDMA verbs")
