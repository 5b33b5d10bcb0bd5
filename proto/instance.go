package proto

import (
	"fmt"
	"strconv"

	"google.golang.org/grpc/metadata"
)

// instanceKey is the header of a Serve stream that says which process answers.
const instanceKey = "kvferry-instance"

// InstanceHeader is what a node begins a Serve stream with: its NodeInfo.instance.
func InstanceHeader(instance uint64) metadata.MD {
	return metadata.Pairs(instanceKey, strconv.FormatUint(instance, 16))
}

// CheckInstance says whether a stream is that of the node that registered. A node that was
// killed leaves its port free, and another node may have it while the proxy still dials. A
// node from before there was this header is taken at its address.
func CheckInstance(header metadata.MD, registered *NodeInfo) error {
	said := header.Get(instanceKey)
	if len(said) == 0 || registered.GetInstance() == 0 || said[0] == strconv.FormatUint(registered.GetInstance(), 16) {
		return nil
	}
	return fmt.Errorf("another node has the address %s of %s: instance %s, registered was %x", registered.GetGrpcAddr(), registered.GetId(), said[0], registered.GetInstance())
}
