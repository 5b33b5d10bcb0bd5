//go:build !linux

package proc

import (
	"os/exec"
	"time"
)

// fork starts a child. Only Linux kills it with its parent, and has namespaces.
func fork(cmd *exec.Cmd, _ int) error { return cmd.Start() }

// endGroup does nothing: only Linux ends what a child leaves of its group.
func endGroup(int, func() time.Duration) {}
