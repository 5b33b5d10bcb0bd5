package node

import (
	"os"
	"testing"

	"kvferry/internal/clock/clocktest"
)

func TestMain(m *testing.M) {
	clocktest.SideBySide() // they wait for leases, and for peers that do not answer
	os.Exit(m.Run())
}
