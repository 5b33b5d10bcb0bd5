package config

import "testing"

func TestOr(t *testing.T) {
	for want, words := range map[string][]string{"": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, b or c": {"a", "b", "c"}} {
		if got := Or(words); got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
}
