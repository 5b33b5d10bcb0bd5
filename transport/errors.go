package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"kvferry/transport/access"
	"kvferry/transport/pages"
)

// Causes, for errors.Is. Only connection loss (ErrUnreachable, and whatever a
// rail reports that is not listed here) is retried.
var (
	// ErrBadKey: the target knows no such key, or no longer.
	ErrBadKey = errors.New("bad key")
	// ErrUnconfirmed comes with ErrBadKey: the immediate of the batch was sent on a
	// connection that was lost, after its bytes or with the last of them, and sent or asked
	// for again it finds the target's segment closed. Whoever closes that when the immediate
	// has come has got it and all bytes; whoever closes it for another reason may have.
	ErrUnconfirmed = errors.New("sent before, on a connection that was lost")
	// ErrBounds: the range is not inside what the key opens.
	ErrBounds = access.ErrBounds
	// ErrAccess: the key does not open the memory in that direction.
	ErrAccess = access.ErrAccess
	// ErrDelivered: the target has had the immediate that it is asked for.
	ErrDelivered = errors.New("the immediate has been delivered")
	// ErrInvalid: the request can never be carried out as it stands.
	ErrInvalid = access.ErrInvalid
	// ErrMemory: registered memory was unmapped or protected before its segment was closed.
	ErrMemory = pages.ErrGone
	// ErrNotRegistered: local memory outside every open segment.
	ErrNotRegistered = errors.New("local memory is not in a registered segment")
	// ErrProtocol: the peer sent, or says it received, what is no frame.
	ErrProtocol = errors.New("protocol violation")
	// ErrNoPath: no local rail is of the kind of any of the target's rails.
	ErrNoPath = errors.New("no rail reaches the target")
	// ErrUnreachable: the peer cannot be connected, or the connection was lost.
	ErrUnreachable = errors.New("unreachable")
	// ErrBusy: more immediates are outstanding than a target can tell apart, or more messages than it keeps.
	ErrBusy = errors.New("too many immediates or messages outstanding")
	// ErrDeadline: the batch's time was up. It is context.DeadlineExceeded too.
	ErrDeadline error = &cause{"deadline passed", context.DeadlineExceeded}
	// ErrCanceled: Cancel was called. It is context.Canceled too.
	ErrCanceled error = &cause{"canceled", context.Canceled}
)

type cause struct {
	text string
	is   error
}

func (c *cause) Error() string { return c.text }
func (c *cause) Unwrap() error { return c.is }

// Error says what failed where. Err is the cause; net.ErrClosed and context
// errors are reached with errors.Is.
type Error struct {
	Op   string // "write", "read", "immediate", "submit", "register", "dial", ...
	Rail string // local rail; empty if no rail was involved
	Peer string // address of the peer's rail
	Tag  string // BatchOptions.Tag: the serving request
	Err  error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("transport: " + e.Op)
	if e.Tag != "" {
		b.WriteString(" for " + e.Tag)
	}
	if e.Rail != "" {
		b.WriteString(" over " + e.Rail)
	}
	if e.Peer != "" {
		b.WriteString(" to " + e.Peer)
	}
	return b.String() + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Refused reports whether a slice was turned down by itself: its connection is as
// good as it was, and the slices beside it are not affected.
func Refused(err error) bool {
	return errors.Is(err, ErrBadKey) || errors.Is(err, ErrBounds) || errors.Is(err, ErrAccess) || errors.Is(err, ErrDelivered) || errors.Is(err, ErrBusy) || errors.Is(err, ErrMemory)
}

// taken names the segment of a slice's that ErrMemory is about: if the local memory is as it was, it is the peer's.
func (s *Slice) taken(err error) error {
	name, whose := s.target.info.Name, "peer's"
	if !pages.Permit(s.Local, s.Op == Read) {
		name, whose = s.seg.info.Name, "local"
	}
	return fmt.Errorf("%w: the %s segment %q: keep memory mapped until its segment is closed", err, whose, name)
}

// final reports whether trying again cannot help.
func final(err error) bool {
	return Refused(err) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrInvalid)
}

// because names the last failure behind an expired deadline, if there was one.
func because(err, last error) error {
	if last == nil {
		return err
	}
	return fmt.Errorf("%w; last failure: %w", err, last)
}
