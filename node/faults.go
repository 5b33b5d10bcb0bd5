package node

import (
	"errors"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/proto"
	"kvferry/transport"
)

var (
	// errWrongNode: the leg is for another node, whose address this one has now. A node that was killed has left
	// its port free, and the proxy dials it until the lease ends.
	errWrongNode = errors.New("it came to the wrong node")
	// errUnsupported: this node does not know what it is asked for.
	errUnsupported = errors.New("this node does not know it")
	// errRequest: no node can serve the request as it stands.
	errRequest = errors.New("invalid request")
)

// faults is the table of what the proxy is told of an error. The first row that matches counts; an error that
// is in no row is FAIL_INTERNAL, so that only what no node can serve is called the client's fault.
var faults = []struct {
	err   error
	code  proto.FailCode
	final bool // another node cannot do better
}{
	{transport.ErrNoPath, proto.FailCode_FAIL_NO_PATH, false},
	{connector.ErrOffer, proto.FailCode_FAIL_TRANSFER, false},
	{connector.ErrDeadline, proto.FailCode_FAIL_DEADLINE, true},
	{errRequest, proto.FailCode_FAIL_INVALID, true},
	{engine.ErrEmptyPrompt, proto.FailCode_FAIL_INVALID, true},
	{engine.ErrTooLong, proto.FailCode_FAIL_TOO_LARGE, false},
	{engine.ErrPoolSize, proto.FailCode_FAIL_TOO_LARGE, false},
	{errUnsupported, proto.FailCode_FAIL_UNSUPPORTED, false},
	{connector.ErrUndirected, proto.FailCode_FAIL_UNDIRECTED, false},
	{connector.ErrUsed, proto.FailCode_FAIL_CHANGED, true},
	{connector.ErrChanged, proto.FailCode_FAIL_CHANGED, false},
	{connector.ErrContent, proto.FailCode_FAIL_CONTENT, false},
	{connector.ErrTransfer, proto.FailCode_FAIL_TRANSFER, false},
}

// faultOf returns what the proxy is told of an error, and whether another node may do better.
func faultOf(err error) (code proto.FailCode, retryable bool) {
	for _, f := range faults {
		if errors.Is(err, f.err) {
			return f.code, !f.final
		}
	}
	return proto.FailCode_FAIL_INTERNAL, true
}
