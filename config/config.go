// Package config is what configurations have in common: each lists all that is wrong
// with it, by field.
//
// A library names fields, as it knows nothing else: "HTTPAddr: x: want host:port". A
// command, whose user has never seen a field, gives them the names of its flags with
// [Named]: "--http: x: want host:port". So no text is searched and replaced.
package config

import (
	"errors"
	"fmt"
)

// A Fault is one thing that is wrong with a configuration.
type Fault struct {
	Field string // of the configuration: "HTTPAddr", "Rails[1]"
	Err   error  // what it is, and what would do
}

func (f *Fault) Error() string { return f.Field + ": " + f.Err.Error() }

func (f *Fault) Unwrap() error { return f.Err }

// Faults are all that is wrong with a configuration.
type Faults []*Fault

// Add notes a fault of a field. Format may have %w.
func (f *Faults) Add(field, format string, args ...any) {
	*f = append(*f, &Fault{field, fmt.Errorf(format, args...)})
}

// Check notes err, if it is not nil, as a fault of the field.
func (f *Faults) Check(field string, err error) {
	if err != nil {
		*f = append(*f, &Fault{field, err})
	}
}

// Err joins the faults under where they are, "node.Config"; nil if there are none.
func (f Faults) Err(where string) error {
	if len(f) == 0 {
		return nil
	}
	return &Invalid{Where: where, Faults: f}
}

// Invalid is a configuration with faults.
type Invalid struct {
	Where  string // the type: "node.Config"
	Faults Faults
}

func (e *Invalid) Error() string {
	errs := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		errs[i] = fmt.Errorf("%s.%w", e.Where, f)
	}
	return errors.Join(errs...).Error()
}

func (e *Invalid) Unwrap() []error {
	errs := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		errs[i] = f
	}
	return errs
}

// Named gives the faults of err the names that a command's user knows: flags maps fields
// to flags, "HTTPAddr" to "http". A field that is not there is named as it is. An error
// that is no Invalid is returned as it is.
func Named(err error, flags map[string]string) error {
	var invalid *Invalid
	if !errors.As(err, &invalid) {
		return err
	}
	errs := make([]error, len(invalid.Faults))
	for i, f := range invalid.Faults {
		errs[i] = f
		name, index := f.Field, ""
		for j, c := range name {
			if c == '[' {
				name, index = name[:j], name[j:]
				break
			}
		}
		if flag, ok := flags[name]; ok {
			errs[i] = fmt.Errorf("--%s%s: %w", flag, index, f.Err)
		}
	}
	return errors.Join(errs...)
}
