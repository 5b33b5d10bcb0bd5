//go:build !race

package transport

const invariants = false
