package stats

import "slices"

// A Fairness says how evenly several share something: 1 is evenly.
type Fairness struct {
	MinMax float64 `json:"min_max"` // bytes of the one that got least by those of the one that got most
	// Jain is (sum of x)^2 / (n x sum of x^2): k of n initiators that share alone have k/n (R. Jain,
	// D. Chiu, W. Hawe, DEC-TR-301, 1984).
	Jain  float64 `json:"jain"`
	Bytes []int64 `json:"initiator_bytes"` // of each
}

// Shares is that of so many bytes each; nil of one initiator.
func Shares(bytes []int64) *Fairness {
	if len(bytes) < 2 {
		return nil
	}
	f := &Fairness{MinMax: 1, Jain: 1, Bytes: bytes}
	sum, squares := 0.0, 0.0
	for _, n := range bytes {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if sum > 0 {
		f.MinMax = float64(slices.Min(bytes)) / float64(slices.Max(bytes))
		f.Jain = sum * sum / (float64(len(bytes)) * squares)
	}
	return f
}
