package transport_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
)

// TestWholeBatch: a batch whose immediate would cost more than another path saves goes over one,
// and its immediate with it; what is larger is spread.
func TestWholeBatch(t *testing.T) {
	for _, c := range []struct {
		bytes int
		want  []int // slices and immediates on the two rails, the fewer first
	}{
		{96 << 10, []int{0, 2}},
		{512 << 10, []int{4, 5}}, // and the immediate by itself
	} {
		synctest.Test(t, func(t *testing.T) {
			x := newBundle(t, []float64{2 * gbit, 2 * gbit}, 8<<20, transport.Config{})
			x.load(500*time.Millisecond, 64<<10, 2) // until rates and latencies are known
			before := []int{x.rails[0].Carried(), x.rails[1].Carried()}
			b := x.a.Submit(x.target, []transport.Request{{Op: transport.Write, Local: x.src.Bytes()[:c.bytes]}}, transport.BatchOptions{HasImm: true, Imm: 1, Timeout: time.Second})
			<-b.Done()
			if err := b.Err(); err != nil {
				t.Fatal(err)
			}
			got := []int{x.rails[0].Carried() - before[0], x.rails[1].Carried() - before[1]}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("%d KiB: the rails carried %d, want %d", c.bytes>>10, got, c.want)
			}
		})
	}
}
