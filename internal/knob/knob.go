// Package knob describes the settings of a configuration once, in a [Table]: name, type,
// default, help, the programs that take it, and when it has no effect. From a table come the
// flags of a command line and their help, the command line of a child process, JSON for
// records, the axes of a sweep, the refusal of flags that would do nothing, and what two
// configurations differ in.
//
// A configuration S is plain data whose zero value has all defaults. A [Knob] reads and writes
// one value of it as a [pflag.Value], the interface that flags have anyway.
package knob

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
)

// Roles is a set of the programs that take a knob.
type Roles uint

// A Knob is one setting of an S.
type Knob[S any] struct {
	Name    string
	Aliases []string // other names that command lines may have for it
	Group   string   // title under which help lists it
	Help    string   // imperative or noun phrase, with the unit
	Default string   // value that help and records show for the zero value; empty where that is the zero value's own text, or depends
	Value   func(*S) pflag.Value

	Roles Roles // programs that take it
	First Roles // those whose short help lists it

	// Fields are the paths of the configuration's fields that it sets, by which faults of the
	// configuration are named.
	Fields   []string
	Positive bool   // whether a 0 is refused
	Needs    string // name of the knob without which it has no effect
	// Unused returns why the knob has no effect in s and what to do, or "". Nil: it always has one.
	Unused func(s *S) string
	// Values returns the words that the value is one of, for a shell's completion and for
	// examples of sweeps. One that ends in "/" or "=" goes on. Nil: it is not one of some words.
	Values func() []string
}

// A Table lists the knobs of an S in the order in which help shows them. Two knobs may have the
// same name if no role has both.
type Table[S any] []Knob[S]

// For returns the knobs that any of roles takes.
func (t Table[S]) For(roles Roles) Table[S] {
	return slices.Collect(func(yield func(Knob[S]) bool) {
		for _, k := range t {
			if k.Roles&roles != 0 && !yield(k) {
				return
			}
		}
	})
}

// Lookup returns the knob with a name or alias, or nil.
func (t Table[S]) Lookup(name string) *Knob[S] {
	i := slices.IndexFunc(t, func(k Knob[S]) bool { return k.Name == name || slices.Contains(k.Aliases, name) })
	if i < 0 {
		return nil
	}
	return &t[i]
}

// Canonical returns the name of the knob that name is an alias of, or name.
func (t Table[S]) Canonical(name string) string {
	if k := t.Lookup(name); k != nil {
		return k.Name
	}
	return name
}

// A Group is flags that help lists under one title.
type Group struct {
	Topic string // by which help names it; groups may share one
	Title string
	Flags *pflag.FlagSet
}

// Annotations of the flags that Flags makes.
const (
	Positive = "kvferry/positive" // a 0 is refused
	Needs    = "kvferry/needs"    // has no effect without one of these flags
	First    = "kvferry/first"    // the short help lists it
)

// Flags returns a flag for each knob, which sets s, by group. roles decides which of them the
// short help lists. A value that s has already is the flag's default.
func (t Table[S]) Flags(s *S, roles Roles) []Group {
	var groups []Group
	for _, k := range t {
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Title == k.Group })
		if i < 0 {
			i = len(groups)
			fs := pflag.NewFlagSet(k.Group, pflag.ContinueOnError)
			fs.SortFlags = false
			groups = append(groups, Group{Title: k.Group, Flags: fs})
		}
		groups[i].Flags.AddFlag(k.flag(s, roles))
	}
	return groups
}

func (k *Knob[S]) flag(s *S, roles Roles) *pflag.Flag {
	f := &pflag.Flag{Name: k.Name, Usage: k.Help, Value: k.Value(s), DefValue: k.Text(s), Annotations: map[string][]string{}}
	switch {
	case f.Value.Type() == "bool":
		f.NoOptDefVal = "true"
	case f.Value.Type() == "stringSlice" && f.DefValue == "":
		f.DefValue = "[]" // or pflag's help would have a default, of no text
	}
	if k.Positive {
		f.Annotations[Positive] = []string{}
	}
	if k.Needs != "" {
		f.Annotations[Needs] = []string{k.Needs}
	}
	if k.First&roles != 0 {
		f.Annotations[First] = []string{}
	}
	return f
}

// Text returns the value that s has, as Set reads it. It is k.Default for the zero value.
func (k *Knob[S]) Text(s *S) string {
	var zero S
	text := written(k.Value(s))
	if k.Default != "" && text == written(k.Value(&zero)) {
		return k.Default
	}
	return text
}

// isDefault reports whether s has the zero value.
func (k *Knob[S]) isDefault(s *S) bool {
	var zero S
	return written(k.Value(s)) == written(k.Value(&zero))
}

// written returns a value's text as its Set reads it: pflag's own text of a list stands in brackets.
func written(v pflag.Value) string {
	list, ok := v.(pflag.SliceValue)
	if !ok {
		return v.String()
	}
	return record(list.GetSlice())
}

// record returns a list as a line of CSV, which pflag's lists are set by.
func record(list []string) string {
	if len(list) == 0 {
		return ""
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(list) // into memory
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// Set sets the knob of a name or alias to what text says.
func (t Table[S]) Set(s *S, name, text string) error {
	k := t.Lookup(name)
	if k == nil {
		return fmt.Errorf("%q: there is no such setting", name)
	}
	v := k.Value(s)
	if err := v.Set(text); err != nil {
		return fmt.Errorf("%q: %w", text, Wanted(v.Type(), err))
	}
	if zero := v.String(); k.Positive && (zero == "0" || zero == "0s") {
		return fmt.Errorf("%q: use more than 0", text)
	}
	return nil
}

// Args returns the flags that give another S the values that s has, without those that have
// their defaults.
func (t Table[S]) Args(s *S) (args []string) {
	for _, k := range t {
		if !k.isDefault(s) {
			args = append(args, "--"+k.Name+"="+written(k.Value(s)))
		}
	}
	return args
}

// Settings are the values of some knobs by their names, as records and /server_info have them:
// "-" in a name is "_" in JSON.
type Settings map[string]any

// JSON returns the value of each knob that has an effect in s. Numbers and truth values are
// JSON's, lists are lists of texts, all else is text. A knob whose default depends on something
// else is left out unless it is set.
func (t Table[S]) JSON(s *S) Settings {
	out := Settings{}
	for _, k := range t {
		if !t.used(&k, s) || k.Default == "" && k.isDefault(s) {
			continue
		}
		text, v := k.Text(s), k.Value(s)
		key := strings.ReplaceAll(k.Name, "-", "_")
		if list, ok := v.(pflag.SliceValue); ok && len(list.GetSlice()) > 0 {
			out[key] = list.GetSlice()
			continue
		}
		switch v.Type() {
		case "int", "int64", "float64", "bool", "uint64":
			out[key] = json.RawMessage(text)
		default:
			out[key] = text
		}
	}
	return out
}

// used reports whether a knob has an effect in s.
func (t Table[S]) used(k *Knob[S], s *S) bool {
	needed := t.Lookup(k.Needs)
	return (needed == nil || !needed.isDefault(s)) && (k.Unused == nil || k.Unused(s) == "")
}

// Parse returns the S whose settings JSON has written. The error names each setting that t
// does not have or whose value is wrong, in the order of their names.
func (t Table[S]) Parse(from Settings) (S, error) {
	var s S
	var bad config.Faults
	for _, name := range slices.Sorted(maps.Keys(from)) {
		var text string
		switch value := from[name].(type) {
		case []any:
			all := make([]string, len(value))
			for i, one := range value {
				all[i] = fmt.Sprint(one)
			}
			text = record(all)
		case float64:
			text = strconv.FormatFloat(value, 'f', -1, 64)
		default:
			text = fmt.Sprint(value)
		}
		bad.Check(name, t.Set(&s, strings.ReplaceAll(name, "_", "-"), text))
	}
	return s, bad.Err("settings")
}

// Check returns a fault for each knob that given reports as given and that has no effect in s.
func (t Table[S]) Check(s *S, given func(name string) bool) (bad config.Faults) {
	for _, k := range t {
		if k.Unused == nil || !given(k.Name) {
			continue
		}
		if why := k.Unused(s); why != "" {
			bad.Check(k.flagName(), fmt.Errorf("%s", why))
		}
	}
	return bad
}

// Refuse returns a fault, because of why, for each knob that given reports as given.
func (t Table[S]) Refuse(why string, given func(name string) bool) (bad config.Faults) {
	for _, k := range t {
		if given(k.Name) {
			bad.Check(k.flagName(), fmt.Errorf("%s", why))
		}
	}
	return bad
}

func (k *Knob[S]) flagName() string { return "--" + k.Name }

// Names returns the flag of each field that a knob sets, as [config.Named] takes them.
func (t Table[S]) Names() map[string]string {
	names := map[string]string{}
	for _, k := range t {
		for _, field := range k.Fields {
			names[field] = k.flagName()
		}
	}
	return names
}

// Diff returns the names of the knobs whose values, or whose effects, differ between a and b.
func (t Table[S]) Diff(a, b *S) (names []string) {
	effect := func(k *Knob[S], s *S) string {
		if !t.used(k, s) {
			return ""
		}
		return k.Text(s)
	}
	for i := range t {
		if k := &t[i]; effect(k, a) != effect(k, b) {
			names = append(names, k.Name)
		}
	}
	return names
}
