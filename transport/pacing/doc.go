// Package pacing models a NIC that a machine does not have: when what is moved over it would have
// arrived, and who waits until then. Package transport paces its batches by it.
//
// Times are durations since the start of a clock, rates bytes/s.
package pacing
