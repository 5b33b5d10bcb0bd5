package cli

import (
	"reflect"
	"strings"
	"testing"

	"kvferry/lab"
	"kvferry/lab/nics"
	"kvferry/lab/wire"
)

// TestNICsUsage: every wrong flag is named with what would do, exit 2, before
// anything is made.
func TestNetUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"lab net --rates 1gbit", []string{"COMMAND: none given"}},
		{"lab net -- true", []string{"--rates: none given", "2gbit,2gbit"}},
		{"lab net --rates 2 -- true", []string{"--rates", "as 80mbit"}},
		{"lab net --rates 1kbit --mtu 100 -- true", []string{`--rates: "1kbit": use 100kbit`, "--mtu: 100: "}},
		{"lab net --rates 1gbit --mtu 0 -- true", []string{"--mtu: 0: use more than 0, or leave it out for 1500"}},
		{"lab net --rates 1gbit --burst 1 -- true", []string{"--burst", "as 256kb"}},
		{"lab net --rates 1gbit --burst 1kb -- true", []string{"--burst: 1024: use"}},
		{"lab net --rates 1gbit --switch-queue 1 -- true", []string{"--switch-queue", "as 256kb"}},
		{"lab net --rates 1gbit --switch-queue 64kb --delay 1ms -- true", []string{"--switch-queue: 65536: it is where"}},
		{"lab net --rates 1gbit --addresses 999 -- true", []string{"--addresses: 999: use 1 to 250"}},
		{"lab net --rates 1gbit --latency 1h -- true", []string{"--latency: 1h0m0s: use 1ms to 10s"}},
		{"lab net --rates 1gbit --no-routes -- true", []string{"--no-routes: true: it is for links that share a subnet"}},
		{"lab net --rates 1gbit --mptcp --shared-subnet -- true", []string{"--mptcp: true: it needs"}},
		{"lab net --rates 1gbit --congestion reno --shared-subnet -- true", []string{`--congestion: "reno": it is said of the route`}},
		{"lab net --rates 1gbit --by magic -- true", []string{`--by: "magic": use auto, netem or relay`}},
		{"lab net --rates 1gbit --until 3 -- true", []string{"--until: 3: "}},
		{"lab net --rates 1gbit --timeout 0s -- true", []string{"--timeout: 0s: "}},
		{"lab net --rates 1gbit --env KVFERRY_LAB_HOST=1 -- true", []string{`--env: "KVFERRY_LAB_HOST=1": the lab sets`}},
		{"lab net --rates 1gbit --fault 3s:link-down:1:1 -- true", []string{`--fault: "3s:link-down:1:1": NIC is 1: use 0 to 0`}},
		{"lab net --rates 1gbit --fault 3s:burn:1:0 -- true", []string{"--fault", "duplicate or corrupt", "TIME:rate:HOST:NIC:RATE"}},
		{"lab net --rates 1gbit --delay 5 -- true", []string{`--delay: "5": write a time`}},
		{"lab net --rates 1gbit --loss 101% -- true", []string{"--loss", "0% to 100%"}},
		{"lab net --rates 1gbit --delay 1ms,2ms -- true", []string{"--delay", "2 values for 1 links"}},
		{"lab net --rates 1gbit --delay 1ms --jitter 2ms -- true", []string{"kvferry: --jitter: what host 1 sends: 2ms: use 0s to the delay, which is 1ms"}},
		{"lab net --rates 1gbit --reorder 1% -- true", []string{"kvferry: --reorder: what host 1 sends: 0.01: it needs a delay"}},
		{"lab net --rates 1gbit --flap 1ms -- true", []string{"--flap", "2s/500ms"}},
		{"lab net --rates 1gbit --fault 3s:loss:1:0 -- true", []string{"--fault", "no loss such as 0.1%"}},
		{"lab net --rates 1gbit -- /no/such/program", []string{`COMMAND: "/no/such/program": it cannot be run`}},
		{"lab rdma --module ../x -- true", []string{`--module: "../x": write a module's name`}},
		{"lab rdma --fault 3s:clear:1:0 -- true", []string{"--fault", "kill, link-down or link-up"}},
	} {
		code, _, stderr := command(t.Context(), strings.Fields(c.args)...)
		if code != ExitUsage {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, ExitUsage, stderr)
		}
		for _, want := range append(c.want, "--help") {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: stderr does not say %q:\n%s", c.args, want, stderr)
			}
		}
	}
}

func TestNICsHelpTeaches(t *testing.T) {
	code, stdout, _ := command(t.Context(), "lab", "net", "--help")
	for _, want := range []string{"Examples:", "--rates", "KVFERRY_LAB_MGMT_PEER", "black-hole", "--loss", "netem", "faults.jsonl", "Exit status", "kill -9"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, help does not say %q:\n%s", code, want, stdout)
		}
	}
}

// TestFieldsHaveFlags: whatever is said of a field is said of a flag.
func TestLabFieldsHaveFlags(t *testing.T) {
	for _, c := range []struct {
		config any
		names  map[string]string
	}{{lab.Config{}, roceNames}, {nics.Config{}, netNames}} {
		fields := reflect.TypeOf(c.config)
		for i := range fields.NumField() {
			switch name := fields.Field(i).Name; name {
			case "Stdout", "Stderr", "OnLine", "Log":
			case "Conditions": // a flag for each
				for _, name := range wire.Names {
					if c.names[strings.ToUpper(name[:1])+name[1:]] != "--"+name {
						t.Errorf("the condition %s has no flag", name)
					}
				}
			default:
				if c.names[name] == "" {
					t.Errorf("%v.%s has no flag", fields, name)
				}
			}
		}
	}
}
