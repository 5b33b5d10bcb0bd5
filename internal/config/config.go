// Package config is what configurations have in common: how each says what is wrong with
// it, and what a field's zero value means.
//
// A configuration lists all of its faults, by field. A library names fields, as it knows
// nothing else: "node.Config.HTTPAddr: "x": write host:port". A command, whose user has
// never seen a field, gives them the names of its flags with [Named]: "--http: "x": write
// host:port". The text of a fault must therefore not name other fields: it speaks of
// other settings in plain words.
//
// The zero value of a field means its default, unless the field says otherwise. Where
// zero itself would be of use, no wait or no retry, a field takes any negative number for
// it. On a command line 0 means 0, and a flag that is left out has its default; [OrNone]
// turns the one into the other.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Fault is one thing that is wrong with a configuration, or with what it names: an
// address that is in use.
type Fault struct {
	Field string // of the configuration: "HTTPAddr", "Rails[1]", "Random.Rate"
	Err   error  // the value, and what would do: `"x": write host:port`
}

func (f *Fault) Error() string { return f.Field + ": " + f.Err.Error() }

func (f *Fault) Unwrap() error { return f.Err }

// NewFault says that a field has a value that will not do, and what would; fix may have
// %w.
func NewFault(field string, value any, fix string, args ...any) *Fault {
	return &Fault{field, fmt.Errorf("%s: %w", quoted(value), fmt.Errorf(fix, args...))}
}

// Faults are all that is wrong with a configuration.
type Faults []*Fault

// Add notes a [NewFault].
func (f *Faults) Add(field string, value any, fix string, args ...any) {
	*f = append(*f, NewFault(field, value, fix, args...))
}

// Refuse adds a [NewFault] if a field's value is wrong.
func (f *Faults) Refuse(wrong bool, field string, value any, fix string, args ...any) {
	if wrong {
		f.Add(field, value, fix, args...)
	}
}

// quoted shows a value as its user wrote it: numbers and durations bare, the rest in
// quotes.
func quoted(value any) string {
	text := fmt.Sprint(value)
	switch value.(type) {
	case nil:
		return "none given"
	case time.Duration, bool, int, int64, uint64, float64:
		return text
	}
	if text == "" || text == "[]" {
		return "none given"
	}
	return strconv.Quote(text)
}

// Check notes err, if it is not nil, as a fault of the field. The faults of a
// configuration in a field are noted one by one: "Random.Rate". So are those of one that
// is embedded, whose fields are this one's, with "" for the field.
func (f *Faults) Check(field string, err error) {
	inner, ok := err.(*Invalid) // what wraps one says more
	switch {
	case err == nil:
	case !ok:
		*f = append(*f, &Fault{field, err})
	default:
		for _, fault := range inner.Faults {
			name := fault.Field
			if field != "" {
				name = field + "." + name
			}
			*f = append(*f, &Fault{name, fault.Err})
		}
	}
}

// Err is the faults of the type where, "node.Config"; nil if there are none.
func (f Faults) Err(where string) error {
	if len(f) == 0 {
		return nil
	}
	return &Invalid{Where: where, Faults: f}
}

// Invalid is a configuration with faults: what a command refuses before it begins. A
// [Fault] alone is one that came later.
type Invalid struct {
	Where  string // the type, "node.Config"; none of a command line's
	Faults Faults
}

func (e *Invalid) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.Error()
		if e.Where != "" {
			lines[i] = e.Where + "." + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

func (e *Invalid) Unwrap() []error {
	errs := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		errs[i] = f
	}
	return errs
}

// Named gives the fields in an error the names that a command's user knows: names maps
// them, "HTTPAddr" to "--http", "Command" to "COMMAND". What is in a field goes by the
// longest part of it that has a name: "Random.Rate" is that of "Random.Rate", else that of
// "Random" with "Rate: " behind it. If that name is "", what is in the field is named as
// if it were not in one: "Rate". An index is left out: the value is there. Faults of the
// same name and text are one. A field without a name is named as it is, and so is an
// error that is of no field. What wraps an [Invalid] or a [Fault], or stands beside it, is
// dropped.
func Named(err error, names map[string]string) error {
	if e, ok := outermost(err).(renamable); ok {
		return e.rename(names)
	}
	return err
}

// outermost is the first Invalid or Fault in what err unwraps to, or err.
func outermost(err error) error {
	if e, ok := errors.AsType[renamable](err); ok {
		return e
	}
	return err
}

// A renamable error is a Fault or an Invalid.
type renamable interface {
	error
	rename(names map[string]string) error
}

func (f *Fault) rename(names map[string]string) error { return f.named(names) }

func (e *Invalid) rename(names map[string]string) error {
	var all Faults
	seen := make(map[string]bool)
	for _, f := range e.Faults {
		f = f.named(names)
		if text := f.Error(); !seen[text] {
			seen[text] = true
			all = append(all, f)
		}
	}
	return &Invalid{Faults: all}
}

func (f *Fault) named(names map[string]string) *Fault {
	for end := len(f.Field); end > 0; end = strings.LastIndexAny(f.Field[:end], ".[") {
		name, ok := names[f.Field[:end]]
		if !ok {
			continue
		}
		_, inner, nested := strings.Cut(f.Field[end:], ".")
		switch {
		case nested && name == "":
			return (&Fault{inner, f.Err}).named(names)
		case nested:
			return &Fault{name, fmt.Errorf("%s: %w", inner, f.Err)}
		}
		return &Fault{name, f.Err}
	}
	return f
}

// Default gives a field that is zero its default.
func Default[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// OrNone is what a field is set to by a user who wrote v, where a negative number stands
// for zero because zero stands for the default.
func OrNone[T int | int64 | time.Duration](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

// Between notes a number that is not from low to high.
func Between[T cmp.Ordered](f *Faults, field string, v, low, high T) {
	f.Refuse(!(v >= low && v <= high), field, v, "use %v to %v", low, high) // NaN too
}
