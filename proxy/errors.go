package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"kvferry/proto"
	"kvferry/proxy/openai"
)

// Causes a request can end for. They are wrapped with the request, the leg and
// the node; errors.Is finds them. toAPIError has the status of each.
var (
	errNoNode      = errors.New("no node can take it") // of a role that the request needs; waited for
	errNodeLost    = errors.New("node lost")           // its membership or its stream, and why
	errStalled     = errors.New("the node does not get on")
	errProxyFull   = errors.New("the proxy is full")
	errProxyDrains = errors.New("the proxy is shutting down")
	errDeadline    = errors.New("deadline exceeded")
	errClientGone  = errors.New("the client went away")
)

// LegError says that a node failed one leg of a request. Whether the request is placed again
// is flight.again's to say, by Code and Retryable.
type LegError struct {
	RequestID string
	Node      string
	Peer      string // that has the other end of a transfer that failed
	Leg       proto.Leg
	Code      proto.FailCode // FAIL_UNSPECIFIED when the node itself was lost
	Retryable bool           // another node may succeed
	Err       error
}

func (e *LegError) Error() string {
	at := strings.ToLower(strings.TrimPrefix(e.Leg.String(), "LEG_")) + " leg on " + e.Node
	switch {
	case e.Peer == "":
	case e.Leg == proto.Leg_LEG_PREFILL:
		at += ", KV for " + e.Peer
	default:
		at += ", KV from " + e.Peer
	}
	if e.Code == proto.FailCode_FAIL_UNSPECIFIED {
		return fmt.Sprintf("%s: %v", at, e.Err)
	}
	code := strings.ToLower(strings.TrimPrefix(e.Code.String(), "FAIL_"))
	return fmt.Sprintf("%s: %s: %v", at, code, e.Err)
}

// ofTransfer reports whether it was the KV between two nodes that failed.
func (e *LegError) ofTransfer() bool {
	return e.Code == proto.FailCode_FAIL_TRANSFER || e.Code == proto.FailCode_FAIL_CONTENT
}

func (e *LegError) Unwrap() error { return e.Err }

// statusClientClosed is nginx's "client closed request": nobody reads it, but
// metrics and logs do.
const statusClientClosed = 499

// toAPIError classifies what ended a request. 5xx are 502 where a node was at fault, 503
// where a later try may do better (Retry-After says when, in seconds), 504 where time ran
// out, 500 anything else. An error that is one of the API's already stays as it is.
func toAPIError(err error) *openai.Error {
	var api *openai.Error
	if errors.As(err, &api) {
		return api
	}
	e := &openai.Error{Status: http.StatusInternalServerError, Type: "server_error", Message: err.Error(), Err: err}
	var leg *LegError
	switch {
	case errors.Is(err, errClientGone):
		e.Status, e.Code = statusClientClosed, "client_closed"
	case errors.Is(err, errDeadline), errors.Is(err, context.DeadlineExceeded):
		e.Status, e.Type, e.Code = http.StatusGatewayTimeout, "timeout_error", "deadline_exceeded"
	case errors.Is(err, errProxyDrains):
		e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, "draining", 5
	case errors.Is(err, errNoNode):
		e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, "no_node", 1
	case errors.As(err, &leg):
		switch leg.Code {
		case proto.FailCode_FAIL_INVALID:
			e.Status, e.Type, e.Code = http.StatusBadRequest, "invalid_request_error", "invalid"
		case proto.FailCode_FAIL_DEADLINE:
			e.Status, e.Type, e.Code = http.StatusGatewayTimeout, "timeout_error", "deadline_exceeded"
		case proto.FailCode_FAIL_TRANSFER:
			e.Status, e.Code = http.StatusBadGateway, "kv_transfer"
		case proto.FailCode_FAIL_CONTENT, proto.FailCode_FAIL_CHANGED:
			e.Status, e.Code = http.StatusBadGateway, "kv_content"
		case proto.FailCode_FAIL_UNSPECIFIED:
			e.Status, e.Code = http.StatusBadGateway, "node_lost"
		case proto.FailCode_FAIL_DRAINING:
			e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, "draining", 1
		}
	}
	return e
}
