//go:build linux

package shm

import (
	"log/slog"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport/connection"
)

// TestFullNamesNoOption: this rail has no options, so its log advises none when it has no room.
func TestFullNamesNoOption(t *testing.T) {
	log := &clocktest.Log{}
	r, err := New(Config{Name: "shm/0", Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := 0; !strings.Contains(log.String(), "no room for a connection"); i++ {
		if i > 2*connection.DefaultConns {
			t.Fatal("there is room for all: ", log.String())
		}
		connect(t, r)
	}
	if text := log.String(); strings.Contains(text, connection.OptionMax) || strings.Contains(text, connection.OptionPerPeer) {
		t.Error(text)
	}
}
