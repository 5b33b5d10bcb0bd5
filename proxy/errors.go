package proxy

import (
	"errors"
	"fmt"

	"kvferry/attempt"
)

// Causes a request can end for, as errors of the proxy's own. They are wrapped with the request, the leg and
// the node; errors.Is finds them.
const (
	errNoNode      = attempt.NoNode // of a role that the request needs; waited for
	errNodeLost    = attempt.Lost   // its membership or its stream, and why
	errProxyFull   = attempt.Full
	errProxyDrains = attempt.Ending
	errDeadline    = attempt.Deadline
	errClientGone  = attempt.ClientGone
)

var (
	errStalled = errors.New("the node does not get on")
	errOverdue = fmt.Errorf("%w: KV that is said to be written has not landed, or the end of an answer is not said", attempt.ErrBroken)
)
