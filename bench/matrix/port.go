package matrix

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"syscall"
	"time"
)

// A server that is started must be the one that answers. Where another one listens at its
// address already, the command ends with "address in use" or hangs, the other answers 200, and
// what is measured is the other.

// addresses are where a server that is started is to listen: the port that it is given, and what
// its URL names.
func (s Server) addresses(values map[string]string) []string {
	all := []string{net.JoinHostPort(values["host"], values["port"])}
	if u, err := url.Parse(values["url"]); err == nil && u.Hostname() != "" {
		port := portOf(u)
		if addr := net.JoinHostPort(u.Hostname(), port); port != "" && !slices.Contains(all, addr) {
			all = append(all, addr)
		}
	}
	return all
}

// portOf is a URL's port, or that of its scheme.
func portOf(u *url.URL) string {
	return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

// askTaken is how long an address of another machine may take to answer.
const askTaken = 2 * time.Second

// taken is an error if somebody listens at an address, which it names.
func taken(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) { // it is another machine's, or below 1024: whoever is there says so
		c, err := net.DialTimeout("tcp", addr, askTaken)
		if err != nil {
			return nil
		}
		c.Close()
	}
	who := "another process"
	if all := listeners(addr); len(all) > 0 {
		who = all[0].String()
	}
	return fmt.Errorf("%s listens at %s already, and would be measured in its place: end it, or change the server's port or url", who, addr)
}

// A listener is a process that listens at an address.
type listener struct {
	pid     int
	program string
	began   uint64 // in clock ticks since the machine's start
	parents []int  // its ancestors, the nearest first
}

func (l listener) String() string { return fmt.Sprintf("process %d (%s)", l.pid, l.program) }

// strange is an error if it can be told that who listens at an address is not what this process
// runs: if it is no descendant, and was there before. One that began later may be the server
// all the same, as a container's is a child of the container engine.
func (p *process) strange(addr string) error {
	keeper := p.keeper.Process.Pid
	began, ok := beginning(keeper)
	if !ok {
		return nil
	}
	var other *listener
	for _, l := range listeners(addr) {
		if l.pid == keeper || slices.Contains(l.parents, keeper) || l.began >= began {
			return nil
		}
		other = &l
	}
	if other == nil {
		return nil // who listens is not seen by this user
	}
	return fmt.Errorf("%v answers at %s: it is not of this server, and was there before it: end it, or change the server's port or url", other, addr)
}
