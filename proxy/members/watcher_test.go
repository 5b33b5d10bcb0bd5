package members

import (
	"testing"

	"kvferry/proto"
)

// TestWatcherGoes: nothing is kept for who watches no more.
func TestWatcherGoes(t *testing.T) {
	l := NewList(&proto.NodeInfo{Id: "node-1"})
	for range l.Watch(t.Context()) {
		break
	}
	if len(l.watchers) != 0 {
		t.Errorf("%d watchers are left", len(l.watchers))
	}
}
