package transport

import (
	"fmt"
	"strings"
	"testing"

	"kvferry/internal/clock"
	"kvferry/transport/selection"
)

func TestPair(t *testing.T) {
	for _, c := range []struct {
		name  string
		reach []string // of each rail here: to each of the peer's; o on link, r routed, e elsewhere, n none, ? unknown
		want  string
	}{
		{"one and one", []string{"?"}, "[{0 [0]}]"},
		{"nobody can tell", []string{"??", "??"}, "[{0 [0 1]} {1 [1 0]}]"},
		{"two here, one there", []string{"?", "?"}, "[{0 [0]} {1 [0]}]"},
		{"one here, three there", []string{"???"}, "[{0 [0 1 2]} {0 [1]} {0 [2]}]"},
		{"a network each", []string{"on", "no"}, "[{0 [0]} {1 [1]}]"},
		{"crossed", []string{"no", "on"}, "[{0 [1]} {1 [0]}]"},
		{"on link before routed", []string{"ro", "or"}, "[{0 [1 0]} {1 [0 1]}]"},
		{"the second leaves by the first", []string{"oo", "ee"}, "[{0 [0 1]} {0 [1]}]"},
		{"all in one network", []string{"ooo", "ooo", "ooo"}, "[{0 [0 1 2]} {1 [1 2 0]} {2 [2 0 1]}]"},
		{"who has no choice goes first", []string{"oo", "on"}, "[{0 [1 0]} {1 [0]}]"},
		{"a rail that nobody reaches", []string{"on", "nn"}, "[{0 [0]}]"},
		{"nobody reaches anybody", []string{"ne", "en"}, "[]"},
	} {
		kinds := map[byte]Reach{'o': OnLink, 'r': Routed, 'e': Elsewhere, 'n': NoRoute, '?': Unknown}
		got := selection.Pair(len(c.reach), len(c.reach[0]), func(i, j int) int { return order[kinds[c.reach[i][j]]] })
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
}

func TestParseSelection(t *testing.T) {
	for _, s := range Selections {
		if got, err := ParseSelection(string(s)); got != s || err != nil {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	if _, err := ParseSelection("fastest"); err == nil || !strings.Contains(err.Error(), "affinity, static, round-robin, single") {
		t.Errorf("unknown: %v", err)
	}
}

// Slices are small enough that several paths end a batch together, and no smaller.
func TestSliceSize(t *testing.T) {
	for _, c := range []struct {
		paths int
		sel   Selection
		bytes int64
		want  int
	}{
		{1, Affinity, 1 << 20, 1 << 20},
		{4, Affinity, 64 << 20, 1 << 20},
		{4, Affinity, 16 << 20, 1 << 20},
		{4, Affinity, 4 << 20, 256 << 10},
		{4, Static, 4 << 20, 256 << 10},
		{4, Affinity, 1 << 20, 64 << 10},
		{4, Affinity, 1 << 10, 64 << 10},
		{2, Affinity, 1<<20 + 8, 192 << 10},
		{4, Single, 1 << 20, 1 << 20},
	} {
		e := &Engine{cfg: Config{SliceSize: 1 << 20, Select: c.sel, Clock: clock.Std()}}
		g := &peer{e: e}
		for range c.paths {
			g.paths = append(g.paths, &path{peer: g})
		}
		b := &Batch{e: e, t: &Target{peer: g}, bytes: c.bytes}
		if got := b.sliceSize(); got != c.want {
			t.Errorf("%d bytes over %d paths, %s: slices of %d, want %d", c.bytes, c.paths, c.sel, got, c.want)
		}
	}
}
