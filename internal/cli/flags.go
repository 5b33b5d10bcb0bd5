package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/internal/config"
	"kvferry/internal/knob"
)

// Check joins what is wrong with flags, and what a configuration made of them says of its
// fields, by their names. A flag that could not be read is told of once: its field has the
// value it had before, and what the configuration says of that is of no use. names is from a
// field to its flag; an err that is no [config.Invalid] is returned as it is.
func Check(bad config.Faults, err error, names map[string]string) error {
	told := make(map[string]bool)
	for _, f := range bad {
		told[f.Field] = true
	}
	err = config.Named(err, names)
	var invalid *config.Invalid
	if err != nil && !errors.As(err, &invalid) {
		return err
	}
	if err != nil {
		for _, f := range invalid.Faults {
			if !told[f.Field] {
				bad = append(bad, f)
			}
		}
	}
	return bad.Err("")
}

// Parse sets *to to what read makes of a flag's text, or adds to bad why read refuses it. An empty
// text leaves *to as it is.
func Parse[T any](bad *config.Faults, flag, text string, to *T, read func(string) (T, error)) {
	if text != "" {
		v, err := read(text)
		if bad.Check(flag, err); err == nil {
			*to = v
		}
	}
}

// ParseAll returns what read makes of each of a flag's texts, without those that it refuses: bad says
// which.
func ParseAll[T any](bad *config.Faults, flag string, texts []string, read func(string) (T, error)) (all []T) {
	for _, text := range texts {
		v, err := read(text)
		if bad.Check(flag, err); err == nil {
			all = append(all, v)
		}
	}
	return all
}

// Positive marks flags for which 0 is refused.
func Positive(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := fs.SetAnnotation(name, knob.Positive, []string{}); err != nil {
			panic(fmt.Sprintf("command: %v", err)) // the program's own mistake
		}
	}
}

// IsPositive says whether a 0 is refused for a flag.
func IsPositive(f *pflag.Flag) bool {
	_, above := f.Annotations[knob.Positive]
	return above
}

// Needs marks flags that have no effect unless another one is given too: alone they are refused. It
// is from such a flag to the one that it needs.
func Needs(fs *pflag.FlagSet, of map[string]string) {
	for name, needed := range of {
		if err := fs.SetAnnotation(name, knob.Needs, []string{needed}); err != nil {
			panic(fmt.Sprintf("command: %v", err)) // the program's own mistake
		}
	}
}

// signed is the annotation of a flag that takes negative numbers.
const signed = "kvferry/signed"

// Signed marks flags that take negative numbers, which are refused of others.
func Signed(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := fs.SetAnnotation(name, signed, []string{}); err != nil {
			panic(fmt.Sprintf("command: %v", err)) // the program's own mistake
		}
	}
}

// checkValues refuses what no flag takes: negative numbers, NaN, empty texts, 0 where it
// makes no sense, and what has no effect without another flag. It looks at flags that were given only: a default may be an empty
// text or a 0 that stands for something. It goes by what a value's String says, so that it
// holds for all types of numbers alike.
func checkValues(fs *pflag.FlagSet) error {
	var bad config.Faults
	fs.Visit(func(f *pflag.Flag) {
		name, text := "--"+f.Name, f.Value.String()
		if of := f.Annotations[knob.Needs]; len(of) > 0 && !slices.ContainsFunc(of, fs.Changed) {
			bad.Check(name, fmt.Errorf("it is for --%s: give both, or leave it out", of[0]))
		}
		if list, ok := f.Value.(interface{ GetSlice() []string }); ok {
			for _, text := range list.GetSlice() {
				if text == "" {
					bad.Check(name, errors.New("none given: give it a value, or leave it out"))
					return
				}
			}
			return
		}
		switch f.Value.Type() {
		case "string":
			if text == "" {
				bad.Check(name, errors.New("none given: give it a value, or leave it out"))
			}
		case "bool":
		default:
			if _, any := f.Annotations[signed]; any {
				return
			}
			switch zero := text == "0" || text == "0s"; {
			case text == "NaN":
				bad.Check(name, errors.New("NaN: write a number"))
			case IsPositive(f) && (zero || strings.HasPrefix(text, "-")):
				bad.Check(name, fmt.Errorf("%s: use more than 0%s", text, otherwise(f)))
			case strings.HasPrefix(text, "-"):
				bad.Check(name, fmt.Errorf("%s: use 0 or more", text))
			}
		}
	})
	return bad.Err("")
}

// otherwise says what leaving a flag out means.
func otherwise(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "0", "0s":
		return ", or leave it out for the default"
	}
	return ", or leave it out for " + f.DefValue
}

// nearestFlag says which flags have names like one that there is not.
func nearestFlag(fs *pflag.FlagSet, name string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares names of commands
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			all.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	like := all.SuggestionsFor(name)
	if len(like) == 0 || len(like) > 4 { // it is the beginning of many
		return "is it misspelt?"
	}
	return "is it --" + strings.Join(like, " or --") + "?"
}

// flagError is what pflag has found, in our words: its own name Go's functions, as in
// strconv.ParseInt. cmd is the command that the flags are of.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var value *pflag.InvalidValueError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			return invalid("-"+letters, fmt.Errorf("there is no such flag: write two dashes, as in --%s", letters))
		}
		if cmd.HasAvailableSubCommands() && !cmd.Runnable() {
			return invalid("--"+unknown.GetSpecifiedName(), noSuchCommand(cmd, ""))
		}
		return invalid("--"+unknown.GetSpecifiedName(), errors.New("there is no such flag: "+nearestFlag(cmd.Flags(), unknown.GetSpecifiedName())))
	case errors.As(err, &missing):
		return invalid("--"+missing.GetFlag().Name, errors.New("none given: write the value behind it"))
	case errors.As(err, &value):
		return invalid("--"+value.GetFlag().Name, fmt.Errorf("%q: %w", value.GetValue(), knob.Wanted(value.GetFlag().Value.Type(), value.Unwrap())))
	case errors.As(err, &syntax):
		return invalid(syntax.GetSpecifiedFlag(), errors.New("this is no flag: write --NAME VALUE or --NAME=VALUE"))
	}
	return invalid("flags", err)
}
