package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"kvferry/proto"
)

// Causes a request can end for. They are wrapped with the request, the leg and
// the node; errors.Is finds them.
var (
	errNoNode       = errors.New("no node can take it")
	errNodeLost     = errors.New("node lost")
	errLeaseExpired = errors.New("lease expired")
	errReplaced     = errors.New("replaced by another instance")
	errStalled      = errors.New("the node does not get on")
	errProxyFull    = errors.New("the proxy is full")
	errProxyDrains  = errors.New("the proxy is shutting down")
	errDeadline     = errors.New("deadline exceeded")
	errClientGone   = errors.New("the client went away")
	errBrokenNode   = errors.New("the node broke the protocol")
)

// LegError says that a node failed one leg of a request.
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

// apiError is an error as the HTTP API shows it, in OpenAI's form.
type apiError struct {
	Status     int    // HTTP
	Type       string // OpenAI's class
	Code       string // OpenAI's code; empty is null
	Param      string // the request field at fault; empty is null
	Message    string
	RetryAfter int // s; 0 is no header
	Err        error
}

func (e *apiError) Error() string { return e.Message }

func (e *apiError) Unwrap() error { return e.Err }

// badField is a 400 that names the field and what would do.
func badField(field, format string, args ...any) *apiError {
	return &apiError{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Param: field,
		Message: field + ": " + fmt.Sprintf(format, args...),
	}
}

// statusClientClosed is nginx's "client closed request": nobody reads it, but
// metrics and logs do.
const statusClientClosed = 499

// toAPIError classifies what ended a request.
func toAPIError(err error) *apiError {
	var api *apiError
	if errors.As(err, &api) {
		return api
	}
	e := &apiError{Status: http.StatusInternalServerError, Type: "server_error", Message: err.Error(), Err: err}
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

// appendJSON appends the error's body: {"error":{...}}.
func (e *apiError) appendJSON(b []byte) []byte {
	orNull := func(b []byte, s string) []byte {
		if s == "" {
			return append(b, "null"...)
		}
		return appendJSONString(b, s)
	}
	b = append(b, `{"error":{"message":`...)
	b = appendJSONString(b, e.Message)
	b = append(b, `,"type":`...)
	b = appendJSONString(b, e.Type)
	b = append(b, `,"param":`...)
	b = orNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = orNull(b, e.Code)
	return append(b, "}}"...)
}
