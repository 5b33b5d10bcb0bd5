package placement

import "testing"

// TestTwoChoices: the less a node has to do, the more often it is taken.
// What every policy must do, TestPolicies asks of this one too.
func TestTwoChoices(t *testing.T) {
	p, err := New(TwoChoices, 16, true)
	if err != nil {
		t.Fatal(err)
	}
	var times [3]int
	for range 900 { // of which 5/9, 3/9 and 1/9 are to be expected
		times[p.Place(Request{}, []Candidate{{ID: "idle"}, {ID: "busy", WaitingTokens: 1}, {ID: "busiest", WaitingTokens: 2}})]++
	}
	if times[0] <= times[1] || times[1] <= times[2] || times[2] == 0 {
		t.Errorf("placed %d times on the idle node, %d on the busy and %d on the busiest", times[0], times[1], times[2])
	}
}
