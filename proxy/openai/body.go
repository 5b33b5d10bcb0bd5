package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// ParseJSON unmarshals a body that must be one JSON object. Errors say where in the text,
// or which field, and what a field takes in JSON's words instead of Go's.
func ParseJSON(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: "the body is empty: want a JSON object"}
	}
	err := json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil && bytes.TrimSpace(body)[0] == '{':
		return nil
	case err == nil, errors.As(err, &kind) && kind.Field == "":
		return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: "the body is no JSON object: want {\"model\":...}"}
	case errors.As(err, &syntax):
		before := body[:min(max(int(syntax.Offset)-1, 0), len(body))]
		line := 1 + bytes.Count(before, []byte{'\n'})
		column := len(before) - bytes.LastIndexByte(before, '\n')
		return &Error{
			Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_json",
			Message: fmt.Sprintf("the body is malformed JSON at line %d, column %d (byte %d): %v", line, column, syntax.Offset, err), Err: err,
		}
	case kind != nil:
		return BadField(kind.Field, "%s: want %s", Abbreviate(kind.Value), jsonKind(kind.Type))
	}
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_json", Message: "the body is malformed JSON: " + err.Error(), Err: err}
}

// jsonKind is what a Go type of a body's field takes.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64, reflect.Uint32:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// Abbreviate keeps what a client sent from filling the log and the answer: its first 60
// bytes, cut between runes.
func Abbreviate(s string) string {
	const limit = 60
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
