package proto

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// Protocol is the version of the control plane that this build speaks. It rises with every change that a
// build from before would misunderstand. Nodes and proxies of different versions refuse each other.
const Protocol = 1

// Unknown returns an error that names the first field of a message that this build does not know, and nil if it
// knows them all.
func Unknown(m protobuf.Message) error {
	fields := m.ProtoReflect().GetUnknown()
	if len(fields) == 0 {
		return nil
	}
	kind, _, _ := protowire.ConsumeTag(fields)
	return fmt.Errorf("message kind %d is not in protocol %d: run the same version of kvferry on the proxy and its nodes", kind, Protocol)
}

// LongestStep returns the longest that a step of a node can take, by its own figures.
func (n *NodeInfo) LongestStep() time.Duration {
	return time.Duration(n.StepUs)*time.Microsecond + time.Duration(n.MaxModelLen)*time.Duration(n.PromptTokenNs)
}
