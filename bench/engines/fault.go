package engines

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Fault is what befalls one prompt of a setting. It is of one of three kinds: something is done at a
// moment of the prompt's way; the backend of NIXL is wrapped and misbehaves; or many requests are left
// alone ([leave]).
type Fault struct {
	Name string
	What string // for people
	When moment
	Do   deed
	// Wrapped is the fault of the wrapper around NIXL's backend, as its schedule has it.
	Wrapped *wrapped
	// Unchecked has kvferry's connector without checksums: wrong tokens are what must come then.
	Unchecked bool
	// Reused has so few blocks of KV in each instance that the next prompt gets those of this one: what lands
	// in them late lands in its KV.
	Reused bool
}

// wrapped is a fault in a schedule of the wrapper. It hits the first transfer that is posted, or the first
// message that comes; heartbeats are not looked at.
type wrapped struct {
	Fault string `json:"fault"`
	MS    int    `json:"ms,omitempty"` // how long
	Bytes int    `json:"bytes,omitempty"`
	Skip  string `json:"skip,omitempty"` // messages that begin so
}

// message is a fault of messages.
func message(fault string, ms int) *wrapped { return &wrapped{Fault: fault, MS: ms, Skip: "HB:"} }

// hits says in which instance the fault is: the one that posts the transfers, or the other, which is told of
// their end.
func (w *wrapped) hits(s *Setting) role {
	poster, other := decode, prefill
	if s.Pushes {
		poster, other = prefill, decode
	}
	if w.Skip != "" {
		return other
	}
	return poster
}

// A moment of a prompt's way.
type moment int

const (
	never      moment = iota
	answered          // P has answered, and D is not asked yet
	underWay          // D has been asked for midway
	firstThere        // D's first token is there
)

// midway is so long after D was asked that some of the KV has gone over the link, and not all:
// it takes 0.7 s at faultLink.
const (
	midway    = 250 * time.Millisecond
	faultLink = 100e6
)

// faultLimit is how long a prompt may take that a fault befalls.
const faultLimit = 30 * time.Second

// A deed is what is done to whom.
type deed int

const (
	killP deed = iota + 1
	killD
	freezeP // it is stopped until the prompt has its outcome, and its system answers for it meanwhile
	cutLink
	loseAll // that the link carries; its carrier stays
	flipBit // of P's KV, before D is asked for it; or of the bytes on the wire, where D is asked with P
)

// leave is the name of the fault of [leaveRequests] requests.
const (
	leave         = "leave"
	leaveRequests = 1000
)

// Faults are all there are, in the order of the table.
var Faults = []Fault{
	{Name: "kill-p-before", What: "P is killed when it has answered, before D is asked", When: answered, Do: killP},
	{Name: "kill-p-during", What: "P is killed while D takes the KV", When: underWay, Do: killP},
	{Name: "kill-p-after", What: "P is killed when D has its first token", When: firstThere, Do: killP},
	{Name: "kill-d", What: "D is killed while it takes the KV", When: underWay, Do: killD},
	{Name: "freeze-p", What: "P is stopped while D takes the KV, and goes on when the prompt has its outcome", When: underWay, Do: freezeP},
	{Name: "cut", What: "the link is cut while D takes the KV, for good", When: underWay, Do: cutLink},
	{Name: "black-hole", What: "the link loses all that it carries while D takes the KV, and nobody is told", When: underWay, Do: loseAll},
	{Name: "flip", What: "a bit of the KV is another at D than it was at P", When: answered, Do: flipBit},
	{Name: "flip-unchecked", What: "the same without checksums: the tokens must be wrong", When: answered, Do: flipBit, Unchecked: true},
	{Name: leave, What: fmt.Sprintf("%d requests are cancelled, never fetched, or lose their D", leaveRequests)},
	{Name: "notif-delay", What: "NIXL: the message that ends a transfer comes late", Wrapped: message("delay", 2000)},
	{Name: "notif-drop", What: "NIXL: that message is lost", Wrapped: message("drop", 0)},
	{Name: "notif-repeat", What: "NIXL: that message comes twice", Wrapped: message("repeat", 0)},
	{Name: "notif-reorder", What: "NIXL: messages overtake each other", Wrapped: message("reorder", 5000)},
	{Name: "tear", What: "NIXL: half of a transfer is missing, and it says that all is there", Wrapped: &wrapped{Fault: "tear"}},
	{Name: "replay", What: "NIXL: a transfer's bytes land once more, with the next prompt's, which has its blocks", Wrapped: &wrapped{Fault: "replay"}, Reused: true},
	{Name: "nixl-flip", What: "NIXL: 64 bytes of a transfer are others", Wrapped: &wrapped{Fault: "flip", Bytes: 64}},
	{Name: "stall", What: "NIXL: a transfer does not go on", Wrapped: &wrapped{Fault: "stall"}},
	{Name: "flap", What: "NIXL: transfers fail for a second", Wrapped: &wrapped{Fault: "flap", MS: 1000}},
}

// befalls says that the fault can come to the setting.
func (f *Fault) befalls(s *Setting) bool {
	own := s.Needs == library
	switch {
	case s.P == "" || s.Rail != tcp:
		return false
	case f.Wrapped != nil:
		return s.Backend != ""
	case f.Unchecked:
		return own
	case f.Do == flipBit:
		return own || !s.Together
	case f.When == answered:
		return !s.Together // D is asked before P answers
	}
	return true
}

// FaultNames returns AllFaults and the names of Faults.
func FaultNames() []string {
	all := []string{AllFaults}
	for _, f := range Faults {
		all = append(all, f.Name)
	}
	return all
}

// AllFaults stands for all of them.
const AllFaults = "all"

// chooseFaults returns the faults of these names.
func chooseFaults(names []string) (all []Fault, err error) {
	for _, name := range names {
		if !slices.Contains(FaultNames(), name) {
			return nil, fmt.Errorf("%q: there is no such fault: use %s", name, strings.Join(FaultNames(), ", "))
		}
	}
	for _, f := range Faults {
		if slices.Contains(names, AllFaults) || slices.Contains(names, f.Name) {
			all = append(all, f)
		}
	}
	return all, nil
}
