package wire

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"kvferry/attempt"
	"kvferry/proxy/openai"
)

// StatusClientClosed is nginx's "client closed request": nobody reads it, but
// metrics and logs do.
const StatusClientClosed = 499

// ErrorOf classifies what ended a request, by the owner of its fault: 400 where the request itself is
// wrong, 502 where a node or a pair of nodes failed it, 503 where a later try may do better (Retry-After says
// when, in seconds), 500 for an error without a fault. Time that ran out is 504. An error that is one of the
// API's already stays as it is.
func ErrorOf(err error) *openai.Error {
	if api, ok := errors.AsType[*openai.Error](err); ok {
		return api
	}
	e := &openai.Error{Status: http.StatusInternalServerError, Type: "server_error", Message: err.Error(), Err: err}
	f, ok := attempt.FaultOf(err)
	if !ok && errors.Is(err, context.DeadlineExceeded) {
		f, ok = attempt.Deadline, true
	}
	if !ok {
		return e
	}
	e.Code = f.Code()
	switch {
	case f == attempt.ClientGone:
		e.Status = StatusClientClosed
	case f == attempt.Deadline:
		e.Status, e.Type = http.StatusGatewayTimeout, "timeout_error"
	case f == attempt.Ending:
		e.Status, e.RetryAfter = http.StatusServiceUnavailable, 5
	case f == attempt.Draining || f.Owner() == attempt.Cluster:
		e.Status, e.RetryAfter = http.StatusServiceUnavailable, 1
	case f.Owner() == attempt.Client:
		e.Status, e.Type = http.StatusBadRequest, "invalid_request_error"
	default:
		e.Status = http.StatusBadGateway
	}
	return e
}

// QueueFull is a 429 that says when to come back: once what is ahead has been served,
// as far as it is too much.
func QueueFull(code string, after time.Duration, err error) *openai.Error {
	seconds := max(int(math.Ceil(after.Seconds())), 1)
	return &openai.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: code, RetryAfter: seconds,
		Message: err.Error() + "; try again in " + strconv.Itoa(seconds) + " s", Err: err,
	}
}
