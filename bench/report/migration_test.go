package report

import (
	"slices"
	"testing"

	"kvferry/bench/client"
)

// TestMigrations: requests that went on on other nodes are counted, and only where there are some.
func TestMigrations(t *testing.T) {
	var m Metrics
	if head := m.countTable().Head; slices.Contains(head, "went on elsewhere") {
		t.Errorf("none went on elsewhere: %v", head)
	}
	m.Metrics = client.Metrics{Migrations: 4, MigrationPauseUS: 82_000, MigratedBytes: 123_400_000}
	table := m.countTable()
	at := slices.Index(table.Head, "went on elsewhere")
	if at < 0 || !slices.Equal(table.Rows[0][at:at+3], []string{"4", "123.4", "20.50"}) {
		t.Errorf("%v %v", table.Head, table.Rows)
	}
}
