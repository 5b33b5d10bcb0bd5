package node

import "testing"

func TestPlacement(t *testing.T) {
	nodes := func(loads ...[2]int) (c []Candidate) {
		for i, l := range loads {
			c = append(c, Candidate{ID: string(rune('a' + i)), WaitingTokens: l[0], InFlight: l[1]})
		}
		return c
	}
	for _, tc := range []struct {
		placement  string
		candidates []Candidate
		want       string // of six placements in a row
	}{
		{PlacementRoundRobin, nodes([2]int{9, 9}, [2]int{0, 0}, [2]int{0, 0}), "abcabc"},
		{PlacementRoundRobin, nodes([2]int{9, 9}), "aaaaaa"},
		{PlacementLeastLoaded, nodes([2]int{9, 0}, [2]int{8, 5}, [2]int{10, 0}), "bbbbbb"},
		{PlacementLeastLoaded, nodes([2]int{0, 3}, [2]int{0, 2}, [2]int{0, 4}), "bbbbbb"},
		{PlacementLeastLoaded, nodes([2]int{0, 0}, [2]int{0, 0}, [2]int{1, 0}), "abaaba"},
	} {
		p, err := NewPlacer(tc.placement)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for range 6 {
			got = append(got, tc.candidates[p.Place(tc.candidates)].ID...)
		}
		if string(got) != tc.want {
			t.Errorf("%s over %v: %s, want %s", tc.placement, tc.candidates, got, tc.want)
		}
	}
	if _, err := NewPlacer("fastest"); err == nil {
		t.Error("NewPlacer took an unknown name")
	}
}
