package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Action is what a fault does.
type Action string

const (
	Kill     Action = "kill"      // a host, as a power cut would
	LinkDown Action = "link-down" // pull the cable of a host's NIC
	LinkUp   Action = "link-up"
)

func (a Action) known() bool { return a == Kill || a == LinkDown || a == LinkUp }

// A Fault happens to a running lab. Its time counts from the moment when all
// hosts run the command, or, with After, from the first line of any command's
// standard output that contains that text.
type Fault struct {
	After  string // no colon in it
	Delay  time.Duration
	Action Action
	Host   int // from 1
	NIC    int // from 0; not of Kill
}

const faultForms = "write TIME:kill:HOST, TIME:link-down:HOST:NIC or TIME:link-up:HOST:NIC, after=TEXT: in front counts from that text on standard output"

// ParseFault reads 3s:kill:2, 2s:link-down:1:0 or after=READY:500ms:link-up:1:0.
func ParseFault(text string) (Fault, error) {
	f, err := parseFault(text)
	if err != nil {
		return Fault{}, fmt.Errorf("fault %q: %w: %s", text, err, faultForms)
	}
	return f, nil
}

func parseFault(text string) (f Fault, err error) {
	if rest, found := strings.CutPrefix(text, "after="); found {
		if f.After, text, found = strings.Cut(rest, ":"); !found || f.After == "" {
			return f, errors.New("after= has no text")
		}
	}
	fields := strings.Split(text, ":")
	if len(fields) < 3 {
		return f, errors.New("is not complete")
	}
	if f.Delay, err = time.ParseDuration(fields[0]); err != nil {
		return f, fmt.Errorf("%q is no time such as 3s", fields[0])
	}
	f.Action = Action(fields[1])
	if !f.Action.known() {
		return f, f.validate(maxHosts, maxNICs)
	}
	if f.Host, err = strconv.Atoi(fields[2]); err != nil {
		return f, fmt.Errorf("%q is no host such as 1", fields[2])
	}
	if f.Action != Kill {
		if len(fields) < 4 {
			return f, errors.New("names no NIC")
		}
		if f.NIC, err = strconv.Atoi(fields[3]); err != nil {
			return f, fmt.Errorf("%q is no NIC such as 0", fields[3])
		}
		fields = fields[1:]
	}
	if len(fields) > 3 {
		return f, fmt.Errorf("%q is too much", fields[3])
	}
	// Limits of any lab; Config.Validate has those of the one at hand.
	return f, f.validate(maxHosts, maxNICs)
}

// String is what ParseFault reads.
func (f Fault) String() string {
	text := fmt.Sprintf("%v:%s:%d", f.Delay, f.Action, f.Host)
	if f.Action != Kill {
		text += fmt.Sprintf(":%d", f.NIC)
	}
	if f.After != "" {
		text = "after=" + f.After + ":" + text
	}
	return text
}

func (f Fault) validate(hosts, nics int) error {
	switch {
	case !f.Action.known():
		return fmt.Errorf("%q is no action: use kill, link-down or link-up", f.Action)
	case f.Delay < 0:
		return fmt.Errorf("time is %v: use 0s or more", f.Delay)
	case f.Host < 1 || f.Host > hosts:
		return fmt.Errorf("host is %d: use 1 to %d", f.Host, hosts)
	case f.Action != Kill && (f.NIC < 0 || f.NIC >= nics):
		return fmt.Errorf("NIC is %d: use 0 to %d", f.NIC, nics-1)
	case strings.ContainsAny(f.After, ":\n"):
		return fmt.Errorf("text %q has a colon or newline: no line is matched by one", f.After)
	}
	return nil
}
