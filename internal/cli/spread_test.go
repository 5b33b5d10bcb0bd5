package cli

import (
	"slices"
	"strings"
	"testing"
)

// TestSpreadRewrites: a flag that takes several values after one name becomes a flag for each, one whose
// value may be left out takes one at most, and nothing else is changed.
func TestSpreadRewrites(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--names a b --out c d", "--names=a --names=b --out c d"},
		{"--names=a b,c d", "--names=a --names=b,c --names=d"},
		{"--names_too a b", "--names-too=a --names-too=b"},
		{"--names a --names b -v c", "--names=a --names=b -v c"},
		{"--names", "--names"},
		{"--names --out c", "--names --out c"},
		{"--out c -- --names a b", "--out c -- --names a b"},
		{"--find rate more", "--find=rate more"},
		{"--find --names a", "--find --names=a"},
		{"--find", "--find"},
		{"", ""},
	} {
		if got := Spread(strings.Fields(c.args), []string{"names", "names-too"}, []string{"find"}); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s\n got %s\nwant %s", c.args, strings.Join(got, " "), c.want)
		}
	}
}
