package engines

import (
	"strings"

	"kvferry/lab/nics"
)

// A place is where instances run: on this machine, or with a lab P on its first host and D on the
// second.
type place struct {
	lab *nics.Lab
}

// host is the address of an instance.
func (p place) host(r role) string {
	if p.lab == nil {
		return "127.0.0.1"
	}
	return nics.Address(1+int(r), 0)
}

// nics are those that UCX is to use.
func (p place) nics() string {
	if p.lab == nil {
		return "all"
	}
	return nics.Name(0)
}

// rails are those of kvferry by a setting's Rail. Two over one NIC need names of their own, which
// those by address have.
func (p place) rails(rail string) string {
	over := func(nic int) string {
		if p.lab == nil {
			return map[bool]string{true: "tcp/lo", false: p.host(prefill) + ":0"}[rail == tcp]
		}
		return "tcp/" + nics.Name(nic)
	}
	switch rail {
	case tcp:
		return over(0)
	case twoTCP:
		return strings.Join([]string{over(0), over(1)}, ",")
	}
	return rail
}

// links are the rates of the links that a setting needs in a lab.
func links(rail string, rate int64) []int64 {
	if rail == twoTCP {
		return []int64{rate, rate}
	}
	return []int64{rate}
}

// sent is how many bytes P has sent over the first link so far, 0 without one.
func (p place) sent() int64 {
	if p.lab == nil {
		return 0
	}
	t, err := p.lab.Traffic(1, 0)
	if err != nil {
		return 0
	}
	return t.SentBytes
}
