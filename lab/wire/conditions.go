package wire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
)

// Conditions are what one direction of a link does to packets. The zero value is a clean
// link.
type Conditions struct {
	Delay     time.Duration // of each packet, one way
	Jitter    time.Duration // at most Delay; each packet's delay is evenly spread from Delay-Jitter to Delay+Jitter
	Loss      float64       // share of packets, 0 to 1, each by itself
	Reorder   float64       // share that is not delayed, and so overtakes; needs a Delay
	Duplicate float64       // share that comes twice
	Corrupt   float64       // share of which one bit is wrong
}

// Names of the conditions, as flags and faults have them.
var Names = []string{"delay", "jitter", "loss", "reorder", "duplicate", "corrupt"}

// mostDelay is of a link to the other side of the Earth by way of a geostationary satellite,
// ten times: more than that is a slip.
const mostDelay = 10 * time.Second

// Set sets the condition of a name: delay and jitter to a duration, 5ms, the others to a
// share, 0.1% or 0.001.
func (c *Conditions) Set(name, value string) (err error) {
	for _, t := range c.times() {
		if t.name == name {
			*t.value, err = parseTime(value)
			return err
		}
	}
	for _, s := range c.shares() {
		if s.name == name {
			*s.value, err = parseShare(value)
			return err
		}
	}
	return fmt.Errorf("%q is none of %s", name, strings.Join(Names, ", "))
}

// A condition is a field by its name.
type condition[T any] struct {
	name  string
	value *T
}

func (c *Conditions) times() []condition[time.Duration] {
	return []condition[time.Duration]{{"delay", &c.Delay}, {"jitter", &c.Jitter}}
}

func (c *Conditions) shares() []condition[float64] {
	return []condition[float64]{{"loss", &c.Loss}, {"reorder", &c.Reorder}, {"duplicate", &c.Duplicate}, {"corrupt", &c.Corrupt}}
}

func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > mostDelay {
		return 0, fmt.Errorf("%q: write a time from 0s to %v, as 5ms", text, mostDelay)
	}
	return d, nil
}

func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	share /= 100
	// Without the sign 0.1 would be a tenth to one, and to another what it is to tc-netem(8): 0.1 %.
	if err != nil || !(share >= 0 && share <= 1) || !percent && share != 0 {
		return 0, fmt.Errorf("%q: write a share of packets from 0%% to 100%%, as 0.1%%", text)
	}
	return share, nil
}

// String is "delay=5ms jitter=1ms loss=0.1%", or "clean".
func (c Conditions) String() string {
	var text []string
	for _, t := range c.times() {
		if *t.value != 0 {
			text = append(text, t.name+"="+t.value.String())
		}
	}
	for _, s := range c.shares() {
		if *s.value != 0 {
			text = append(text, s.name+"="+strconv.FormatFloat(100**s.value, 'g', 6, 64)+"%")
		}
	}
	if len(text) == 0 {
		return "clean"
	}
	return strings.Join(text, " ")
}

// faults are what is not possible.
func (c Conditions) faults() (bad config.Faults) {
	config.Between(&bad, "Delay", c.Delay, 0, mostDelay)
	bad.Refuse(c.Jitter < 0 || c.Jitter > c.Delay, "Jitter", c.Jitter, "use 0s to the delay, which is %v: no packet comes before it is sent", c.Delay)
	for _, s := range c.shares() {
		bad.Refuse(!(*s.value >= 0 && *s.value <= 1), strings.ToUpper(s.name[:1])+s.name[1:], *s.value, "use a share from 0 to 1")
	}
	bad.Refuse(c.Reorder > 0 && c.Delay == 0, "Reorder", c.Reorder, "it needs a delay: a packet overtakes those that wait")
	return bad
}

// A Link is the conditions of both directions: what host 1 sends, and what host 2 sends.
type Link [2]Conditions

// Set sets a condition of both directions. Two values with a slash between them, 5ms/20ms,
// are those of what the host from, 0 or 1, sends, and of what it receives.
func (l *Link) Set(name, value string, from int) error {
	sent, received, two := strings.Cut(value, "/")
	if !two {
		received = sent
	}
	next := *l
	if err := next[from].Set(name, sent); err != nil {
		return err
	}
	if err := next[1-from].Set(name, received); err != nil {
		return err
	}
	*l = next
	return nil
}

// Validate names what is not possible, and in which direction.
func (l Link) Validate() error {
	var bad config.Faults
	for i, c := range l {
		for _, f := range c.faults() {
			bad.Check(f.Field, fmt.Errorf("what host %d sends: %w", i+1, f.Err))
		}
		if l[0] == l[1] {
			break // once is enough
		}
	}
	return bad.Err("lab/wire.Link")
}

// Clean says that nothing happens to packets.
func (l Link) Clean() bool { return l == Link{} }

// String is the conditions of both directions, once if they are the same.
func (l Link) String() string {
	if l[0] == l[1] {
		return l[0].String()
	}
	return l[0].String() + " / " + l[1].String()
}

// ParseLinks reads the values of a condition for n links, one for all or one for each:
// 5ms, or 5ms,5ms,20ms/1ms, and sets them.
func ParseLinks(links []Link, name, text string) error {
	values, err := Each(text, len(links))
	if err != nil {
		return err
	}
	for i, v := range values {
		if err := links[i].Set(name, v, 0); err != nil {
			return err
		}
	}
	return nil
}

// Each is the value of each of n links: text has one for all, or with commas one for each.
func Each(text string, n int) ([]string, error) {
	values := strings.Split(text, ",")
	if len(values) == 1 {
		values = slices.Repeat(values, n)
	}
	if len(values) != n {
		return nil, fmt.Errorf("%q has %d values for %d links: write one for all, or one for each", text, len(values), n)
	}
	for i := range values {
		values[i] = strings.TrimSpace(values[i])
	}
	return values, nil
}
