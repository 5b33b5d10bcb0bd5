package transporttest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"kvferry/transport"
)

// roleEnv has a test binary be one end of a transfer, to be stopped or killed, in place of a run of tests.
const roleEnv = "KVFERRY_TEST_ROLE"

// Role is what this process was started as by StartRole: TestMain has it be that. It is empty in a run
// of tests.
func Role() string { return os.Getenv(roleEnv) }

// Must is v, or the end of this process, in a role: whoever has started it reads why.
func Must[T any](v T, err error) T {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return v
}

// StartRole starts the test binary again, in a role, until the test ends. It is told things over in,
// and answers over out.
func StartRole(t testing.TB, role string) (cmd *exec.Cmd, in io.Writer, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	w, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, w, bufio.NewReader(r)
}

// Lend is a target that lends memory by a rail until it is killed: StartTarget reads where.
func Lend(r transport.Rail, mem []byte) {
	r.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	fmt.Println(r.Addr(), uint64(Must(r.Register(mem, transport.Whole(int64(len(mem)))))))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// StartTarget starts the test binary in the role "target", in which it calls Lend.
func StartTarget(t testing.TB) (cmd *exec.Cmd, addr string, key transport.Key) {
	t.Helper()
	cmd, _, out := StartRole(t, "target")
	if _, err := fmt.Fscan(out, &addr, &key); err != nil {
		t.Fatal(err)
	}
	return cmd, addr, key
}
