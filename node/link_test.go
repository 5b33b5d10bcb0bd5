package node

import (
	"strings"
	"testing"

	"kvferry/engine"
)

// TestResolveLink: a link of the profile goes before a rate of that name, and a rate needs no link.
func TestResolveLink(t *testing.T) {
	p := &engine.Profile{Name: "p", Links: map[string]engine.LinkCost{"2gbit": {MSPerMB: 2}}}
	for text, want := range map[string]struct {
		name string
		rate float64
	}{"100gbit": {"100gbit", 12.5e9}, "1.5GB/s": {"1.5GB/s", 1.5e9}, "2gbit": {"2gbit", 0.5e9}, "rate=8gbit": {"", 1e9}} {
		if l, err := ResolveLink(p, text); err != nil || l.Name != want.name || l.BytesPerSecond != want.rate {
			t.Errorf("%s: %+v, %v, want %+v", text, l, err, want)
		}
	}
	for _, native := range []string{"", "native"} {
		if l, err := ResolveLink(p, native); err != nil || l != nil {
			t.Errorf("%q: %+v, %v", native, l, err)
		}
	}
	for text, want := range map[string]string{"tcp": "native, a link of profile p (2gbit), 100gbit or rate=", "0gbit": "rate: 0: use 1 B/s or more", "100": "no such link"} {
		if _, err := ResolveLink(p, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
