package rails

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
)

// Check notes what is wrong with the specs of a configuration's field Rails, and returns
// those that can be read.
func Check(bad *config.Faults, specs []string) (good []*Spec) {
	seen := make(map[string]bool)
	for i, text := range specs {
		s, err := Parse(text)
		field := fmt.Sprintf("Rails[%d]", i)
		bad.Check(field, err)
		if err != nil {
			continue
		}
		good = append(good, s)
		// Rails of one NIC have one name, and addresses are told from each other by number.
		if name := s.Kind + "/" + s.NIC; s.NIC != "" {
			if seen[name] {
				bad.Add(field, text, "%s is given twice: leave one out", name)
			}
			seen[name] = true
		}
	}
	return good
}

// Specs are a command line's rails: a flag that is given once for each, or with several
// and commas between them. Nothing of a rail has a comma in it. It does not look at what
// it is given; a configuration's Validate does.
type Specs []string

// Set adds rails.
func (s *Specs) Set(text string) error {
	*s = append(*s, strings.Split(text, ",")...)
	return nil
}

func (s *Specs) String() string { return strings.Join(*s, ",") }

// Type is what a flag's help calls its value.
func (s *Specs) Type() string { return "rails" }

// GetSlice is one element a rail.
func (s *Specs) GetSlice() []string { return *s }

// A Spec is a rail as a user names it. Its zero values are left to the rail.
type Spec struct {
	Kind string // TCP, RDMA, CMA, ...
	// NIC is the interface or the verbs device; "" for a TCP rail that is only an
	// address, and for a kind that needs none.
	NIC string
	// Port of an RDMA device, from 1.
	Port int
	// Listen is host:port; an empty host is the NIC's address.
	Listen  string
	options []given
}

// given is an option that was, with its value already read.
type given struct{ key, value string }

// get is the value of an option, or "".
func (s *Spec) get(key string) string {
	for _, o := range s.options {
		if o.key == key {
			return o.value
		}
	}
	return ""
}

func (s *Spec) number(key string) int {
	n, _ := strconv.Atoi(s.get(key)) // Parse has read it
	return n
}

// String is the form Parse reads.
func (s *Spec) String() string {
	var b strings.Builder
	switch k := kindOf(s.Kind); {
	case k != nil && k.alone:
		b.WriteString(s.Kind)
	case s.NIC == "":
		b.WriteString(s.Listen)
	default:
		b.WriteString(s.Kind + "/" + s.NIC)
		if s.Port > 0 {
			fmt.Fprintf(&b, ":%d", s.Port)
		}
		if s.Listen != "" {
			b.WriteString("@" + s.Listen)
		}
	}
	b.WriteString(s.optionText())
	return b.String()
}

// optionText is the question mark and what stands behind it, or nothing.
func (s *Spec) optionText() string {
	var b strings.Builder
	for i, o := range s.options {
		b.WriteString(map[bool]string{true: "?", false: "&"}[i == 0] + o.key + "=" + url.QueryEscape(o.value))
	}
	return b.String()
}

// WithOptions is a rail's name with the options of the spec that it was opened by: tcp/eth0?conns=4.
func WithOptions(name, spec string) string {
	s, err := Parse(spec)
	if err != nil {
		return name
	}
	return name + s.optionText()
}

func anything(v string) error {
	if v == "" {
		return errors.New("give it a value, or leave it out")
	}
	return nil
}

func between(low, high int) func(string) error {
	return func(v string) error {
		if n, err := strconv.Atoi(v); err != nil || n < low || n > high {
			return fmt.Errorf("use a whole number from %d to %d", low, high)
		}
		return nil
	}
}

func duration(v string) error {
	if _, err := time.ParseDuration(v); err != nil {
		return errors.New("write a duration, like 20us, or a negative one for never")
	}
	return nil
}

// Parse reads a spec; it does not look at the machine.
func Parse(text string) (*Spec, error) {
	s, err := parse(text)
	if err != nil {
		if text == "" {
			return nil, err
		}
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return s, nil
}

func parse(text string) (*Spec, error) {
	place, query, hasQuery := strings.Cut(text, "?")
	name, rest, isNamed := strings.Cut(place, "/")
	k := kindOf(name)
	s := &Spec{Kind: TCP}
	switch {
	case place == "":
		return nil, errors.New("none given: write " + Forms())
	case k != nil && k.alone && text != k.name:
		return nil, fmt.Errorf("a %s rail has no NIC and no options: write %[1]s", k.name)
	case k != nil && k.alone:
		return &Spec{Kind: k.name}, nil
	case !isNamed && !strings.Contains(place, ":"):
		return nil, fmt.Errorf("neither an address nor a NIC: write %s", Forms())
	case !isNamed:
		s.Listen = place
		host, err := s.checkListen()
		if err != nil {
			return nil, err
		}
		if host == "" {
			return nil, errors.New("no host: name the address that peers can dial, or the interface, like tcp/eth0@" + place)
		}
	case k == nil:
		return nil, fmt.Errorf("kind %q is unknown: use %s", name, whats())
	default:
		s.Kind = k.name
		if err := s.parseNIC(k, rest); err != nil {
			return nil, err
		}
	}
	if hasQuery {
		if err := s.parseOptions(query); err != nil {
			return nil, err
		}
	}
	if s.Listen != "" && s.get("advertise") == "" {
		if ip, err := netip.ParseAddr(hostOf(s.Listen)); err == nil && ip.IsUnspecified() {
			return nil, errors.New("it names no host, and peers are told to dial it: name the address, or add ?advertise=ADDRESS")
		}
	}
	return s, nil
}

// parseNIC reads what stands behind the slash: a NIC, and where the rail listens.
func (s *Spec) parseNIC(k *kind, text string) (err error) {
	nic, listen, hasListen := strings.Cut(text, "@")
	if k.device != nil {
		if nic, err = k.device(s, nic); err != nil {
			return err
		}
	}
	if nic == "" || strings.ContainsAny(nic, ":/ \t\n") {
		return fmt.Errorf("%q is no name of a NIC: write it as in %s", nic, k.nics)
	}
	s.NIC, s.Listen = nic, listen
	if hasListen {
		_, err = s.checkListen()
	}
	return err
}

func hostOf(listen string) string {
	host, _, _ := net.SplitHostPort(listen) // checkListen has read it
	return host
}

// checkListen returns the host of s.Listen.
func (s *Spec) checkListen() (string, error) {
	host, _, err := config.Address(s.Listen)
	return host, err
}

func (s *Spec) parseOptions(query string) error {
	known := kindOf(s.Kind).options
	var keys []string
	for _, o := range known {
		keys = append(keys, o.key)
	}
	names := strings.Join(keys, ", ")
	if query == "" {
		return fmt.Errorf("nothing after the question mark: leave it out, or use %s", names)
	}
	for _, pair := range strings.Split(query, "&") {
		key, raw, _ := strings.Cut(pair, "=")
		value, err := url.QueryUnescape(raw)
		if err != nil {
			return fmt.Errorf("option %s is %q: write a percent sign as %%25", key, raw)
		}
		i := slices.Index(keys, key)
		switch {
		case i < 0:
			return fmt.Errorf("option %q is unknown: a %s rail has %s", key, s.Kind, names)
		case s.get(key) != "":
			return fmt.Errorf("option %s is given twice: leave one out", key)
		}
		if err := known[i].check(value); err != nil {
			return fmt.Errorf("option %s is %q: %w", key, value, err)
		}
		s.options = append(s.options, given{key, value})
	}
	return nil
}
