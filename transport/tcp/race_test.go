//go:build race

package tcp

// restLimit is restLimit of a program that is not watched, and what watching it takes.
const restLimit = 80 << 10
