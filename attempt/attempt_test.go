package attempt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
)

var errGone = errors.New("gone")

// legs are those of the scripts; N is a node that does it all.
var legs = map[byte]handoff.Leg{'P': handoff.PrefillLeg, 'D': handoff.DecodeLeg, 'N': handoff.FullLeg}

// report feeds what a leg says to the state machine.
func report(a *Attempt, l handoff.Leg, what string) (next Next, err error) {
	switch what {
	case "reserved":
		return a.Reserved(l, true)
	case "noblocks":
		return a.Reserved(l, false)
	case "prefilled", "nokv":
		next, _, err = a.Prefilled(l, what == "prefilled")
		return next, err
	case "finished":
		return a.Finished(l, false)
	case "stopped":
		return a.Finished(l, true)
	case "failed":
		return a.Failed(l, errGone)
	case "gaveup":
		return a.GaveUp(l)
	case "ahead":
		a.GoAhead(Outlook{RoundTrip: worthwhile})
	}
	return Wait, nil
}

// TestAttempt feeds the state machine a line of events and compares what comes
// out: P, D and N are the legs, "P3" a token at position 3, "+" a report.
func TestAttempt(t *testing.T) {
	kind := func(first, token handoff.Leg) []handoff.Handoff {
		return slices.DeleteFunc(handofftest.Every(), func(h handoff.Handoff) bool { return h.First != first || h.FirstToken != token })
	}
	computedFirst, reservedFirst := kind(handoff.PrefillLeg, handoff.DecodeLeg), kind(handoff.DecodeLeg, handoff.PrefillLeg)
	computedAndSaid, reservedAndDrawn := kind(handoff.PrefillLeg, handoff.PrefillLeg), kind(handoff.DecodeLeg, handoff.DecodeLeg)
	for _, tc := range []struct {
		handoffs []handoff.Handoff
		want     int
		events   string
		out      string
	}{
		{nil, 3, "N0 N1 N2 N+finished", "0 1 2 done"},
		{nil, 3, "N1 N0 N1 N0 N2 N+finished", "0 1 2 done"},
		{nil, 3, "N0 N1 N+finished", "0 1 error(ended after token 2 of 3)"},
		{nil, 3, "N0 N+stopped", "0 done"},
		{nil, 3, "N+stopped", "done"},
		{nil, 3, "N0 N2 N+stopped", "0 error(ended after token 1 of 3)"},
		{nil, 3, "N3", "error(token 3 of 3)"},
		{nil, 3, "N0 N+failed", "0 error(gone)"},
		{nil, 3, "N+reserved", "error(unasked Reserved)"},
		{nil, 3, "N+prefilled", "error(unasked Prefilled)"},
		{nil, 3, "D0 D+failed N0", "0"},

		{handofftest.Every(), 1, "P0 P+finished", "0 done"},
		{handofftest.Every(), 1, "P0 P+prefilled", "0 done"},
		{handofftest.Every(), 1, "P+prefilled", "error(ended after token 0 of 1)"},
		{handofftest.Every(), 1, "D0 D+finished P0 P+finished", "0 done"},

		{computedFirst, 3, "P0 P+prefilled D0 D1 D2 D+finished", "decode 0 1 2 done"},
		{computedFirst, 3, "P+prefilled P+failed", "decode error(gone)"},
		{computedFirst, 3, "P+prefilled D0 P+failed D1 D2 D+finished", "decode 0 1 2 done"},
		{computedFirst, 3, "P+prefilled P+prefilled D+failed", "decode error(gone)"},
		{computedFirst, 3, "D0 D+finished P+prefilled D0 D+stopped", "decode 0 done"},
		{computedFirst, 3, "P+prefilled D+prefilled", "decode error(unasked Prefilled)"},
		{computedFirst, 3, "P+finished", "error(Finished instead of Prefilled)"},
		{computedFirst, 3, "P+nokv", "error(Prefilled without kv)"},
		{computedFirst, 3, "P+reserved", "error(unasked Reserved)"},
		{computedFirst, 3, "D+reserved D+prefilled P+prefilled D0 D1 D2 D+finished", "decode 0 1 2 done"},

		{reservedFirst, 3, "D+reserved P0 P+prefilled D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved D1 D2 D+finished P0 P+prefilled", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved D1 D2 P0 D+finished P+prefilled", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved D+reserved P0 P+prefilled D+finished", "prefill 0 error(ended after token 1 of 3)"},
		{reservedFirst, 3, "D+reserved D1 P+failed", "prefill error(gone)"},
		{reservedFirst, 3, "D+reserved P0 P+failed", "prefill 0 error(gone)"},
		{reservedFirst, 3, "D+reserved P0 D1 P+failed D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved P0 P+finished D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved D1 D2 P0 P+finished D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved P0 P+stopped", "prefill 0 done"},
		{reservedFirst, 3, "D+reserved P+stopped", "prefill done"},
		{reservedFirst, 3, "D+noblocks", "error(Reserved without kv)"},
		{reservedFirst, 3, "D+failed", "error(gone)"},
		{reservedFirst, 3, "P+reserved P0 D+reserved P0", "prefill 0"},
		{reservedFirst, 3, "D+reserved P+reserved", "prefill error(unasked Reserved)"},
		{reservedFirst, 3, "P+prefilled D+reserved D1 D2 P0 D+finished", "prefill 0 1 2"},

		{reservedFirst, 3, "D+ahead D+reserved P0 P+prefilled D1 D2 D+finished", "direct 0 1 2 done"},
		{reservedFirst, 3, "D+ahead D+reserved D+reserved D1 D2 D+finished P0 P+prefilled", "direct 0 1 2 done"},
		{reservedFirst, 3, "D+ahead P+gaveup P0 P+failed D+reserved P0 P+prefilled D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+ahead D+reserved P+gaveup P0 P+prefilled D1 D2 D+finished", "direct prefill 0 1 2 done"},
		{reservedFirst, 3, "D+ahead D+reserved P+gaveup P+gaveup", "direct prefill error(a prefill leg that was told its destination waits for it)"},
		{reservedFirst, 3, "D+ahead D+reserved P0 P+gaveup", "direct 0 error(a prefill leg that was told its destination waits for it)"},
		{reservedFirst, 3, "D+reserved P+gaveup", "prefill error(a prefill leg that was told its destination waits for it)"},
		{reservedFirst, 3, "D+ahead D+gaveup", "error(a decode leg that was told its destination waits for it)"},
		{reservedFirst, 3, "D+ahead P0", "error(a token of a leg that has no destination)"},
		{reservedFirst, 3, "D+ahead P+prefilled", "error(Prefilled without a destination)"},
		{reservedFirst, 3, "D+ahead P+failed", "error(gone)"},
		{reservedFirst, 3, "D+ahead D+failed", "error(gone)"},
		{reservedFirst, 3, "D+ahead D+noblocks", "error(Reserved without kv)"},
		{reservedAndDrawn, 3, "D+ahead P+prefilled", "error(Prefilled without a destination)"},
		{reservedAndDrawn, 3, "D+ahead D+reserved P+prefilled D0 D1 D2 D+finished", "direct 0 1 2 done"},
		{computedFirst, 3, "P+ahead P+prefilled D0 D1 D2 D+finished", "decode 0 1 2 done"},
		{handofftest.Every(), 1, "P+ahead P0 P+finished", "0 done"},
		{nil, 3, "N+ahead N0 N1 N2 N+finished", "0 1 2 done"},

		{computedAndSaid, 3, "P0 P+prefilled D1 D2 D+finished", "0 decode 1 2 done"},
		{computedAndSaid, 3, "P+prefilled D1 D2 D+finished", "decode error(ended after token 0 of 3)"},
		{computedAndSaid, 3, "P0 P+prefilled P+failed", "0 decode error(gone)"},
		{computedAndSaid, 3, "P0 P+prefilled D1 P+failed D2 D+finished", "0 decode 1 2 done"},

		{reservedAndDrawn, 3, "D+reserved P0 P+prefilled D0 D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedAndDrawn, 3, "D+reserved D0 D1 D2 D+finished P+prefilled", "prefill 0 1 2 done"},
		{reservedAndDrawn, 3, "D+reserved P+finished D0 D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedAndDrawn, 3, "D+reserved P0 P+failed", "prefill error(gone)"},
		{reservedAndDrawn, 3, "D+reserved D0 P+failed D1 D2 D+finished", "prefill 0 1 2 done"},
	} {
		if tc.handoffs == nil {
			tc.handoffs = []handoff.Handoff{handoff.None}
		}
		for _, h := range tc.handoffs {
			t.Run(fmt.Sprintf("%s %s", h, tc.events), func(t *testing.T) {
				a := New(h, tc.want)
				var out []string
				for _, e := range strings.Fields(tc.events) {
					if strings.Contains(strings.Join(out, " "), "error") {
						t.Fatalf("%s comes after the end", e)
					}
					var next Next
					var err error
					if l := legs[e[0]]; e[1] != '+' {
						var ready []Token
						ready, err = a.Token(nil, l, Token{Position: int(e[1] - '0')})
						for _, r := range ready {
							out = append(out, fmt.Sprint(r.Position))
						}
					} else {
						next, err = report(a, l, e[2:])
					}
					switch next {
					case Submit:
						out = append(out, a.Second().String())
					case Direct:
						out = append(out, "direct")
					case Done:
						out = append(out, "done")
					}
					if err != nil {
						out = append(out, "error("+strings.TrimPrefix(err.Error(), ErrBroken.Error()+": ")+")")
					}
				}
				if got := strings.Join(out, " "); got != tc.out {
					t.Errorf("got  %s\nwant %s", got, tc.out)
				}
			})
		}
	}
}

// TestHeld: a token that waits for those before it goes out when they do.
func TestHeld(t *testing.T) {
	a := New(handoff.Layerwise, 3)
	if next, err := a.Reserved(handoff.DecodeLeg, true); next != Submit || err != nil {
		t.Fatalf("%v, %v", next, err)
	}
	if ready, err := a.Token(nil, handoff.DecodeLeg, Token{Position: 1, ID: 7, At: 5}); len(ready) > 0 || err != nil || a.Running() {
		t.Errorf("%v, %v", ready, err)
	}
	ready, err := a.Token(nil, handoff.PrefillLeg, Token{ID: 6, At: 9})
	if want := []Token{{0, 6, 9}, {1, 7, 9}}; err != nil || fmt.Sprint(ready) != fmt.Sprint(want) || !a.Running() || a.Complete() {
		t.Errorf("%v, %v", ready, err)
	}
}

// TestLegs: what an attempt asks of each leg.
func TestLegs(t *testing.T) {
	for _, h := range append(handofftest.Every(), handoff.None) {
		for _, want := range []int{1, 5} {
			a := New(h, want)
			switch {
			case h == handoff.None:
				if a.First() != handoff.FullLeg || a.MaxTokens(a.First()) != want {
					t.Errorf("none: %v for %d tokens", a.First(), a.MaxTokens(a.First()))
				}
			case want == 1:
				if a.First() != handoff.PrefillLeg || a.Handoff() != handoff.None {
					t.Errorf("%v: one token: %v, %v", h, a.First(), a.Handoff())
				}
			case a.First() != h.First || a.Second() == a.First() || a.Handoff() != h || a.MaxTokens(handoff.PrefillLeg) != 1 || a.MaxTokens(handoff.DecodeLeg) != want:
				t.Errorf("%v: first %v, second %v", h, a.First(), a.Second())
			}
		}
	}
}

// FuzzAttempt: whatever nodes say, tokens come out in order and once, and an
// attempt that calls itself done has all that was asked for or was stopped.
func FuzzAttempt(f *testing.F) {
	f.Add(uint8(0), uint8(2), []byte{0x00, 0x01, 0x02, 0x43})
	f.Add(uint8(1), uint8(2), []byte{0x42, 0x80, 0x81, 0x82, 0xc3})
	f.Add(uint8(4), uint8(2), []byte{0xc1, 0x81, 0x82, 0xc3, 0x00, 0x42})
	reports := []string{"gaveup", "reserved", "prefilled", "finished", "stopped", "failed", "noblocks", "nokv"}
	hands := append([]handoff.Handoff{handoff.None}, handofftest.Every()...)
	f.Add(uint8(3), uint8(2|0x80), []byte{0x41, 0x80, 0xc2, 0x01, 0x02, 0x43})
	f.Add(uint8(3), uint8(2|0x80), []byte{0xc0, 0x41, 0x80, 0xc2, 0x01, 0x02, 0x43})
	f.Fuzz(func(t *testing.T, hand, tokens uint8, script []byte) {
		want := 1 + int(tokens%4)
		a := New(hands[int(hand)%len(hands)], want)
		out, stopped, submitted := 0, false, false
		if tokens&0x80 != 0 {
			a.GoAhead(Outlook{RoundTrip: worthwhile})
		}
		for _, b := range script {
			l := a.First()
			if b&0x80 != 0 {
				l = a.Second()
			}
			if b&0x40 == 0 {
				ready, err := a.Token(nil, l, Token{Position: int(b & 0x0f)})
				for _, r := range ready {
					if r.Position != out {
						t.Fatalf("token %d out, expected %d", r.Position, out)
					}
					out++
				}
				if err != nil {
					return
				}
				continue
			}
			what := reports[b&7]
			stopped = stopped || what == "stopped"
			next, err := report(a, l, what)
			switch {
			case err != nil:
				return
			case next == Submit && submitted:
				t.Fatal("the second leg is submitted twice")
			case next == Submit:
				submitted = true
			case next == Done:
				if out != want && !stopped {
					t.Fatalf("done with %d of %d tokens", out, want)
				}
				return
			}
		}
	})
}
