package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// An object is a JSON object whose keys have an order: the tools', so that a file of ours can
// be read beside one of theirs.
type object struct{ members []member }

type member struct {
	key   string
	value any
}

// set adds a key, or replaces the value of one that is there, in its place, as a Python dict
// does.
func (o *object) set(key string, value any) {
	for i := range o.members {
		if o.members[i].key == key {
			o.members[i].value = value
			return
		}
	}
	o.members = append(o.members, member{key, value})
}

// get is the value of a key.
func (o *object) get(key string) (value any, ok bool) {
	for _, m := range o.members {
		if m.key == key {
			return m.value, true
		}
	}
	return nil, false
}

// drop takes keys out.
func (o *object) drop(keys ...string) {
	o.members = slices.DeleteFunc(o.members, func(m member) bool { return slices.Contains(keys, m.key) })
}

// python is the object as Python's json.dump writes it: on one line, and numbers that JSON
// does not have as Infinity, -Infinity and NaN.
func (o *object) python() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o.members {
		if i > 0 {
			b.WriteString(", ")
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteString(": ")
		if f, ok := m.value.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			b.WriteString(strings.NewReplacer("nan", "NaN", "inf", "Infinity").Replace(pyFloat(f)))
			continue
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// MarshalJSON has the keys in their order.
func (o *object) MarshalJSON() ([]byte, error) { return o.python() }

// each is a list of what each request has, in the order of the load, as the tools' lists are.
func each[T any](all []seen, of func(*seen) T) []T {
	list := make([]T, len(all))
	for i := range all {
		list[i] = of(&all[i])
	}
	return list
}

// orNull is null for an option that was not given: Python's None.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// countOrNull is the same of a number.
func countOrNull(n int) any {
	if n == 0 {
		return nil
	}
	return n
}

// baseName is a model's name without its owner's.
func baseName(model string) string { return model[strings.LastIndexByte(model, '/')+1:] }
