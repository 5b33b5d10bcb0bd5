package lab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/lab/wire"
)

// Action is what a fault does.
type Action string

// The labs of this package know [Actions], the NIC lab knows all of these.
const (
	Kill      Action = "kill"      // a host, as a power cut would
	LinkDown  Action = "link-down" // pull the cable of a host's NIC
	LinkUp    Action = "link-up"
	SetRate   Action = "rate"       // of a host's NIC, from now on
	BlackHole Action = "black-hole" // a link that looks well and delivers nothing
	Clear     Action = "clear"      // a link as it was at the start

	// What a link does to packets from now on: see package wire.
	SetDelay     Action = "delay"
	SetJitter    Action = "jitter"
	SetLoss      Action = "loss"
	SetReorder   Action = "reorder"
	SetDuplicate Action = "duplicate"
	SetCorrupt   Action = "corrupt"

	SetFlap Action = "flap" // the cable goes and comes from now on
)

// Conditions are the actions that set a condition of a link.
var Conditions = []Action{SetDelay, SetJitter, SetLoss, SetReorder, SetDuplicate, SetCorrupt}

// Actions are those of a RoCE lab. Its rates are set inside a host, by the init that has
// done so before the command runs; a fault comes from outside, where QEMU's monitor
// can cut a link and no more.
var Actions = []Action{Kill, LinkDown, LinkUp}

var allActions = append([]Action{Kill, LinkDown, LinkUp, SetRate, SetFlap, BlackHole, Clear}, Conditions...)

// A Fault happens to a running lab. Its time counts from the moment when all
// hosts run the command, or, with After, from the first line of any command's
// standard output that contains that text.
type Fault struct {
	After  string        // no colon or newline in it
	Delay  time.Duration // 0 or more
	Action Action
	Host   int   // from 1
	NIC    int   // from 0; 0 for Kill
	Rate   int64 // bits a second; of SetRate only
	// Value is of SetFlap, 2s/500ms, and of Conditions: 5ms, or 5ms/20ms for what the host sends and what it
	// receives; a share of packets as 0.1%.
	Value string
}

const faultForms = "write TIME:kill:HOST, TIME:ACTION:HOST:NIC, TIME:rate:HOST:NIC:RATE or TIME:loss:HOST:NIC:0.1%, after=TEXT: in front counts from that text on standard output"

// ParseFault reads 3s:kill:2, 2s:link-down:1:0, 3s:rate:1:0:200mbit or
// after=READY:500ms:link-up:1:0. The actions are those of the lab at hand, or
// none for all. Host and NIC are held to what any lab may have; a lab's Config holds
// them to what it has.
func ParseFault(text string, actions ...Action) (Fault, error) {
	if len(actions) == 0 {
		actions = allActions
	}
	f, err := parseFault(text, actions)
	if err != nil {
		return Fault{}, fmt.Errorf("%q: %w: %s", text, err, faultForms)
	}
	return f, nil
}

func parseFault(text string, actions []Action) (f Fault, err error) {
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
	if !slices.Contains(actions, f.Action) {
		return f, f.Validate(maxHosts, maxNICs, actions)
	}
	if f.Host, err = strconv.Atoi(fields[2]); err != nil {
		return f, fmt.Errorf("%q is no host such as 1", fields[2])
	}
	fields = fields[3:]
	if f.Action != Kill {
		if len(fields) == 0 {
			return f, errors.New("names no NIC")
		}
		if f.NIC, err = strconv.Atoi(fields[0]); err != nil {
			return f, fmt.Errorf("%q is no NIC such as 0", fields[0])
		}
		fields = fields[1:]
	}
	if f.Action == SetRate {
		if len(fields) == 0 {
			return f, errors.New("names no rate such as 200mbit")
		}
		if f.Rate, err = ParseRate(fields[0]); err != nil {
			return f, err
		}
		fields = fields[1:]
	}
	if example := f.Action.example(); example != "" {
		if len(fields) == 0 {
			return f, fmt.Errorf("says no %s such as %s", f.Action, example)
		}
		f.Value = fields[0]
		fields = fields[1:]
	}
	if len(fields) > 0 {
		return f, fmt.Errorf("%q is too much", fields[0])
	}
	// Limits of any lab; Config.Validate has those of the one at hand.
	return f, f.Validate(maxHosts, maxNICs, actions)
}

// String writes the fault as ParseFault reads it.
func (f Fault) String() string {
	text := fmt.Sprintf("%v:%s:%d", f.Delay, f.Action, f.Host)
	if f.Action != Kill {
		text += fmt.Sprintf(":%d", f.NIC)
	}
	if f.Action == SetRate {
		text += ":" + FormatRate(f.Rate)
	}
	if f.Value != "" {
		text += ":" + f.Value
	}
	if f.After != "" {
		text = "after=" + f.After + ":" + text
	}
	return text
}

// Validate checks a fault against the size of a lab and the actions that it knows.
func (f Fault) Validate(hosts, nics int, actions []Action) error {
	switch {
	case !slices.Contains(actions, f.Action):
		return fmt.Errorf("%q is no action here: use %s", f.Action, oneOf(actions))
	case f.Delay < 0:
		return fmt.Errorf("time is %v: use 0s or more", f.Delay)
	case f.Host < 1 || f.Host > hosts:
		return fmt.Errorf("host is %d: use 1 to %d", f.Host, hosts)
	case f.Action != Kill && (f.NIC < 0 || f.NIC >= nics):
		return fmt.Errorf("NIC is %d: use 0 to %d", f.NIC, nics-1)
	case f.Action == SetRate && !rateInRange(f.Rate):
		return fmt.Errorf("rate is %d bit/s: use 100kbit to 100gbit", f.Rate)
	case strings.ContainsAny(f.After, ":\n"):
		return fmt.Errorf("text %q has a colon or newline: no line is matched by one", f.After)
	case f.Action == SetFlap:
		_, err := ParseFlap(f.Value)
		return err
	case slices.Contains(Conditions, f.Action):
		return new(wire.Link).Set(string(f.Action), f.Value, 0)
	}
	return nil
}

// example is a value of an action, or nothing if it has none.
func (a Action) example() string {
	switch a {
	case SetDelay, SetJitter:
		return "5ms"
	case SetLoss, SetReorder, SetDuplicate, SetCorrupt:
		return "0.1%"
	case SetFlap:
		return "2s"
	}
	return ""
}

// oneOf is "kill, link-down or link-up".
func oneOf(actions []Action) string {
	var b strings.Builder
	for i, a := range actions {
		switch i {
		case 0:
		case len(actions) - 1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(string(a))
	}
	return b.String()
}
