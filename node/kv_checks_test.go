package node

import (
	"strings"
	"testing"

	"kvferry/connector"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
)

// TestExpectIsBounded: a peer names layers that there are not, and one layer again and again.
func TestExpectIsBounded(t *testing.T) {
	var l live
	for i := range 1000 {
		l.expect(kvtransfer.Part{Layer: i}, kvtransfer.Digests{First: i, Run: 1, Sums: []uint64{1}}, 4, 28)
		l.expect(kvtransfer.Part{}, kvtransfer.Digests{First: i, Run: 1, Sums: []uint64{1}}, 4, 28)
	}
	if len(l.want) > 29 || len(l.want[kvtransfer.Part{}]) > 4 {
		t.Errorf("digests of %d parts are kept, %d of the first", len(l.want), len(l.want[kvtransfer.Part{}]))
	}
}

// TestLentOfLiveLegs: blocks of legs that go on are remembered, however many others lend theirs meanwhile.
func TestLentOfLiveLegs(t *testing.T) {
	w := &worker{live: map[uint64]*live{7: {id: 7}}}
	first := legKey{nil, 7}
	w.lend(first, w.live[7], 0, []kvcache.Ref{{ID: 1}})
	for i := range uint64(3 * maxLent) {
		w.lend(legKey{nil, 100 + i}, &live{id: 100 + i}, 0, nil)
	}
	if len(w.lent) > maxLent || w.lent[0].key != first {
		t.Errorf("%d legs are remembered, the first is %v", len(w.lent), w.lent[0].key)
	}
}

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
		"landing,hit,landing": "once", "landing,every=4,every=8": `"every=8": the list has it already`,
	} {
		if _, err := parseKVChecks(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", list, err, want)
		}
	}
}
