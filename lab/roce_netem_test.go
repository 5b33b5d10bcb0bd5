package lab

import (
	"runtime"
	"testing"
)

// TestRoCENetem: the NIC lab on a kernel that has netem, that of a host here: its links do by
// netem what they do by a relay.
func TestRoCENetem(t *testing.T) {
	needLab(t)
	bin := compile(t, "lab/nics", "test", "-c").From
	out := lines{}
	out.WriteString(run(t, Config{
		Hosts: 1, NICs: 1, CPUs: runtime.NumCPU(), Memory: 1024, Timeout: hang,
		Modules: []string{"veth", "sch_ingress", "cls_u32", "act_mirred"}, Env: []string{"KVFERRY_NETEM=1"},
		Command: []string{bin, "-test.run", "TestDelayOfLinks|TestBadLink|TestFaultsOfBadLink|TestNetem|TestFlapping", "-test.v", hangs},
	}))
	t.Log(out.String())
	for _, name := range []string{"TestDelayOfLinks", "TestBadLink", "TestFaultsOfBadLink"} {
		out.has(t, "--- PASS: "+name+"/netem", "--- PASS: "+name+"/relay")
	}
	out.has(t, "--- PASS: TestNetemRefused", "--- PASS: TestFlapping")
}
