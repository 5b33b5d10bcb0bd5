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

	"kvferry/config"
)

// Kinds of rail.
const (
	TCP  = "tcp"
	RDMA = "rdma"
	CMA  = "cma"
)

// Forms are the specs that Parse reads, for flags and errors.
const Forms = "host:port, tcp/eth0, tcp/eth0@host:port, rdma/mlx5_0, rdma/mlx5_0:1@host:port, each with ?option=value, or cma"

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
	Kind string // TCP, RDMA or CMA
	// NIC is the interface or the verbs device; "" for a TCP rail that is only an
	// address, and for a CMA rail, which needs none.
	NIC string
	// Port of an RDMA device, from 1.
	Port int
	// Listen is host:port; an empty host is the NIC's address.
	Listen  string
	options []option
}

// option is one that was given, with its value already read.
type option struct{ key, value string }

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
	switch {
	case s.Kind == CMA:
		b.WriteString(CMA)
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
	for i, o := range s.options {
		b.WriteString(map[bool]string{true: "?", false: "&"}[i == 0] + o.key + "=" + url.QueryEscape(o.value))
	}
	return b.String()
}

type knownOption struct {
	key   string
	check func(string) error
}

// known are the options of a kind, with what their values must be.
var known = map[string][]knownOption{
	TCP: {
		{"advertise", anything},
		{"congestion", anything},
		{"sndbuf", between(1, 1<<30)},
		{"mptcp", between(0, 1)},
		{"conns", between(1, 1<<16)},
		{"peerconns", between(1, 1<<16)},
	},
	RDMA: {
		{"gid", between(0, 255)},
		{"qps", between(1, 16)},
		{"depth", between(1, 8192)},
		{"poll", duration},
		{"advertise", anything},
		{"conns", between(1, 1<<16)},
		{"peerconns", between(1, 1<<16)},
	},
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
	s := &Spec{Kind: TCP}
	kind, rest, isNamed := strings.Cut(place, "/")
	switch {
	case text == CMA:
		return &Spec{Kind: CMA}, nil
	case place == CMA || isNamed && kind == CMA:
		return nil, errors.New("a cma rail has no NIC and no options: write cma")
	case place == "":
		return nil, errors.New("none given: write " + Forms)
	case !isNamed && !strings.Contains(place, ":"):
		return nil, fmt.Errorf("neither an address nor a NIC: write %s", Forms)
	case !isNamed:
		s.Listen = place
		host, err := s.checkListen()
		if err != nil {
			return nil, err
		}
		if host == "" {
			return nil, errors.New("no host: name the address that peers can dial, or the interface, like tcp/eth0@" + place)
		}
	case kind != TCP && kind != RDMA:
		return nil, fmt.Errorf("kind %q is unknown: use tcp/ and an interface, rdma/ and a device, or cma", kind)
	default:
		s.Kind = kind
		nic, listen, hasListen := strings.Cut(rest, "@")
		if kind == RDMA {
			var port string
			var hasPort bool
			if nic, port, hasPort = strings.Cut(nic, ":"); hasPort {
				n, err := strconv.Atoi(port)
				if err != nil || n < 1 || n > 255 {
					return nil, fmt.Errorf("port %q of the device: use 1 to 255, or leave it out for the first that is active", port)
				}
				s.Port = n
			}
		}
		if nic == "" || strings.ContainsAny(nic, "/ \t\n") || kind == TCP && strings.Contains(nic, ":") {
			return nil, fmt.Errorf("%q is no name of a NIC: write it as in %s", nic, map[string]string{TCP: "tcp/eth0 or tcp/eth0@:7000", RDMA: "rdma/mlx5_0 or rdma/mlx5_0:1"}[kind])
		}
		s.NIC, s.Listen = nic, listen
		if hasListen {
			if _, err := s.checkListen(); err != nil {
				return nil, err
			}
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
	if query == "" {
		return fmt.Errorf("nothing after the question mark: leave it out, or use %s", optionNames(s.Kind))
	}
	for _, pair := range strings.Split(query, "&") {
		key, raw, _ := strings.Cut(pair, "=")
		value, err := url.QueryUnescape(raw)
		if err != nil {
			return fmt.Errorf("option %s is %q: write a percent sign as %%25", key, raw)
		}
		i := slices.IndexFunc(known[s.Kind], func(k knownOption) bool { return k.key == key })
		switch {
		case i < 0:
			return fmt.Errorf("option %q is unknown: a %s rail has %s", key, s.Kind, optionNames(s.Kind))
		case s.get(key) != "":
			return fmt.Errorf("option %s is given twice: leave one out", key)
		}
		if err := known[s.Kind][i].check(value); err != nil {
			return fmt.Errorf("option %s is %q: %w", key, value, err)
		}
		s.options = append(s.options, option{key, value})
	}
	return nil
}

func optionNames(kind string) string {
	var names []string
	for _, k := range known[kind] {
		names = append(names, k.key)
	}
	return strings.Join(names, ", ")
}
