package members_test

import (
	"context"
	"fmt"

	"kvferry/proto"
	"kvferry/proxy/members"
)

// What watches a list is told of the node that is there, and of what happens to it next.
func ExampleList() {
	list := members.NewList(&proto.NodeInfo{Id: "decode-1", GrpcAddr: "10.0.0.3:9100"})
	for c := range list.Watch(context.Background()) {
		switch c.Kind {
		case members.Joined:
			fmt.Println(c.Node.Info.Id, "at", c.Node.Info.GrpcAddr, c.Kind)
			list.Drain(c.Node.Incarnation)
		case members.Changed:
			fmt.Println("it drains:", c.Node.Draining)
			list.Leave(c.Node.Incarnation, members.ErrLeft)
		case members.Gone:
			fmt.Println("it is gone:", c.Cause)
			list.Close(members.ErrLeft) // ends the watch
		}
	}
	// Output:
	// decode-1 at 10.0.0.3:9100 joined
	// it drains: true
	// it is gone: deregistered
}
