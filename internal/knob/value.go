package knob

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
)

// pflags returns the value that pflag makes for a variable.
func pflags(register func(fs *pflag.FlagSet, name string)) pflag.Value {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	register(fs, "v")
	return fs.Lookup("v").Value
}

// Int is the value of a whole number of an S.
func Int[S any](at func(*S) *int) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.IntVar(at(s), name, *at(s), "") })
	}
}

// Int64 is the value of a whole number of 64 bits.
func Int64[S any](at func(*S) *int64) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.Int64Var(at(s), name, *at(s), "") })
	}
}

// Uint64 is the value of a whole number of 64 bits that is not negative.
func Uint64[S any](at func(*S) *uint64) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.Uint64Var(at(s), name, *at(s), "") })
	}
}

// Float is the value of a number.
func Float[S any](at func(*S) *float64) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.Float64Var(at(s), name, *at(s), "") })
	}
}

// Bool is the value of a switch.
func Bool[S any](at func(*S) *bool) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.BoolVar(at(s), name, *at(s), "") })
	}
}

// Text is the value of a text, or of a type that is one.
func Text[S any, T ~string](at func(*S) *T) func(*S) pflag.Value {
	return func(s *S) pflag.Value { return text[T]{at(s)} }
}

type text[T ~string] struct{ to *T }

func (t text[T]) Set(v string) error { *t.to = T(v); return nil }
func (t text[T]) String() string     { return string(*t.to) }
func (t text[T]) Type() string       { return "string" }

// Duration is the value of a time.
func Duration[S any](at func(*S) *time.Duration) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.DurationVar(at(s), name, *at(s), "") })
	}
}

// List is the value of texts that are given with commas, or by the flag again.
func List[S any](at func(*S) *[]string) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return pflags(func(fs *pflag.FlagSet, name string) { fs.StringSliceVar(at(s), name, *at(s), "") })
	}
}

// IntOrNone is the value of a whole number of which 0 is none: the configuration has it as
// [config.OrNone], since its own 0 is the default.
func IntOrNone[S any](at func(*S) *int) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return &orNone[int]{at(s), "int", strconv.Atoi, strconv.Itoa}
	}
}

// DurationOrNone is the same of a time.
func DurationOrNone[S any](at func(*S) *time.Duration) func(*S) pflag.Value {
	return func(s *S) pflag.Value {
		return &orNone[time.Duration]{at(s), "duration", time.ParseDuration, time.Duration.String}
	}
}

// ErrNegative is the error of a number below 0.
var ErrNegative = errors.New("use 0 or more")

type orNone[T int | time.Duration] struct {
	to    *T
	kind  string
	parse func(string) (T, error)
	print func(T) string
}

func (v *orNone[T]) Set(text string) error {
	x, err := v.parse(text)
	if err == nil && x < 0 {
		err = ErrNegative
	}
	if err == nil {
		*v.to = config.OrNone(x)
	}
	return err
}

// String returns "" for the default, so that it differs from none.
func (v *orNone[T]) String() string {
	switch {
	case *v.to == 0:
		return ""
	case *v.to < 0:
		return v.print(0)
	}
	return v.print(*v.to)
}

func (v *orNone[T]) Type() string { return v.kind }

// Wanted returns what a value of a type takes, where cause is an error of Go's parsers. kind is
// pflag's name of the type. Errors of other types say themselves what they take.
func Wanted(kind string, cause error) error {
	if errors.Is(cause, strconv.ErrRange) && kind != "uint32" && kind != "uint64" {
		return errors.New("it is out of range: write a smaller number")
	}
	if errors.Is(cause, ErrNegative) {
		return cause
	}
	switch kind {
	case "int", "int64":
		return errors.New("write a whole number")
	case "uint32":
		return errors.New("write a whole number from 0 to 4294967295")
	case "uint64":
		return errors.New("write a whole number from 0 to 18446744073709551615")
	case "float64":
		return errors.New("write a number")
	case "duration":
		return errors.New("write a time with its unit, like 500ms, 2s or 1m30s")
	case "bool":
		return errors.New("write the flag alone for yes, or =false behind it")
	}
	return cause
}

// Parsed is the value that parse makes of a text. The error of a text that parse refuses is
// kept for [Unread], so that all that is wrong with a command line can be said at once. The
// value is printed as it was given: in a table with such knobs, Args and JSON know only what
// was given to the same flag.
func Parsed[S, T any](at func(*S) *T, parse func(string) (T, error)) func(*S) pflag.Value {
	return func(s *S) pflag.Value { return &parsed[T]{to: at(s), parse: parse} }
}

type parsed[T any] struct {
	to    *T
	parse func(string) (T, error)
	given string
	err   error
}

func (v *parsed[T]) Set(text string) error {
	var x T
	if x, v.err = v.parse(text); v.err == nil {
		*v.to = x
	}
	v.given = text
	return nil
}

func (v *parsed[T]) String() string { return v.given }
func (v *parsed[T]) Type() string   { return "string" }
func (v *parsed[T]) unread() error  { return v.err }

// Unread returns a fault for each flag of fs whose text its [Parsed] value has refused.
func Unread(fs *pflag.FlagSet) (bad config.Faults) {
	fs.Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(interface{ unread() error }); ok {
			bad.Check("--"+f.Name, v.unread())
		}
	})
	return bad
}
