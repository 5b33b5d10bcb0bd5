package node

import (
	"strings"
	"testing"

	"kvferry/connector"
)

// TestParseKVChecks: digests are recorded when blocks land, so that no other check goes without landing.
func TestParseKVChecks(t *testing.T) {
	all := kvChecks{true, connector.Checks{Hit: true, First: true, Last: true, Every: 8}}
	for list, want := range map[string]kvChecks{"none": {}, "landing": {landing: true}, "every=8,last,first,hit,landing": all} {
		if got, err := parseKVChecks(list); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", list, got, err, want)
		}
	}
	for list, want := range map[string]string{
		"": "use landing", "landing,none": "none alone", "first,last,every=4": "add landing", "landing,every=0": "1 or more", "landing, hit": `" hit"`,
	} {
		if _, err := parseKVChecks(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", list, err, want)
		}
	}
}
