package attempt

import (
	"fmt"
	"strings"
	"testing"

	"kvferry/handoff"
)

// TestMigration feeds the state machine a line of events as TestAttempt does, of a request that
// generates on N and goes on on M: "go" asks for it, "M3" is M's token at position 3 of the answer,
// "N+moved2" what N says that has copied all, with two tokens.
func TestMigration(t *testing.T) {
	for _, tc := range []struct{ name, events, out string }{
		{"it goes on", "N0 N1 go M+reserved N2 N+moved2 M4 M5 M+finished", "0 1 migration migrate 2 3 continue handed 4 5 done"},
		{"tokens overtaken by the copy", "N0 N1 go M+reserved N+moved3 N2 N3 M5 M+finished", "0 1 migration migrate 2 3 4 continue handed 5 done"},
		{"it ends before it goes", "N0 go N1 N2 N3 N4 N5 N+finished", "0 migration 1 2 3 4 5 done"},
		{"it ends while it is copied", "N0 go M+reserved N1 N2 N3 N4 N5 N+finished", "0 migration migrate 1 2 3 4 5 done"},
		{"no blocks there", "N0 go M+failed N1 go", "0 migration stay 1 migration"},
		{"blocks without kv", "N0 go M+noblocks N1", "0 migration stay 1"},
		{"it could not be copied", "N0 go M+reserved N+stays N1 M+failed N2", "0 migration migrate stay 1 2"},
		{"the other one dies while it is copied", "N0 go M+reserved M+failed N+moved1 N1", "0 migration migrate stay 1"},
		{"and when all is there", "N0 go M+reserved N+moved1 M+failed N2", "0 migration migrate 1 continue stay 2"},
		{"and it says all of its tokens itself", "N0 go M+reserved N+moved2 M+failed N1 N2 N3", "0 migration migrate 1 2 continue stay 3"},
		{"or not even those after", "N0 go M+reserved N+moved2 M+failed N4", "0 migration migrate 1 2 continue stay error(token 4 of a full leg, where 1 is next)"},
		{"blocks twice", "N0 go M+reserved M+reserved", "0 migration migrate error(a second Reserved)"},
		{"it says twice that all is there", "N0 go M+reserved N+moved1 N+moved1", "0 migration migrate 1 continue error(a second Migrated)"},
		{"it leaves out a token", "N0 go M+reserved N1 N2 N+moved1", "0 migration migrate 1 2 error(Migrated with 1 tokens after 1, where 3 of 6 are out)"},
		{"nothing is left to generate", "N0 go M+reserved N+moved5", "0 migration migrate error(Migrated with 5 tokens after 1, where 1 of 6 are out)"},
		{"it generates on", "N0 go M+reserved N+moved1 N1 N2", "0 migration migrate 1 continue error(token 2 after Migrated)"},
		{"it begins too early", "N0 go M+reserved N+moved2 M2", "0 migration migrate 1 2 continue error(token 1 of a leg that goes on with 2)"},
		{"it begins too late", "N0 go M+reserved N+moved1 M3", "0 migration migrate 1 continue error(token 2 of a leg that goes on with 1)"},
		{"it says a token twice", "N0 go M+reserved N+moved1 M2 M2", "0 migration migrate 1 continue handed 2 error(token 2 of a full leg, where 3 is next)"},
		{"its own dies before all is there", "N0 go M+reserved N+failed", "0 migration migrate error(gone)"},
		{"and after that", "N0 go M+reserved N+moved1 N+failed M2 M3 M4 M5 M+finished", "0 migration migrate 1 continue handed 2 3 4 5 done"},
		{"both do", "N0 go M+reserved N+moved1 N+failed M+failed", "0 migration migrate 1 continue error(gone)"},
		{"the other one dies once it generates", "N0 go M+reserved N+moved1 M2 M+failed", "0 migration migrate 1 continue handed 2 error(gone)"},
		{"it speaks before it was told to", "N0 go M+reserved M1", "0 migration migrate error(a token of a leg that was not told to go on)"},
		{"it ends without a token", "N0 go M+reserved N+moved1 M+finished", "0 migration migrate 1 continue error(Finished without a token)"},
		{"a late word of one that was given up", "N0 go M+failed N+moved1 N1", "0 migration stay 1"},
		{"twice", "N0 go M+reserved N+moved1 M2 go N+reserved M3 M+moved1 N4 N5 N+finished", "0 migration migrate 1 continue handed 2 migration migrate 3 continue handed 4 5 done"},
		{"not two at a time", "N0 go go", "0 migration no"},
		{"not before it generates", "go N0", "no 0"},
		{"not for its last token", "N0 N1 N2 N3 N4 go N5 N+finished", "0 1 2 3 4 no 5 done"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := New(handoff.None, 6)
			var out []string
			generates, base, next := byte('N'), 0, 0 // the leg, and where it and the other one begin
			for _, e := range strings.Fields(tc.events) {
				leg, begins := handoff.FullLeg, base
				if e[0] != generates {
					leg, begins = handoff.MigrationLeg, next
				}
				var what Next
				var err error
				var ready []Token
				switch {
				case e == "go":
					next = a.next
					out = append(out, map[bool]string{true: "migration", false: "no"}[a.Migrate()])
				case strings.HasPrefix(e[1:], "+moved"):
					ready, what, err = a.Migrated(nil, leg, make([]uint32, int(e[7]-'0')), 5)
				case e[1:] == "+stays":
					ready, what, err = a.Migrated(nil, leg, nil, 5)
				case e[1] == '+':
					what, err = report(a, leg, e[2:])
				default:
					ready, err = a.Token(nil, leg, Token{Position: int(e[1]-'0') - begins, At: 7})
				}
				if a.Handed() {
					generates, base = e[0], next
					out = append(out, "handed")
				}
				for _, r := range ready {
					out = append(out, fmt.Sprint(r.Position))
				}
				if what != Wait {
					out = append(out, map[Next]string{Migrate: "migrate", Continue: "continue", Stay: "stay", Done: "done"}[what])
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
