// Package arch tests what no other package can: how the tree is laid out, and that its pages, examples and Makefile
// say what its programs do.
package arch

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
)

var scratch string // a folder of these tests, gone when they end

// TestMain runs the tests in the module's root, which they read.
func TestMain(m *testing.M) {
	err := os.Chdir("../..")
	if err == nil {
		scratch, err = os.MkdirTemp("", "kvferry-bin-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// bin builds this tree's programs, once for all tests here, and returns their folder.
var bin = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", scratch+"/", "./cmd/...").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build ./cmd/...: %w: %s", err, out)
	}
	return scratch, err
})
