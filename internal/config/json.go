package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Unmarshal reads one JSON value; what is wrong with it is said in plain words, with the
// line if there are several. A field that v does not have is an error if strict is set: a
// misspelt one would silently be zero.
func Unmarshal(text []byte, v any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if strict {
		d.DisallowUnknownFields()
	}
	line := func(offset int64) int {
		return 1 + bytes.Count(text[:min(int(offset), len(text))], []byte("\n"))
	}
	fault := func(offset int64, format string, args ...any) error {
		if !bytes.Contains(bytes.TrimSpace(text), []byte("\n")) {
			return fmt.Errorf(format, args...)
		}
		return fmt.Errorf("line %d: "+format, append([]any{line(offset)}, args...)...)
	}
	err := d.Decode(v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return fault(d.InputOffset(), "something follows the closing brace: leave it out")
		}
		return nil
	case errors.Is(err, io.EOF):
		return errors.New("it is empty: write a JSON value")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault(int64(len(text)), "it ends in the middle: is it cut off?")
	case errors.As(err, &syntax):
		return fault(syntax.Offset, "this is no JSON: %s", strings.TrimPrefix(syntax.Error(), "json: "))
	case errors.As(err, &kind):
		field := kind.Field
		Default(&field, "the value")
		return fault(kind.Offset, "%s: %s: want %s", field, kind.Value, wanted(kind.Type))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		// The decoder has read the whole value by now, so the field is looked for.
		return fault(int64(max(bytes.Index(text, []byte(name)), 0)), "there is no field %s: is it misspelt?", name)
	}
	return err
}

// wanted is what JSON has for a type.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text in quotes"
	case reflect.Slice, reflect.Array:
		return "a list in brackets"
	}
	return "an object in braces"
}
