package rail

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/transport/pacing"
)

// What a fault does to a rail's link; the words are those of kvferry lab.
const (
	LinkDown  = "link-down"
	LinkUp    = "link-up"
	setRate   = "rate"
	BlackHole = "black-hole"
	ClearLink = "clear" // as it was at first
)

var actions = []string{LinkDown, LinkUp, setRate, BlackHole, ClearLink}

// An Annotation says that something else, a lab or a hand, does something to a
// rail's link at a time. It does nothing itself.
type Annotation struct {
	At     time.Duration `json:"at_ns"` // since the load began to count
	Action string        `json:"action"`
	Rail   int           `json:"rail"` // from 0
	// Rate is the link's from then on, in bytes a second; of the action rate only.
	Rate float64 `json:"bytes_per_s,omitempty"`
}

// String is what ParseAnnotation reads.
func (a Annotation) String() string {
	text := fmt.Sprintf("%v:%s:%d", a.At, a.Action, a.Rail)
	if a.Action == setRate {
		text += fmt.Sprintf(":%gmbit", a.Rate*8/1e6)
	}
	return text
}

const annotationForms = "write TIME:ACTION:RAIL, like 2s:link-down:1, or TIME:rate:RAIL:RATE, like 2s:rate:1:200mbit"

// ParseAnnotation reads 2s:link-down:1 or 3s:rate:1:200mbit; rails count from 0.
func ParseAnnotation(text string) (Annotation, error) {
	a, err := parseAnnotation(strings.Split(text, ":"))
	if err != nil {
		return a, fmt.Errorf("%q: %w: %s", text, err, annotationForms)
	}
	return a, nil
}

func parseAnnotation(fields []string) (a Annotation, err error) {
	if len(fields) < 3 {
		return a, errors.New("is not complete")
	}
	if a.At, err = time.ParseDuration(fields[0]); err != nil || a.At < 0 {
		return a, fmt.Errorf("%q is no time such as 2s", fields[0])
	}
	if a.Action = fields[1]; !slices.Contains(actions, a.Action) {
		return a, fmt.Errorf("%q is no action: use one of %s", a.Action, strings.Join(actions, ", "))
	}
	if a.Rail, err = strconv.Atoi(fields[2]); err != nil || a.Rail < 0 {
		return a, fmt.Errorf("%q is no rail such as 0", fields[2])
	}
	rest := fields[3:]
	if a.Action == setRate {
		if len(rest) == 0 {
			return a, errors.New("names no rate")
		}
		if a.Rate, err = pacing.ParseRate(rest[0]); err != nil {
			return a, err
		}
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return a, fmt.Errorf("%q is too much", rest[0])
	}
	return a, nil
}

// A record is a line of a lab's file of faults.
type record struct {
	UnixNS int64   `json:"unix_ns"` // when it began
	Action string  `json:"action"`
	NIC    int     `json:"nic"`
	Rate   float64 `json:"rate"`  // bits a second
	Error  string  `json:"error"` // it did not happen
}

// ReadFaults reads the JSON lines that a lab has written of its faults, as the NIC
// lab's faults.jsonl: {"unix_ns": 1763720405000000000, "action": "link-down", "nic":
// 1}, with "rate" in bits a second for the action rate, and "error" if it did not
// happen. Other fields and actions are left alone. NIC i is rail i.
func ReadFaults(r io.Reader, began time.Time) (all []Annotation, err error) {
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		if strings.TrimSpace(in.Text()) == "" {
			continue
		}
		var line record
		if err := config.Unmarshal(in.Bytes(), &line, false); err != nil {
			return all, fmt.Errorf("line %d: %w", n, err)
		}
		if !slices.Contains(actions, line.Action) || line.Error != "" {
			continue
		}
		if line.UnixNS == 0 {
			return all, fmt.Errorf("line %d has no unix_ns, the time", n)
		}
		all = append(all, Annotation{At: time.Unix(0, line.UnixNS).Sub(began), Action: line.Action, Rail: line.NIC, Rate: line.Rate / 8})
	}
	slices.SortStableFunc(all, func(a, b Annotation) int { return int(a.At - b.At) })
	return all, in.Err()
}
