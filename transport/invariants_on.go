//go:build race

package transport

// invariants turns a rail's breach of contract into a panic.
const invariants = true
