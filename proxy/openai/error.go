package openai

import (
	"fmt"
	"net/http"
)

// Error is an error as the HTTP API shows it, in OpenAI's form. Clients choose by Status and
// Code whether to try again; Message is for people, and says what would do.
type Error struct {
	Status     int    // HTTP
	Type       string // OpenAI's class
	Code       string // OpenAI's code; empty is null
	Param      string // the request field at fault; empty is null
	Message    string
	RetryAfter int    // s; 0 is no header
	Err        error  // what caused it, for errors.Is; not shown
	Body       []byte // JSON in which an engine has said it; nil: in OpenAI's form
}

// Error implements error: the message.
func (e *Error) Error() string { return e.Message }

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// BadField is a 400 that names the field and what would do.
func BadField(field, format string, args ...any) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Param: field,
		Message: field + ": " + fmt.Sprintf(format, args...),
	}
}

// AppendJSON appends the error's body: {"error":{...}}.
func (e *Error) AppendJSON(b []byte) []byte {
	if e.Body != nil {
		return append(b, e.Body...)
	}
	orNull := func(b []byte, s string) []byte {
		if s == "" {
			return append(b, "null"...)
		}
		return AppendString(b, s)
	}
	b = append(b, `{"error":{"message":`...)
	b = AppendString(b, e.Message)
	b = append(b, `,"type":`...)
	b = AppendString(b, e.Type)
	b = append(b, `,"param":`...)
	b = orNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = orNull(b, e.Code)
	return append(b, "}}"...)
}
