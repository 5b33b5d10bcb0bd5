package attempt

import (
	"errors"

	"kvferry/handoff"
)

// An Owner is the part of a cluster that a failure is due to. Whether a request is tried again,
// which nodes are blamed and the HTTP status all follow from it.
type Owner uint8

const (
	Client  Owner = iota + 1 // the request itself is wrong, or nobody waits for it: no node can serve it
	Node                     // one node did wrong, or cannot do it: another one is tried
	Pair                     // it went wrong between two nodes: either may do better with another partner
	Cluster                  // no single node can mend it: nodes are missing, the proxy is full or ends, time is up
)

// A Fault classifies a failure, and is an error itself: [FaultOf] finds it in a chain of errors. Faults below
// 100 are reported by nodes, under the same numbers as in proto.FailCode. The others are the driver's own.
type Fault uint8

const (
	Lost        Fault = 0 // the node's membership or stream ended
	Invalid     Fault = 1
	Deadline    Fault = 2
	Cancelled   Fault = 3
	Transfer    Fault = 4
	Draining    Fault = 5
	Internal    Fault = 6
	Content     Fault = 7
	Changed     Fault = 8
	Undirected  Fault = 9
	Sound       Fault = 20 // the answer to a doubt about KV: no failure
	NoPath      Fault = 30
	TooLarge    Fault = 31
	Unsupported Fault = 32

	NoNode     Fault = 100
	Full       Fault = 101
	Ending     Fault = 102
	ClientGone Fault = 103
)

// faultTable has all faults. code is what the API and metrics call a fault, and strikes says that it
// counts towards the quarantine of its owner.
var faultTable = map[Fault]struct {
	owner      Owner
	text, code string
	strikes    bool
}{
	Lost:        {Node, "node lost", "node_lost", false},
	Invalid:     {Client, "invalid", "invalid", false},
	Deadline:    {Cluster, "deadline exceeded", "deadline_exceeded", false},
	Cancelled:   {Node, "cancelled", "node_failed", false},
	Transfer:    {Pair, "transfer", "kv_transfer", true},
	Draining:    {Node, "draining", "draining", false},
	Internal:    {Node, "internal", "node_failed", true},
	Content:     {Pair, "content", "kv_content", true},
	Changed:     {Node, "changed", "kv_content", true},
	Undirected:  {Node, "undirected", "node_failed", false},
	Sound:       {Pair, "sound", "kv_transfer", false},
	NoPath:      {Pair, "no path", "kv_transfer", true},
	TooLarge:    {Node, "too large", "too_large", false},
	Unsupported: {Node, "unsupported", "unsupported", true},
	NoNode:      {Cluster, "no node can take it", "no_node", false},
	Full:        {Cluster, "the proxy is full", "queue_full", false},
	Ending:      {Cluster, "the proxy is shutting down", "draining", false},
	ClientGone:  {Client, "the client went away", "client_closed", false},
}

// Reported returns the fault that a node reports under a number. Lost, which a living node cannot report, and
// numbers that are not in the table are the node's own fault: Internal.
func Reported(code int32) Fault {
	if f := Fault(code); code > 0 && code < int32(NoNode) && faultTable[f].owner != 0 {
		return f
	}
	return Internal
}

// FaultOf returns the fault of an error, the outermost if it wraps several; false if it has none.
func FaultOf(err error) (f Fault, ok bool) {
	return errors.AsType[Fault](err)
}

// Owner returns who the failure is due to.
func (f Fault) Owner() Owner { return faultTable[f].owner }

// Strikes reports whether the failure counts towards the quarantine of its owner.
func (f Fault) Strikes() bool { return faultTable[f].strikes }

// Code returns the name of the fault in the API's errors and in metrics.
func (f Fault) Code() string { return faultTable[f].code }

// Error implements error.
func (f Fault) Error() string { return faultTable[f].text }

// LegError says that a node failed one leg of a request. Its fault says who is to blame.
type LegError struct {
	RequestID string
	Node      string
	Peer      string // the other end of a transfer that failed
	Leg       handoff.Leg
	Fault     Fault
	Retryable bool // false: no other node can do better, whoever is to blame
	Err       error
}

func (e *LegError) Error() string {
	at := e.Leg.String() + " leg on " + e.Node
	switch {
	case e.Peer == "":
	case e.Leg == handoff.PrefillLeg:
		at += ", KV for " + e.Peer
	default:
		at += ", KV from " + e.Peer
	}
	if e.Fault != Lost {
		at += ": " + e.Fault.Error()
	}
	return at + ": " + e.Err.Error()
}

// Unwrap returns the fault, and why.
func (e *LegError) Unwrap() []error { return []error{e.Fault, e.Err} }
