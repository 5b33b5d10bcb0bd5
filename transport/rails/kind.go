package rails

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/transport"
)

// kinds are the rails that a user can name. A new one is a file that has its kind, and a
// line here; where it stands is where help and errors name it.
var kinds = []kind{
	tcpKind,
	rdmaKind,
	cmaKind,
	shmKind,
}

// A kind of rail is all that this package knows of it. Its name, forms, flag, help, what
// and open are required.
type kind struct {
	// name is what its rails' names begin with, before the slash: rails of one kind
	// reach each other.
	name string
	// what says how a user names one, in an error: "tcp/ and an interface".
	what string
	// forms are specs as an error suggests them, and flag as the help of a flag does.
	forms, flag []string
	// help is its part of a table of rails: specs, and what they are.
	help [][2]string

	// alone says that its name is the whole spec: it has no NIC and no options. The
	// rails of a process are numbered: cma/0.
	alone bool
	// nics are names of a NIC, for the error about one that is none: "tcp/eth0".
	nics string
	// device reads what stands in the place of the NIC, if that is more than its name.
	device func(s *Spec, text string) (nic string, err error)
	// options may follow a question mark.
	options []option

	// open makes a rail of a spec.
	open func(s *Spec, opt Options) (transport.Rail, error)
	// fields is what of a spec sets a field of the rail's configuration, for its errors.
	fields map[string]string

	// allocate makes the memory that it is fastest with; nil is transport.MapMemory.
	allocate transport.Allocator
	// near says that it goes from memory to memory by no NIC: it is near all memory.
	near bool
	// nic is the network interface that a rail uses, as a matrix names it. Without it
	// the NIC is a device, named behind the slash.
	nic func(r transport.Rail) string
}

// An option is one that a kind has, with what its value must be.
type option struct {
	key   string
	check func(value string) error
}

// Allocator makes the memory that rails by these specs are fastest with. It does not look at what else is wrong with
// them.
func Allocator(specs []string) transport.Allocator {
	for _, text := range specs {
		if s, err := Parse(text); err == nil && kindOf(s.Kind).allocate != nil {
			return kindOf(s.Kind).allocate
		}
	}
	return transport.MapMemory
}

// kindOf is the kind of that name, or nil.
func kindOf(name string) *kind {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// Reach names the rails that r can exchange bytes with: those for which Reach returns the same. Rails of a NIC
// have just their kind, as whether packets arrive only shows when they are sent.
func Reach(r transport.Rail) string {
	name, _, _ := strings.Cut(r.Name(), "/")
	if s, ok := r.(interface{ Scope() string }); ok {
		return name + " of " + s.Scope()
	}
	return name
}

// of is the kind of a rail, or nil if it is of none of these.
func of(r transport.Rail) *kind {
	name, _, _ := strings.Cut(r.Name(), "/")
	return kindOf(name)
}

// Forms are the specs that Parse reads, for errors.
func Forms() string {
	var with, alone []string
	for _, k := range kinds {
		if k.alone {
			alone = append(alone, k.forms...)
		} else {
			with = append(with, k.forms...)
		}
	}
	return strings.Join(append([]string{strings.Join(with, ", ") + ", each with ?option=value"}, alone...), ", or ")
}

// Flag are specs as the help of a flag lists them.
func Flag() string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.flag...)
	}
	return strings.Join(all, ", ")
}

// Help is a table of specs and what they are, in lines of 83 columns at most, for a
// command's help; rows come after those of the kinds.
func Help(rows ...[2]string) string {
	const place, text = 33, 47 // columns
	var all [][2]string
	for _, k := range kinds {
		all = append(all, k.help...)
	}
	var b strings.Builder
	for _, row := range append(all, rows...) {
		line, spec := "", row[0]
		flush := func() {
			fmt.Fprintf(&b, "  %-*s %s\n", place, spec, line)
			line, spec = "", ""
		}
		for word := range strings.FieldsSeq(row[1]) {
			if line != "" && len(line)+1+len(word) > text {
				flush()
			}
			line = strings.TrimPrefix(line+" "+word, " ")
		}
		flush()
	}
	return b.String()
}

// whats is how a user names a rail, of all kinds.
func whats() string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.what)
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + ", or " + all[last]
}
