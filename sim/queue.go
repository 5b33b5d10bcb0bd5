package sim

import (
	"time"

	"kvferry/connector"
	"kvferry/fabric"
)

// A kind of event.
type kind uint8

const (
	wake    kind = iota // the node asked to be called
	stepEnd             // of the node's engine
	post                // transfer starts
	deliver             // ev reaches the node
	landed              // transfer is all there, and those listed with it
	arrive              // the load's next request
	balance             // running requests may go on elsewhere
)

// An event is something that will happen at a time. Those of one time happen in
// the order in which they were caused.
type event struct {
	node     *node
	ev       connector.Event
	transfer *transfer
	kind     kind
}

// agenda is what will happen.
type agenda = fabric.Queue[time.Duration, event]
