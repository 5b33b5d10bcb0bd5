package lab

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestScript(t *testing.T) {
	cfg := Config{Rate: 80e6, Env: []string{"A=it's"}}.withDefaults()
	script := cfg.script(2, []string{"/usr/lib/modules/ib_core.ko", "/usr/lib/modules/rdma_rxe.ko"}, []string{"/lab/x", "a b", "$HOME", "it's"}, "token")
	at := 0
	for _, want := range []string{
		"must 'insmod' '/usr/lib/modules/ib_core.ko'",
		"must 'insmod' '/usr/lib/modules/rdma_rxe.ko'",
		"must 'hostname' 'host2'",
		`"$(device 52:54:00:6b:00:02)" name nic0`,
		"must 'ip' 'link' 'set' 'dev' 'nic1' 'name' 'eth1'",
		"must 'ip' 'link' 'set' 'eth0' 'mtu' '4200' 'up'",
		"must 'ip' 'address' 'add' '10.0.0.2/24'",
		"must 'tc' 'qdisc' 'add' 'dev' 'eth0' 'root' 'tbf'",
		"must 'rdma' 'link' 'add' 'rxe0' 'type' 'rxe' 'netdev' 'eth0'",
		"'10.0.1.2/24'",
		"ulimit -l unlimited",
		`export 'A=it'\''s'`,
		"echo ready >&3",
		`kvferry-lab '/lab/x' 'a b' '$HOME' 'it'\''s' </dev/null`,
		"printf token >&4",
		`echo "exit $code" >&3`,
	} {
		i := strings.Index(script[at:], want)
		if i < 0 {
			t.Fatalf("no %q, or not there, in\n%s", want, script)
		}
		at += i
	}
	if strings.Contains(script, "tar ") {
		t.Error("nobody asked for files")
	}
	cfg.Out = "x"
	script = cfg.script(1, nil, []string{"true"}, "token")
	if tar := strings.Index(script, "tar -cf - -C /out"); tar < 0 || tar > strings.Index(script, "exit $code") {
		t.Error("files must come before the exit status")
	}
	check := exec.Command("/bin/sh", "-n")
	check.Stdin = strings.NewReader(script)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("the shell does not read it: %v: %s", err, out)
	}
}

// TestQuote asks a shell for the words that it sees.
func TestQuote(t *testing.T) {
	words := []string{"a", "", "a b", "it's", `"$HOME" \n`, "`id`", "new\nline", "*", "-n", "ü", "'"}
	out, err := exec.Command("/bin/sh", "-c", `for w in `+quoteAll(words)+`; do printf '%s\000' "$w"; done`).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, words) {
		t.Errorf("%q, want %q", got, words)
	}
}
