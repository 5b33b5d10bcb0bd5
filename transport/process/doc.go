// Package process is what a process may know of another of its machine, and touch: who it is, whether
// it lives, and its memory, by cross-memory attach; and how it shares the CPUs with others. Rails between
// processes of one machine are made of it.
//
// The kernel lets a process read and write another's memory as it lets a debugger attach (ptrace(2),
// PTRACE_MODE_ATTACH): same user, or CAP_SYS_PTRACE. Where Yama restricts that to children
// (kernel.yama.ptrace_scope=1, Ubuntu's default), [Permit] makes this process an exception, for all
// processes of its user.
package process

import "errors"

// ErrUnsupported: this system has no cross-memory attach, or does not allow it.
var ErrUnsupported = errors.New("no cross-memory attach here: use a TCP rail")
