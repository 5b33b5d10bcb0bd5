package selection

import "testing"

// TestExpress plays what is asked and what completes: n asks for so many bytes at once in
// each step, of which taken may go.
func TestExpress(t *testing.T) {
	type step struct {
		completed       int64 // of others, first
		bytes, underWay int64
		n, taken        int
	}
	for name, steps := range map[string][]step{
		"nothing to go past":        {{0, 4096, 0, 100, 0}, {0, 4096, Behind - 1, 100, 0}},
		"a burst, and then a share": {{0, 4096, 1 << 24, 1000, 256}, {8 * 4096, 4096, 1 << 24, 10, 1}, {80 * 4096, 4096, 1 << 24, 100, 10}},
		"more does not add up":      {{0, 4096, 1 << 24, 1, 1}, {1 << 40, 4096, 1 << 24, 1000, 256}},
		"little by little": {
			{0, 1 << 20, 1 << 24, 1, 1}, {4095, 512, 1 << 24, 1, 0}, {1, 512, 1 << 24, 2, 1},
		},
		"immediates count too":  {{0, 0, 1 << 24, 10000, expressBurst / expressLeast}},
		"larger than the burst": {{0, expressBurst + 1, 1 << 24, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var x Express
			for i, s := range steps {
				x.Completed(s.completed)
				taken := 0
				for range s.n {
					if x.Take(s.bytes, s.underWay) {
						taken++
					}
				}
				if taken != s.taken {
					t.Errorf("step %d: %d of %d went past, want %d", i, taken, s.n, s.taken)
				}
			}
		})
	}
	// However much asks to, of what a path carries the others have 8 parts of 9.
	var x Express
	var past, others int64
	for range 100_000 {
		for x.Take(Small, 1<<24) {
			past += Small
		}
		others += 64 << 10
		x.Completed(64 << 10)
	}
	if share := float64(others) / float64(past+others); share < 8.0/9-0.001 {
		t.Errorf("the others have %.4f", share)
	}
}
