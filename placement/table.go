package placement

import (
	"fmt"

	"kvferry/internal/config"
)

// A kind is a policy before it is made.
type kind[Make any] struct {
	name string
	by   string // what it goes by, for help
	make Make
}

// A table has the kinds that there are to choose from, the simplest first.
type table[Make any] []kind[Make]

func (t table[Make]) names() []string {
	var names []string
	for _, k := range t {
		names = append(names, k.name)
	}
	return names
}

// help lists them, each with what it goes by.
func (t table[Make]) help() string {
	var all []string
	for _, k := range t {
		all = append(all, fmt.Sprintf("%s (%s)", k.name, k.by))
	}
	return config.Or(all)
}

// find returns what makes the one of that name.
func (t table[Make]) find(name string) (of Make, ok bool) {
	for _, k := range t {
		if k.name == name {
			return k.make, true
		}
	}
	return of, false
}
