package rail

import "testing"

// TestDiffers: what FillPattern wrote is right at its address only, and a wrong byte is found where it
// is, in the tail too.
func TestDiffers(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 64, 77} {
		b := make([]byte, n)
		FillPattern(b, 3, 4096)
		if at := PatternDiffers(b, 3, 4096); at >= 0 {
			t.Errorf("%d bytes: wrong at %d", n, at)
		}
		if PatternDiffers(b, 4, 4096) < 0 || PatternDiffers(b, 3, 8) < 0 {
			t.Errorf("%d bytes are right with another salt or elsewhere", n)
		}
		for i := range b {
			b[i] ^= 1
			if at := PatternDiffers(b, 3, 4096); at != i {
				t.Errorf("%d bytes, wrong at %d: found at %d", n, i, at)
			}
			b[i] ^= 1
		}
	}
}
