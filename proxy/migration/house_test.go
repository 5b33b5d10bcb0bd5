//go:build house

package migration

import (
	"fmt"
	"testing"
	"time"

	"kvferry/placement"
)

// TestStepGoesThroughRequestsOnce: asking the policy takes about as long for 300 nodes as for one with the same
// requests, because each request is looked at once and not once for each node. Every wake-up of a request
// waits for the lock that is held meanwhile.
func TestStepGoesThroughRequestsOnce(t *testing.T) {
	const requests = 10_000
	took := func(nodes int) time.Duration {
		r := New(placement.MigrationConfig{Policy: placement.Periodic}.WithDefaults())
		for i := range requests {
			r.Join("", func() {}).Set(fmt.Sprint(i%nodes), 100, 500, 0)
		}
		best := time.Hour
		for range 3 {
			group := make([]placement.Node, nodes)
			for i := range group {
				group[i].ID = fmt.Sprint(i)
			}
			began := time.Now()
			r.Step([][]placement.Node{group}, 16)
			best = min(best, time.Since(began))
		}
		return best
	}
	one, many := took(1), took(300)
	if many > 5*one {
		t.Errorf("%d requests: %v on one node, %v on 300", requests, one, many)
	}
}
