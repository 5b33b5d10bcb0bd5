package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// A tokenCount is a number of tokens in an answer. It is to be whole, however it is written: gateways
// in languages whose numbers are all floats, or that make text of them, send 8.0 or "8".
type tokenCount int

// maxWhole is the first integer that a float may not tell from the one after it.
const maxWhole = 1 << 53

// UnmarshalJSON reads a count. The error of another value is one of JSON's own, to which package
// encoding/json adds the field that has it.
func (n *tokenCount) UnmarshalJSON(value []byte) error {
	text := string(value)
	if text == "null" {
		return nil
	}
	if quoted := strings.TrimPrefix(text, `"`); quoted != text {
		text = strings.TrimSuffix(quoted, `"`)
	}
	if whole, err := strconv.Atoi(text); err == nil {
		*n = tokenCount(whole)
		return nil
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < maxWhole {
		*n = tokenCount(f)
		return nil
	}
	return &json.UnmarshalTypeError{Value: string(value), Type: reflect.TypeFor[tokenCount]()}
}

// unreadable is the error of an event or an answer that package encoding/json does not take: it is no
// JSON, or the value of a field is none that this field may have.
func unreadable(what string, err error, text []byte) error {
	var value *json.UnmarshalTypeError
	if !errors.As(err, &value) {
		return fmt.Errorf("%s is not JSON: %w: %.80q", what, err, text)
	}
	want := value.Type.String()
	switch value.Type.Kind() {
	case reflect.Int:
		want = "a whole number"
	case reflect.Struct:
		want = "an object"
	case reflect.Slice:
		want = "a list"
	}
	field := cmp.Or(value.Field, "all of it")
	return fmt.Errorf("%s: %s is %.40s, want %s: %.80q", what, field, value.Value, want, text)
}
