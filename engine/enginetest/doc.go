// Package enginetest has what every [engine.Scheduler] must do, as a test that any of them
// can run, and the smallest one that passes.
package enginetest
