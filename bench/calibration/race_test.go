//go:build race

package calibration

// The race detector makes a fit ten times as long, and has seen all code with one: .ci/run has the
// others without it.
func init() { recovered = recovered[:1] }
