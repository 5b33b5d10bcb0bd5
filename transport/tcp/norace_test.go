//go:build !race

package tcp

// restLimit bounds what a connection takes at rest, both ends together, bytes. One end may take as
// much, and this takes 20 kB.
const restLimit = 32 << 10
