package rail

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// good is a check in which nothing is wrong: two rails of 10 Gbit/s with frames of 9000 bytes.
func good() *Seen {
	rail := func(spec, kind string) CheckedRail {
		f := Facts{Rail: spec, Kind: kind, NIC: "eth0", LineRate: 1.25e9, MTU: 9000, Changes: 2, Congestion: "cubic", BBR: true}
		return CheckedRail{
			Spec: spec, Here: f, There: f, After: f, Small: Probes{Size: 128, Sent: 32, Back: 32}, Full: Probes{Size: 9000, Sent: 1000, Back: 1000},
			Rates: Rates{Write: Rate{GBps: 1.2, Checked: 9}, Read: Rate{GBps: 1.1, Checked: 9}},
		}
	}
	h := Host{Memlock: -1, HugePages: "madvise"}
	return &Seen{
		Segment: 1 << 30, Here: h, There: h, Clock: &Clock{Offset: 3 * time.Millisecond, RoundTrip: 5 * time.Millisecond},
		Rails: []CheckedRail{rail("tcp/eth0", "tcp"), rail("rdma/mlx5_0", "rdma")}, All: &Rates{Write: Rate{GBps: 2.2}, Read: Rate{GBps: 2.1}},
	}
}

// TestJudge: each finding has a case, and a good check has none. What is just within its limit is
// none either.
func TestJudge(t *testing.T) {
	if all := Judge(good(), DefaultLimits); len(all) != 0 {
		t.Errorf("nothing is wrong: %v", all)
	}
	for name, c := range map[string]struct {
		change func(s *Seen, r *CheckedRail)
		rail   string
		grade  Grade
		want   []string
	}{
		"no carrier":          {func(_ *Seen, r *CheckedRail) { r.Here.NoCarrier = true }, "tcp/eth0", Fail, []string{"eth0 has no carrier here", "cable"}},
		"no carrier there":    {func(_ *Seen, r *CheckedRail) { r.There.NoCarrier = true }, "tcp/eth0", Fail, []string{"no carrier there"}},
		"carrier history":     {func(_ *Seen, r *CheckedRail) { r.There.Changes = 11 }, "tcp/eth0", Warn, []string{"has changed 11 times there"}},
		"carrier now":         {func(_ *Seen, r *CheckedRail) { r.After.Changes = 4 }, "tcp/eth0", Fail, []string{"changed 2 times during the check"}},
		"route here":          {func(_ *Seen, r *CheckedRail) { r.Here.Elsewhere = "leave by eth1" }, "tcp/eth0", Fail, []string{"another way here: leave by eth1"}},
		"route there":         {func(_ *Seen, r *CheckedRail) { r.There.Elsewhere = "leave by eth1" }, "tcp/eth0", Fail, []string{"another way there"}},
		"MTU":                 {func(_ *Seen, r *CheckedRail) { r.There.MTU = 1500 }, "tcp/eth0", Warn, []string{"MTU 9000 here, 1500 there", "ip link set dev eth0 mtu 9000 there"}},
		"MTU here":            {func(_ *Seen, r *CheckedRail) { r.Here.MTU = 1500 }, "tcp/eth0", Warn, []string{"ip link set dev eth0 mtu 9000 here"}},
		"small frames":        {func(_ *Seen, r *CheckedRail) { r.Here.MTU, r.There.MTU = 1500, 1500 }, "tcp/eth0", Warn, []string{"MTU 1500 on a line of 10 Gbit/s", "9000"}},
		"black hole":          {func(_ *Seen, r *CheckedRail) { r.Full.Back, r.Full.Error = 0, "message too long" }, "tcp/eth0", Fail, []string{"packets of 9000 bytes", "do not arrive, and those of 128 do (message too long)"}},
		"no probe":            {func(_ *Seen, r *CheckedRail) { r.Full.Back, r.Small.Back = 0, 0 }, "tcp/eth0", Warn, []string{"no probe came back", "UDP"}},
		"lost":                {func(_ *Seen, r *CheckedRail) { r.Full.Back = 998 }, "tcp/eth0", Warn, []string{"2 of 1000 full-size probes were lost (0.2 %)"}},
		"lost, no bbr":        {func(_ *Seen, r *CheckedRail) { r.Full.Back, r.There.BBR = 998, false }, "tcp/eth0", Warn, []string{"modprobe tcp_bbr"}},
		"other bytes":         {func(_ *Seen, r *CheckedRail) { r.Full.Wrong = 1 }, "tcp/eth0", Fail, []string{"1 of 1032 probes came back with other bytes"}},
		"wrong write":         {func(_ *Seen, r *CheckedRail) { r.Rates.Write.Bad, r.Rates.Write.BadAt = 2, "block 3" }, "tcp/eth0", Fail, []string{"2 of 9 blocks of a write arrived with other bytes (block 3)"}},
		"wrong read":          {func(_ *Seen, r *CheckedRail) { r.Rates.Read.Bad = 1 }, "tcp/eth0", Fail, []string{"1 of 9 blocks of a read"}},
		"nothing moved":       {func(_ *Seen, r *CheckedRail) { r.Rates = Rates{Error: "connection refused"} }, "tcp/eth0", Fail, []string{"connection refused", "firewall"}},
		"moved, then nothing": {func(_ *Seen, r *CheckedRail) { r.Rates = Rates{Write: Rate{GBps: 1.2}, Error: "has gone: EOF"} }, "tcp/eth0", Fail, []string{"has gone: EOF", "whether the other end still runs"}},
		"of line":             {func(_ *Seen, r *CheckedRail) { r.Rates.Read.GBps = 0.99 }, "tcp/eth0", Fail, []string{"0.79 of line rate (limit 0.80)", "ethtool"}},
		"of line, and why":    {func(_ *Seen, r *CheckedRail) { r.Rates.Read.GBps, r.Full.Back = 0.99, 999 }, "tcp/eth0", Fail, []string{"look first at packets that are lost"}},
		"of the slower line":  {func(_ *Seen, r *CheckedRail) { r.There.LineRate, r.Rates.Read.GBps = 1.5e9, 0.99 }, "tcp/eth0", Fail, []string{"0.79 of line rate"}},
		"of best": {func(s *Seen, r *CheckedRail) {
			for i := range s.Rails {
				s.Rails[i].Here.LineRate = 0
			}
			r.Rates.Write.GBps, r.Rates.Read.GBps = 0.7, 0.7
		}, "tcp/eth0", Fail, []string{"0.64 of what the best rail does (limit 0.70)"}},
		"one direction":    {func(_ *Seen, r *CheckedRail) { r.Rates.Write.GBps = 1.6 }, "tcp/eth0", Warn, []string{"one direction is 0.69 of the other"}},
		"pinned":           {func(s *Seen, _ *CheckedRail) { s.Here.Memlock = 8 << 20 }, "rdma/mlx5_0", Fail, []string{"memory of 1g cannot be pinned", "ulimit -l unlimited"}},
		"pinned there":     {func(s *Seen, _ *CheckedRail) { s.There.Memlock = 0 }, "rdma/mlx5_0", Fail, []string{"0 bytes there"}},
		"together":         {func(s *Seen, _ *CheckedRail) { s.All.Read.GBps = 1.5 }, All, Fail, []string{"together 0.68 of the sum", "PCI"}},
		"together nothing": {func(s *Seen, _ *CheckedRail) { s.All.Error = "no path" }, All, Fail, []string{"no path"}},
		"together wrong":   {func(s *Seen, _ *CheckedRail) { s.All.Read.Bad = 3 }, All, Fail, []string{"3 blocks arrived with other bytes"}},
		"huge pages":       {func(s *Seen, _ *CheckedRail) { s.There.HugePages = "never" }, Hosts, Warn, []string{"no huge pages there", "madvise"}},
		"clock":            {func(s *Seen, _ *CheckedRail) { s.Clock.Offset = -4 * time.Millisecond }, Hosts, Warn, []string{"-4ms off (known to 2.5ms)", "NTP"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			c.change(s, &s.Rails[0])
			all := Judge(s, DefaultLimits)
			i := slices.IndexFunc(all, func(f Finding) bool { return f.Grade == c.grade && f.Rail == c.rail })
			for _, want := range c.want {
				if i < 0 || !slices.ContainsFunc(all, func(f Finding) bool { return f.Rail == c.rail && strings.Contains(f.String(), want) }) {
					t.Errorf("no %q in %v", want, all)
				}
			}
			if got := Verdict(c.rail, all); got != c.grade {
				t.Errorf("the verdict is %q, want %q: %v", got, c.grade, all)
			}
			for _, f := range all {
				if f.Rail != c.rail {
					t.Errorf("others are blamed: %v", f)
				}
				if f.What == "" || f.Do == "" {
					t.Errorf("half a finding: %+v", f)
				}
			}
		})
	}
}

// TestLimitsOff: a limit of 0 finds nothing.
func TestLimitsOff(t *testing.T) {
	s := good()
	r := &s.Rails[0]
	r.There.Changes, r.Full.Back, r.Rates.Read.GBps, s.All.Read.GBps, s.Clock.Offset = 99, 500, 0.1, 0.1, time.Hour
	if all := Judge(s, Limits{}); len(all) != 0 {
		t.Error(all)
	}
	if all := Judge(s, DefaultLimits); len(all) < 5 {
		t.Error(all)
	}
}

// TestUnlikeLines: rails are not compared when only some lines are known, and by shares if all are.
func TestUnlikeLines(t *testing.T) {
	s := good()
	r := &s.Rails[0]
	r.Here.LineRate, r.There.LineRate, r.Rates.Write.GBps, r.Rates.Read.GBps = 0.125e9, 0.125e9, 0.118, 0.118
	s.All.Write.GBps, s.All.Read.GBps = 1.2, 1.2
	if all := Judge(s, DefaultLimits); len(all) != 0 {
		t.Error(all)
	}
	r.Here.LineRate = 0
	if all := Judge(s, DefaultLimits); len(all) != 0 {
		t.Error(all)
	}
}

func TestCheckReport(t *testing.T) {
	r := Report{Seen: *good()}
	r.Rails[0].Full.Back, r.Rails[0].Rates.Read.GBps = 999, 0.5
	r.Findings = Judge(&r.Seen, DefaultLimits)
	for i := range r.Rails {
		r.Verdicts = append(r.Verdicts, Verdict(r.Rails[i].Spec, r.Findings))
	}
	var b strings.Builder
	if err := r.document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tcp/eth0        FAIL", "rdma/mlx5_0       ok", "999/1000 of 9000", "9000/9000", "clock: theirs is 3ms ahead, known to 2.5ms", "FAIL  rail tcp/eth0: 0.40 of line rate"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
