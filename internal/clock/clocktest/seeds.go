package clocktest

import (
	"os"
	"strconv"
	"testing"
)

// Seeds returns how many seeds a test runs: the environment's KVFERRY_SEEDS, or n if that is not set.
func Seeds(t testing.TB, n int) int {
	t.Helper()
	text := os.Getenv("KVFERRY_SEEDS")
	if text == "" {
		return n
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("KVFERRY_SEEDS is %q: want a number of seeds", text)
	}
	return n
}
