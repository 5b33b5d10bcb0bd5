package attempt

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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
		return a.Prefilled(l, what == "prefilled")
	case "finished":
		return a.Finished(l)
	case "draws7", "draws50", "draws100":
		first, _ := strconv.Atoi(what[5:])
		return Wait, a.Offered(l, Offer{Tokens: 20, Blocks: []Block{{0, 3}, {1, 4}}, Pool: 5, First: uint32(first)})
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
// out: P, D and N are the legs, "P3" a token at position 3, "P~3" another one there, "P*3" one that
// is not in the vocabulary, "+" a report.
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
		{nil, 3, "N1", "error(token 1 of a full leg, where 0 is next)"},
		{nil, 3, "N0 N0", "0 error(token 0 of a full leg, where 1 is next)"},
		{nil, 3, "N0 N2", "0 error(token 2 of a full leg, where 1 is next)"},
		{nil, 3, "N0 N1 N+finished", "0 1 error(ended after token 2 of 3)"},
		{nil, 3, "N+finished", "error(ended after token 0 of 3)"},
		{nil, 3, "N0 N1 N2 N3", "0 1 2 error(token 3 of 3)"},
		{nil, 3, "N0 N1 N9", "0 1 error(token 9 of 3)"},
		{nil, 3, "N0 N*1", "0 error(token 1 is 100: the vocabulary has 100)"},
		{nil, 3, "N0 N+failed", "0 error(gone)"},
		{nil, 3, "N+reserved", "error(unasked Reserved)"},
		{nil, 3, "N+prefilled", "error(unasked Prefilled)"},
		{nil, 3, "D0", "error(a token of a decode leg that was not asked for)"},
		{nil, 3, "D+finished", "error(Finished of a decode leg that was not asked for)"},
		{nil, 3, "D+failed N0", "0"},

		{handofftest.Every(), 1, "P0 P+finished", "0 done"},
		{handofftest.Every(), 1, "P0 P+prefilled", "0 done"},
		{handofftest.Every(), 1, "P+prefilled", "error(Prefilled before the token of the prompt)"},
		{handofftest.Every(), 1, "P0 P1", "0 error(token 1 of 1)"},
		{handofftest.Every(), 1, "D0", "error(a token of a decode leg that was not asked for)"},

		{computedFirst, 3, "P+prefilled D0 D1 D2 D+finished", "decode 0 1 2 done"},
		{computedFirst, 3, "P0 P+prefilled D0 D1 D2 D+finished", "decode 0 1 2 done"},
		{computedFirst, 3, "P+prefilled P+failed", "decode error(gone)"},
		{computedFirst, 3, "P+prefilled D0 P+failed D1 D2 D+finished", "decode 0 1 2 done"},
		{computedFirst, 3, "P+prefilled P+prefilled", "decode error(Prefilled of a prefill leg that has ended)"},
		{computedFirst, 3, "P+prefilled P0", "decode error(a token of a prefill leg that has ended)"},
		{computedFirst, 3, "P0 P0", "error(token 0 of a prefill leg, where 1 is next)"},
		{computedFirst, 3, "P0 P+prefilled D~0", "decode error(the nodes draw different tokens: token 0 is 50, and the node with the other leg has drawn 0)"},
		{computedFirst, 3, "P+draws50 P+prefilled D0", "decode error(the nodes draw different tokens: token 0 is 0, and the node with the other leg has drawn 50)"},
		{computedFirst, 3, "P~0 P+draws7", "error(the nodes draw different tokens: token 0 is 7, and the node with the other leg has drawn 50)"},
		{computedFirst, 3, "P+draws100", "error(token 0 is 100: the vocabulary has 100)"},
		{computedFirst, 3, "D0", "error(a token of a decode leg that was not asked for)"},
		{computedFirst, 3, "D+finished", "error(Finished of a decode leg that was not asked for)"},
		{computedFirst, 3, "D+reserved", "error(Reserved of a decode leg that was not asked for)"},
		{computedFirst, 3, "P+prefilled D+prefilled", "decode error(unasked Prefilled)"},
		{computedFirst, 3, "P+prefilled D+reserved", "decode error(unasked Reserved)"},
		{computedFirst, 3, "P+prefilled D0 D+finished", "decode 0 error(ended after token 1 of 3)"},
		{computedFirst, 3, "P+prefilled D1", "decode error(token 1 of a decode leg, where 0 is next)"},
		{computedFirst, 3, "P+finished", "error(Finished instead of Prefilled)"},
		{computedFirst, 3, "P+nokv", "error(Prefilled without kv)"},
		{computedFirst, 3, "P+reserved", "error(unasked Reserved)"},

		{reservedFirst, 3, "D+reserved P0 P+prefilled D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved D1 D2 D+finished P0 P+prefilled", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved D1 D2 P0 D+finished P+prefilled", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved P0 P+prefilled D+finished", "prefill 0 error(ended after token 1 of 3)"},
		{reservedFirst, 3, "D+reserved P0 P+prefilled D0", "prefill 0 error(token 0 of a decode leg, where 1 is next)"},
		{reservedFirst, 3, "D+reserved D+reserved", "prefill error(a second Reserved)"},
		{reservedFirst, 3, "D1", "error(a token before Reserved)"},
		{reservedFirst, 3, "D+finished", "error(ended after token 1 of 3)"},
		{reservedFirst, 3, "D+reserved D1 P+failed", "prefill error(gone)"},
		{reservedFirst, 3, "D+reserved P0 P+failed", "prefill 0 error(gone)"},
		{reservedFirst, 3, "D+reserved P0 D1 P+failed D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+reserved P0 P+finished", "prefill 0 error(Finished instead of Prefilled)"},
		{reservedFirst, 3, "D+reserved P+prefilled", "prefill error(Prefilled before the token of the prompt)"},
		{reservedFirst, 3, "D+reserved P0 P+prefilled P+prefilled", "prefill 0 error(Prefilled of a prefill leg that has ended)"},
		{reservedFirst, 3, "D+reserved D1 D2 D+finished D+finished", "prefill error(Finished of a decode leg that has ended)"},
		{reservedFirst, 3, "D+reserved P0 P0", "prefill 0 error(token 0 of a prefill leg, where 1 is next)"},
		{reservedFirst, 3, "D+reserved P1", "prefill error(token 1 of 1)"},
		{reservedFirst, 3, "D+noblocks", "error(Reserved without kv)"},
		{reservedFirst, 3, "D+failed", "error(gone)"},
		{reservedFirst, 3, "P0", "error(a token of a prefill leg that was not asked for)"},
		{reservedFirst, 3, "P+prefilled", "error(Prefilled of a prefill leg that was not asked for)"},
		{reservedFirst, 3, "D+reserved P+reserved", "prefill error(unasked Reserved)"},

		{reservedFirst, 3, "D+ahead D+reserved P0 P+prefilled D1 D2 D+finished", "direct 0 1 2 done"},
		{reservedFirst, 3, "D+ahead D+reserved D1 D2 D+finished P0 P+prefilled", "direct 0 1 2 done"},
		{reservedFirst, 3, "D+ahead D+reserved D+reserved", "direct error(a second Reserved)"},
		{reservedFirst, 3, "D+ahead D1", "error(a token before Reserved)"},
		{reservedFirst, 3, "D+ahead P+gaveup P+failed D+reserved P0 P+prefilled D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedFirst, 3, "D+ahead P+gaveup P0", "error(a token of a prefill leg that was not asked for)"},
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
		{computedAndSaid, 3, "P+prefilled", "error(Prefilled before the token of the prompt)"},
		{computedAndSaid, 3, "P0 P+prefilled P+failed", "0 decode error(gone)"},
		{computedAndSaid, 3, "P0 P+prefilled D1 P+failed D2 D+finished", "0 decode 1 2 done"},

		{reservedAndDrawn, 3, "D+reserved P0 P+prefilled D0 D1 D2 D+finished", "prefill 0 1 2 done"},
		{reservedAndDrawn, 3, "D+reserved D0 D1 D2 D+finished P+prefilled", "prefill 0 1 2 done"},
		{reservedAndDrawn, 3, "D+reserved P+finished", "prefill error(Finished instead of Prefilled)"},
		{reservedAndDrawn, 3, "D+reserved D0 P~0", "prefill 0 error(the nodes draw different tokens: token 0 is 50, and the node with the other leg has drawn 0)"},
		{reservedAndDrawn, 3, "D+reserved P0 P+failed", "prefill error(gone)"},
		{reservedAndDrawn, 3, "D+reserved D0 P+failed D1 D2 D+finished", "prefill 0 1 2 done"},
	} {
		if tc.handoffs == nil {
			tc.handoffs = []handoff.Handoff{handoff.None}
		}
		for _, h := range tc.handoffs {
			t.Run(fmt.Sprintf("%s %s", h, tc.events), func(t *testing.T) {
				a := New(h, tc.want)
				a.Limits = Limits{Prompt: 20, BlockTokens: 16, Vocab: 100}
				var out []string
				for _, e := range strings.Fields(tc.events) {
					if strings.Contains(strings.Join(out, " "), "error") {
						t.Fatalf("%s comes after the end", e)
					}
					var next Next
					var err error
					if l := legs[e[0]]; e[1] != '+' {
						var ready []Token
						ready, err = a.Token(nil, l, Token{Position: int(e[len(e)-1] - '0'), ID: map[byte]uint32{'~': 50, '*': 100}[e[1]]})
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

// TestOffered: blocks that do not hold what the other leg's node moves are their node's fault.
func TestOffered(t *testing.T) {
	for _, tc := range []struct {
		leg    handoff.Leg
		tokens int
		blocks []Block
		fault  string
	}{
		{handoff.PrefillLeg, 40, []Block{{0, 7}, {1, 3}, {2, 9}}, ""},
		{handoff.DecodeLeg, 40, []Block{{0, 7}, {1, 3}, {2, 9}}, ""},
		{handoff.DecodeLeg, 40, []Block{{2, 9}}, ""}, // it has the others cached
		{handoff.PrefillLeg, 40, []Block{{2, 9}}, "kv has 1 blocks for 40 tokens: 40 tokens need 3"},
		{handoff.PrefillLeg, 40, []Block{{0, 7}, {1, 3}}, "kv has 2 blocks for 40 tokens: 40 tokens need 3"},
		{handoff.DecodeLeg, 40, []Block{{0, 7}, {1, 3}}, "kv.blocks[0] has index 0: must be 1"},
		{handoff.DecodeLeg, 40, nil, "kv has 0 blocks for 40 tokens: 40 tokens need 3"},
		{handoff.DecodeLeg, 39, []Block{{0, 7}, {1, 3}, {2, 9}}, "kv has 3 blocks for 39 tokens: 40 tokens need 3"},
		{handoff.DecodeLeg, 1 << 32, []Block{{0, 7}}, "kv has 1 blocks for 4294967296 tokens: 40 tokens need 3"},
		{handoff.DecodeLeg, 40, []Block{{0, 7}, {1, 3}, {2, 9}, {3, 1}}, "kv has 4 blocks for 40 tokens: 40 tokens need 3"},
		{handoff.DecodeLeg, 40, []Block{{0, 7}, {1, 7}, {2, 9}}, "kv.blocks[1] is block 7: named twice, or not of the node's 10"},
		{handoff.DecodeLeg, 40, []Block{{0, 7}, {1, 3}, {2, 10}}, "kv.blocks[2] is block 10: named twice, or not of the node's 10"},
		{handoff.MigrationLeg, 42, []Block{{0, 7}, {1, 3}, {2, 9}}, ""}, // two tokens are out
		{handoff.MigrationLeg, 48, []Block{{1, 3}, {2, 9}}, ""},
		{handoff.MigrationLeg, 41, []Block{{0, 7}, {1, 3}, {2, 9}}, "kv has 3 blocks for 41 tokens: 42 tokens need 3"},
		{handoff.MigrationLeg, 1 << 32, []Block{{0, 7}}, "kv has 1 blocks for 4294967296 tokens: 48 tokens need 3"},
	} {
		a := New(handoff.None, 8)
		a.Limits = Limits{Prompt: 40, BlockTokens: 16, Vocab: 100}
		for i := range 2 {
			_, _ = a.Token(nil, handoff.FullLeg, Token{Position: i})
		}
		if !a.Migrate() {
			t.Fatal("it does not migrate")
		}
		err := a.Offered(tc.leg, Offer{Tokens: tc.tokens, Blocks: tc.blocks, Pool: 10})
		if got := strings.TrimPrefix(fmt.Sprint(err), ErrBroken.Error()+": "); tc.fault == "" && err != nil || tc.fault != "" && (got != tc.fault || !errors.Is(err, ErrBroken)) {
			t.Errorf("%v leg, %d tokens in %v: %v, want %q", tc.leg, tc.tokens, tc.blocks, err, tc.fault)
		}
	}
}

// FuzzAttempt: whatever nodes say, tokens come out in order and once, and an
// attempt that calls itself done has all that was asked for.
func FuzzAttempt(f *testing.F) {
	f.Add(uint8(0), uint8(2), []byte{0x00, 0x01, 0x02, 0x43})
	f.Add(uint8(1), uint8(2), []byte{0x42, 0x80, 0x81, 0x82, 0xc3})
	f.Add(uint8(4), uint8(2), []byte{0xc1, 0x81, 0x82, 0xc3, 0x00, 0x42})
	reports := []string{"gaveup", "reserved", "prefilled", "finished", "draws7", "failed", "noblocks", "nokv"}
	hands := append([]handoff.Handoff{handoff.None}, handofftest.Every()...)
	f.Add(uint8(3), uint8(2|0x80), []byte{0x41, 0x80, 0xc2, 0x01, 0x02, 0x43})
	f.Add(uint8(3), uint8(2|0x80), []byte{0xc0, 0x41, 0x80, 0xc2, 0x01, 0x02, 0x43})
	f.Fuzz(func(t *testing.T, hand, tokens uint8, script []byte) {
		want := 1 + int(tokens%4)
		a := New(hands[int(hand)%len(hands)], want)
		a.Limits = Limits{Prompt: 20, BlockTokens: 16, Vocab: 8}
		out, submitted := 0, false
		if tokens&0x80 != 0 {
			a.GoAhead(Outlook{RoundTrip: worthwhile})
		}
		for _, b := range script {
			l := a.First()
			if b&0x80 != 0 {
				l = a.Second()
			}
			if b&0x40 == 0 {
				ready, err := a.Token(nil, l, Token{Position: int(b & 0x0f), ID: uint32(b>>4&3) * 3})
				for _, r := range ready {
					if r.Position != out || r.ID >= 8 {
						t.Fatalf("token %d at %d out, expected %d", r.ID, r.Position, out)
					}
					out++
				}
				if err != nil {
					return
				}
				continue
			}
			what := reports[b&7]
			next, err := report(a, l, what)
			switch {
			case err != nil:
				return
			case next == Submit && submitted:
				t.Fatal("the second leg is submitted twice")
			case next == Submit:
				submitted = true
			case next == Done:
				if out != want {
					t.Fatalf("done with %d of %d tokens", out, want)
				}
				return
			}
		}
	})
}
