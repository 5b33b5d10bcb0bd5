package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// doings are acts in words: whom is given what order, and the fault.
func doings(acts []act) string {
	var all []string
	for _, a := range acts {
		if a.order == nil {
			all = append(all, "fault")
			continue
		}
		all = append(all, fmt.Sprintf("%v %s", a.to, a.order.Do))
	}
	return strings.Join(all, ", ")
}

// An occurrence is a line of an ordeal's transcript: what an instance says or that it ends, or else that time
// has gone by; and what is done then.
type occurrence struct {
	at   time.Duration
	from role
	event
	over bool
	done string
}

// TestOrdeal: when each fault comes, and what the answers are taken for, by transcripts.
func TestOrdeal(t *testing.T) {
	tokens := []int{1, 2, 3}
	pDone := event{Event: saysDone, ID: "q", Tokens: []int{1}, Params: json.RawMessage(`{"hold":1}`)}
	dFirst, dDone := event{Event: saysFirst, ID: "q"}, event{Event: saysDone, ID: "q", Tokens: tokens}
	for name, c := range map[string]struct {
		setting, fault string
		begin          string
		all            []occurrence
		computed       int
		outcome        Outcome
		took           time.Duration
		text           string
	}{
		"none": {
			setting: "kvferry-pull", begin: "P generate",
			all: []occurrence{
				{at: 3 * ms1, from: prefill, event: event{Event: saysDone, ID: "older"}},
				{at: 4 * ms1, from: prefill, event: pDone, done: "D generate"},
				{at: 5 * ms1, from: decode, event: event{Event: saysCounted}},
				{at: 6 * ms1, from: decode, event: dFirst},
				{at: 9 * ms1, from: decode, event: dDone},
				{at: 10 * ms1, from: decode, over: true}, // too late to matter
			},
			computed: 1, outcome: Right, took: 9 * ms1,
		},
		"P before": {
			setting: "kvferry-pull", fault: "kill-p-before", begin: "P generate",
			all: []occurrence{
				{at: 4 * ms1, from: prefill, event: pDone, done: "fault, D generate"},
				{at: 5 * ms1, from: prefill, over: true},
				{at: 9 * ms1, from: decode, event: dDone},
			},
			computed: 4, outcome: Recomputed, took: 9 * ms1,
		},
		"P during": {
			setting: "kvferry-pull", fault: "kill-p-during", begin: "P generate",
			all: []occurrence{
				{at: 4 * ms1, from: prefill, event: pDone, done: "D generate"},
				{at: 253 * ms1},
				{at: 254 * ms1, done: "fault"},
				{at: 255 * ms1, from: prefill, over: true},
				{at: 300 * ms1},
				{at: 310 * ms1, from: decode, event: event{Event: saysDone, ID: "q", Tokens: []int{}, Finish: "error"}},
			},
			outcome: Failed, took: 310 * ms1, text: "D: its answer is an error",
		},
		"P during, layerwise": {
			setting: "kvferry-layerwise", fault: "kill-p-during", begin: "P generate, D generate",
			all: []occurrence{
				{at: 250 * ms1, done: "fault"},
				{at: 255 * ms1, from: prefill, over: true},
				{at: 2 * time.Second},
			},
			outcome: Hang, took: 2 * time.Second, text: "no answer within 2s",
		},
		"P after": {
			setting: "kvferry-pull", fault: "kill-p-after", begin: "P generate",
			all: []occurrence{
				{at: 4 * ms1, from: prefill, event: pDone, done: "D generate"},
				{at: 6 * ms1, from: decode, event: dFirst, done: "fault"},
				{at: 9 * ms1, from: decode, event: event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 4}}},
			},
			outcome: Wrong, took: 9 * ms1, text: "D answered [1 2 4], mono [1 2 3]",
		},
		"D": {
			setting: "kvferry-pull", fault: "kill-d", begin: "P generate",
			all: []occurrence{
				{at: 4 * ms1, from: prefill, event: pDone, done: "D generate"},
				{at: 254 * ms1, done: "fault"},
				{at: 256 * ms1, from: decode, over: true},
			},
			outcome: Failed, took: 256 * ms1, text: "D was killed",
		},
		"D by itself": {
			setting: "kvferry-pull", fault: "kill-p-during", begin: "P generate",
			all: []occurrence{
				{at: 4 * ms1, from: prefill, event: pDone, done: "D generate"},
				{at: 20 * ms1, from: decode, over: true},
				{at: 300 * ms1},
			},
			outcome: Crashed, took: 20 * ms1, text: "D ended: exit status 9",
		},
		"an exception": {
			setting: "kvferry-pull", fault: "cut", begin: "P generate",
			all:     []occurrence{{at: 4 * ms1, from: prefill, event: event{Event: saysError, Text: "KeyError: 'x'"}}},
			outcome: Crashed, took: 4 * ms1, text: "P: KeyError: 'x'",
		},
		"P's error": {
			setting: "kvferry-pull", fault: "cut", begin: "P generate",
			all:     []occurrence{{at: 4 * ms1, from: prefill, event: event{Event: saysDone, ID: "q", Finish: "error"}}},
			outcome: Failed, took: 4 * ms1, text: "P: its answer is an error",
		},
		"flip": { // D is asked once the bit is another
			setting: "kvferry-pull", fault: "flip", begin: "P generate",
			all: []occurrence{
				{at: 4 * ms1, from: prefill, event: pDone, done: "fault"},
				{at: 5 * ms1, from: prefill, event: event{Event: saysFlipped, ID: "q"}, done: "D generate"},
				{at: 9 * ms1, from: decode, event: event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 4}}},
			},
			outcome: Wrong, took: 9 * ms1, text: "D answered [1 2 4], mono [1 2 3]",
		},
		"flip, layerwise": { // on the wire: P is told before it is asked
			setting: "kvferry-layerwise", fault: "flip", begin: "fault, P generate, D generate",
			all: []occurrence{
				{at: 3 * ms1, from: prefill, event: event{Event: saysFlipped, ID: "q"}},
				{at: 4 * ms1, from: prefill, event: pDone},
				{at: 9 * ms1, from: decode, event: dDone},
			},
			computed: 2, outcome: Recomputed, took: 9 * ms1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var f *Fault
			for i := range Faults {
				if Faults[i].Name == c.fault {
					f = &Faults[i]
				}
			}
			s := setting(t, c.setting)
			if (f == nil) != (c.fault == "") || f != nil && !f.befalls(s) {
				t.Fatalf("%s does not befall %v", c.fault, s)
			}
			x := newExchange(s)
			o := &ordeal{x: x, fault: f, want: tokens, limit: 2 * time.Second}
			acts, err := o.begin(0)
			if got := doings(acts); err != nil || got != c.begin {
				t.Fatalf("begins with %s, %v", got, err)
			}
			for i, l := range c.all {
				if due := o.due(); l.Event == "" && !l.over && o.outcome == "" && l.done != "" && due != l.at {
					t.Errorf("line %d: due at %v, want %v", i, due, l.at)
				}
				switch {
				case l.over:
					acts, err = o.take(l.at, arrival{from: l.from, over: errors.New("exit status 9")})
				case l.Event == "":
					acts = o.tick(l.at)
				default:
					acts, err = o.take(l.at, arrival{from: l.from, event: l.event})
				}
				if got := doings(acts); err != nil || got != l.done {
					t.Fatalf("line %d: %s, %v, want %s", i, got, err, l.done)
				}
			}
			o.settle(c.computed)
			if o.outcome != c.outcome || o.took != c.took || o.text != c.text {
				t.Errorf("%s after %v, %s; want %s after %v, %s", o.outcome, o.took, o.text, c.outcome, c.took, c.text)
			}
		})
	}
}

// TestVerdict: which trials are as they have to be.
func TestVerdict(t *testing.T) {
	sound := Trial{Setting: "kvferry-pull", Fault: "flip", Fired: true, Outcome: Recomputed, Next: Right}
	for want, change := range map[string]func(*Trial){
		"":                               func(*Trial) {},
		"the fault did not come":         func(tr *Trial) { tr.Fired = false },
		"HANG no answer":                 func(tr *Trial) { tr.Outcome, tr.Text = Hang, "no answer" },
		"CRASH":                          func(tr *Trial) { tr.Outcome = Crashed },
		"WRONG":                          func(tr *Trial) { tr.Outcome = Wrong },
		"the next prompt: HANG":          func(tr *Trial) { tr.Next = Hang },
		"the next prompt: error":         func(tr *Trial) { tr.Next = Failed },
		"P has lost 3 blocks":            func(tr *Trial) { tr.Lost = 3 },
		"no make":                        func(tr *Trial) { tr.Error = "no make" },
		"a flipped bit changed no token": func(tr *Trial) { tr.Fault = "flip-unchecked" },
		"a flipped bit was not found":    func(tr *Trial) { tr.Outcome = Right },
	} {
		tr := sound
		change(&tr)
		if got := tr.fault(); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %s, want %s", tr, got, want)
		}
		j := Result{Trials: []Trial{tr}}
		if (j.failed() != nil) != (want != "") {
			t.Errorf("%+v: failed is %v", tr, j.failed())
		}
		for _, setting := range []string{"mooncake", "nixl-kvferry"} { // whose bytes nobody checks
			if j.Trials[0].Setting = setting; j.failed() != nil && (setting == "mooncake" || tr.Fault == "flip") {
				t.Errorf("%+v fails the run with %s", tr, setting)
			}
		}
	}
	plugin := Result{Trials: []Trial{{Setting: "nixl-kvferry", Fault: "cut", Fired: true, Outcome: Hang, Next: Right}}}
	if plugin.failed() == nil {
		t.Error("a hang of kvferry's plugin does not fail the run")
	}
	if plugin.Trials[0].Fault = "stall"; plugin.failed() != nil {
		t.Error("a wrapper that does not let kvferry's plugin begin fails the run")
	}
	control := sound
	control.Fault, control.Outcome = "flip-unchecked", Wrong
	if got := control.fault(); got != "" {
		t.Error(got)
	}
}
