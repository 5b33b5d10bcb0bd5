package transporttest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
)

// roleEnv has a test binary be one end of a transfer, to be stopped or killed, in place of a run of tests.
const roleEnv = "KVFERRY_TEST_ROLE"

// Role is what this process was started as by StartRole: TestMain has it be that. It is empty in a run
// of tests.
func Role() string { return os.Getenv(roleEnv) }

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
