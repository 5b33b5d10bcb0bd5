// Package members says which nodes there are: a [Membership] tells who watches it of each
// that joins, changes and is gone. A proxy knows nodes by nothing else, so that whatever
// keeps a list of them (etcd, Kubernetes' endpoints) can stand in for what is here:
//
//	Leases   nodes that register with the proxy and renew a lease: what the daemons do
//	List     nodes that the program names: a static cluster, or a test's
//
// Package memberstest is what every Membership must do. [Rules] are which nodes may be in
// one cluster, whoever names them. A membership does not know whether a node can be
// reached: that is for who has a stream to it.
package members

import (
	"context"
	"errors"
	"iter"

	"kvferry/proto"
)

// A Membership knows which nodes there are.
type Membership interface {
	// Watch tells of every node that is there, as Joined, and then of every change, until
	// ctx is done or the membership ends. It begins when the sequence is read. The
	// membership ends with all of its nodes told as Gone; one that has lost its source for a
	// while keeps what it knew.
	//
	// Changes are told in the order in which they happened, of all nodes. A reader that is
	// slow holds nobody up and is told less: of several changes of a node the last, and of
	// a node that came and went meanwhile nothing. What waits for it is two changes a node
	// at most. That a node that it knows is gone it is always told.
	//
	// Any number of goroutines may watch; each is told all.
	Watch(ctx context.Context) iter.Seq[Change]
}

// A Node is a member as it is now. What it points to never changes and belongs to the
// membership: do not change it.
type Node struct {
	// Info is what the node says of itself when it joins.
	Info *proto.NodeInfo
	// Incarnation is another each time that a node joins, unlike its id; never 0.
	Incarnation uint64
	// Draining: it ends what it has and takes nothing new.
	Draining bool
	// Load and Rails are of the last heartbeat: nil before the first, and where there are
	// none.
	Load  *proto.Load
	Rails []*proto.RailLoad
}

// A Change is what has happened to a node.
type Change struct {
	Kind  Kind
	Node  Node  // with the change; of one that is gone, as it last was
	Cause error // Gone: why
}

// Kind says which change it is.
type Kind int

// Of one incarnation Joined is told first, once, and Gone last, once. Of two with one id
// the first is Gone before the second has Joined.
const (
	Joined  Kind = iota + 1
	Changed      // Draining, Load or Rails
	Gone
)

// String names it for logs.
func (k Kind) String() string {
	return [...]string{"unknown", "joined", "changed", "gone"}[max(0, min(k, Gone))]
}

// Why a node is gone; errors.Is finds them in a Cause. With ErrLeft it went in good order,
// and what it has under way may end; with any other cause that is lost.
var (
	ErrLeft     = errors.New("deregistered")
	ErrExpired  = errors.New("lease expired")
	ErrReplaced = errors.New("replaced by another instance")
)
