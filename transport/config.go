package transport

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/transport/pacing"
	"kvferry/transport/selection"
)

// Config describes an engine. The zero value of every field but Rails has a default.
type Config struct {
	// Rails are the NICs to use; the engine owns and closes them.
	Rails []Rail
	// Clock tells the times in batches and wakes paced batches. Default clock.Precise().
	Clock clock.Clock
	// Link, if not nil, paces batches as a modelled NIC would. With the name of a Ledger, a file, it
	// shares the peer's NIC with other engines of this machine that have the same, in any process.
	Link   *pacing.Link
	Ledger string
	// OnImmediate gets the immediates of peers' batches, each exactly once, also if
	// the initiator had to send it again. It runs on a rail's goroutine, for several
	// connections at once, and must not block for long: the connection it came over
	// waits. It may Submit; it must not close a segment, a window or the engine,
	// which would wait for it. Immediates are dropped if it is nil.
	OnImmediate func(Immediate)
	// OnMessage gets the messages of peers' batches, as OnImmediate gets their immediates.
	OnMessage func(Message)
	// HasRoom, if not nil, says whether OnMessage can take a message of so many bytes more. It must not block. If it
	// cannot, the message is not delivered, and its batch, whose bytes are all there, fails with ErrBusy.
	HasRoom func(bytes int) bool
	// Name is what peers are told with messages, up to MaxName bytes. Peers may say any.
	Name string

	// Select says how slices are spread over several paths to a peer. Default Affinity.
	Select Selection
	// OnPath, if not nil, hears of every change of a path's state, on a
	// goroutine of the engine's, of several paths at once. It must not block, nor
	// close the engine.
	OnPath func(PathEvent)

	// Rank says how far a rail is from memory at a location: 0 is close, 1 can be
	// used, a negative number must not be. It is asked once for each rail when memory is
	// registered. Nil: all are close. Package rails has one that asks the topology.
	Rank func(location, rail string) int
	// StallTimeout is how long a path with slices under way may make no progress
	// while another is up; then its connection is given up, and the others carry
	// them. A slow path has four times what its slices should take. Default 300 ms.
	StallTimeout time.Duration
	// ProbeInterval is how often a path that is down is tried while another is up;
	// an attempt takes as long at most, and ten round trips. Default 250 ms.
	ProbeInterval time.Duration
	// Logger hears of paths that go down, and why rails are not paired. Default slog.Default().
	Logger *slog.Logger

	// SliceSize is the largest slice in bytes; over several paths batches are cut
	// into smaller ones. Default 1 MiB: on loopback the cost of a slice is below
	// 1 % of its copies from there on.
	SliceSize int
	// Retries is how often one slice may be posted again after its connection
	// was lost. Default 0: as often as the batch's deadline allows.
	Retries int
	// DefaultTimeout bounds batches without a deadline of their own.
	// Default 30 s.
	DefaultTimeout time.Duration
	// DialTimeout bounds one attempt to connect. Default 5 s.
	DialTimeout time.Duration
	// BackoffMin and BackoffMax bound the wait between failed attempts to
	// connect, which doubles each time. Default 5 ms and 1 s.
	BackoffMin, BackoffMax time.Duration
	// CancelGrace is how long nothing may complete on an endpoint that holds posted
	// slices of a canceled batch before it is closed. Default 100 ms.
	CancelGrace time.Duration
	// IdleTimeout is how long a connection outlives the last open Target that
	// used it. Default 1 min.
	IdleTimeout time.Duration
}

func (c *Config) setDefaults() {
	config.Default(&c.Clock, clock.Precise())
	config.Default(&c.Select, Affinity)
	config.Default(&c.SliceSize, 1<<20)
	config.Default(&c.DefaultTimeout, 30*time.Second)
	config.Default(&c.DialTimeout, 5*time.Second)
	config.Default(&c.BackoffMin, 5*time.Millisecond)
	config.Default(&c.BackoffMax, time.Second)
	config.Default(&c.CancelGrace, 100*time.Millisecond)
	config.Default(&c.IdleTimeout, time.Minute)
	config.Default(&c.StallTimeout, 300*time.Millisecond)
	config.Default(&c.ProbeInterval, 250*time.Millisecond)
	config.Default(&c.Logger, slog.Default())
}

// Validate lists every fault by its field, as a [config.Invalid]. Zero fields are valid
// where they have defaults.
func (c *Config) Validate() error {
	var bad config.Faults
	if len(c.Rails) == 0 {
		bad.Add("Rails", nil, "give at least one rail")
	}
	if len(c.Rails) > selection.MaxPaths {
		bad.Add("Rails", len(c.Rails), "give at most %d rails", selection.MaxPaths)
	}
	names := make(map[string]bool)
	for i, r := range c.Rails {
		field := fmt.Sprintf("Rails[%d]", i)
		switch {
		case r == nil:
			bad.Add(field, nil, "leave it out")
		case r.Name() == "":
			bad.Add(field, nil, "name the rail kind/nic, like tcp/eth0")
		case names[r.Name()]:
			bad.Add(field, r.Name(), "a second rail of that name: give each its own, or leave one out")
		default:
			names[r.Name()] = true
		}
	}
	if c.Link != nil {
		bad.Check("Link", c.Link.Validate())
	}
	if c.Select != "" {
		_, err := ParseSelection(string(c.Select))
		bad.Check("Select", err)
	}
	if len(c.Name) > MaxName {
		bad.Add("Name", c.Name, "use up to %d bytes", MaxName)
	}
	if c.SliceSize < 0 || c.SliceSize > MaxSlice {
		bad.Add("SliceSize", c.SliceSize, "use 1 to %d bytes, or 0 for the default", MaxSlice)
	}
	if c.Retries < 0 {
		bad.Add("Retries", c.Retries, "use a positive number, or 0 for as many as the deadline allows")
	}
	times := []time.Duration{c.DefaultTimeout, c.DialTimeout, c.BackoffMin, c.BackoffMax, c.CancelGrace, c.IdleTimeout, c.StallTimeout, c.ProbeInterval}
	for i, name := range []string{"DefaultTimeout", "DialTimeout", "BackoffMin", "BackoffMax", "CancelGrace", "IdleTimeout", "StallTimeout", "ProbeInterval"} {
		if times[i] < 0 {
			bad.Add(name, times[i], "use a positive duration, or 0 for the default")
		}
	}
	if c.BackoffMax != 0 && c.BackoffMin > c.BackoffMax {
		bad.Add("BackoffMin", c.BackoffMin, "it is longer than the longest wait, %v: swap them", c.BackoffMax)
	}
	return bad.Err("transport.Config")
}

// MaxSlice is the largest slice any rail must carry, in bytes.
const MaxSlice = 1 << 30

// kind is the part of a rail's name that says what it can reach.
func kind(rail string) string {
	k, _, _ := strings.Cut(rail, "/")
	return k
}
