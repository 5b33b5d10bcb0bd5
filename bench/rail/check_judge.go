package rail

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/transport/rails"
)

// Limits are from where on something is a finding. Shares are of 1; 0 turns one off.
type Limits struct {
	Line     float64       `json:"of_line"`  // a rail's rate by what its NIC says
	Best     float64       `json:"of_best"`  // by the best rail's, where both are known by their lines' shares
	Together float64       `json:"of_sum"`   // all rails' by the sum of each alone
	Lost     float64       `json:"lost"`     // share of probes
	Flaps    int           `json:"carrier"`  // changes of a carrier since the interface is there
	Clock    time.Duration `json:"clock_ns"` // that clocks may be apart
}

// DefaultLimits are the flags' defaults.
var DefaultLimits = Limits{Line: 0.8, Best: 0.7, Together: 0.7, Lost: 0.001, Flaps: 10, Clock: time.Millisecond}

// A Grade is how bad a finding is.
type Grade string

// Grades. Only Fail makes a check fail.
const (
	OK   Grade = "ok"
	Warn Grade = "warn"
	Fail Grade = "FAIL"
)

// A Finding is what is wrong with a rail, and what to do.
type Finding struct {
	Rail  string `json:"rail"` // "all" is all together, "hosts" the machines
	Grade Grade  `json:"grade"`
	What  string `json:"what"`
	Do    string `json:"do"`
}

func (f Finding) String() string {
	of := cmp.Or(map[string]string{All: "all rails", Hosts: Hosts}[f.Rail], "rail "+f.Rail)
	return fmt.Sprintf("%-4s  %s: %s: %s", f.Grade, of, f.What, f.Do)
}

// Names of what is no single rail.
const (
	All   = "all"
	Hosts = "hosts"
)

// Verdict is the worst of a rail's findings.
func Verdict(rail string, all []Finding) Grade {
	worst := OK
	for _, f := range all {
		if f.Rail == rail && (f.Grade == Fail || worst == OK) {
			worst = f.Grade
		}
	}
	return worst
}

// Judge says what is wrong, rail by rail.
func Judge(s *Seen, l Limits) (all []Finding) {
	best := s.best()
	for i := range s.Rails {
		r := &s.Rails[i]
		say := func(g Grade, do, what string, args ...any) {
			all = append(all, Finding{r.Spec, g, fmt.Sprintf(what, args...), do})
		}
		r.link(l, say)
		r.path(l, say)
		r.moved(l, best, len(s.Rails), say)
		if limit := s.Here.Memlock; r.Here.Kind == rails.RDMA && limit >= 0 && limit < s.Segment {
			say(Fail, "ulimit -l unlimited, or LimitMEMLOCK=infinity of its service", "memory of %s cannot be pinned: the limit (RLIMIT_MEMLOCK) is %d bytes here", config.FormatSize(s.Segment), limit)
		}
		if limit := s.There.Memlock; r.There.Kind == rails.RDMA && limit >= 0 && limit < s.Segment {
			say(Fail, "ulimit -l unlimited there, or LimitMEMLOCK=infinity of its service", "memory of %s cannot be pinned: the limit (RLIMIT_MEMLOCK) is %d bytes there", config.FormatSize(s.Segment), limit)
		}
	}
	return append(all, s.together(l)...)
}

type sayer func(g Grade, do, what string, args ...any)

// link is what the kernel says of the NIC.
func (r *CheckedRail) link(l Limits, say sayer) {
	for _, end := range []struct {
		f     *Facts
		where string
	}{{&r.Here, "here"}, {&r.There, "there"}} {
		f := end.f
		if f.NoCarrier {
			say(Fail, "look at the cable and the switch's port, and ip link set "+f.NIC+" up", "%s has no carrier %s", f.NIC, end.where)
		}
		if l.Flaps > 0 && f.Changes > l.Flaps {
			say(Warn, "look at the cable, the transceiver and the kernel's log", "the carrier of %s has changed %d times %s", f.NIC, f.Changes, end.where)
		}
		if f.Elsewhere != "" {
			say(Fail, "at that end do what it says", "its packets take another way %s: %s", end.where, f.Elsewhere)
		}
	}
	if r.After.Changes > r.Here.Changes {
		say(Fail, "look at the cable, the transceiver and the kernel's log", "the carrier of %s has changed %d times during the check", r.Here.NIC, r.After.Changes-r.Here.Changes)
	}
	if a, b := r.Here.MTU, r.There.MTU; a > 0 && b > 0 && a != b {
		nic, where, mtu := r.Here.NIC, "here", b
		if b < a {
			nic, where, mtu = r.There.NIC, "there", a
		}
		say(Warn, fmt.Sprintf("ip link set dev %s mtu %d %s, if every switch between carries that", nic, mtu, where), "MTU %d here, %d there", a, b)
	} else if line := r.line(); a == b && a > 0 && a <= 1500 && line >= 10e9/8 {
		say(Warn, "set 9000 at both ends, if every switch between carries that", "MTU %d on a line of %.0f Gbit/s: each packet costs CPU time", a, line*8/1e9)
	}
}

// path is what probes found out.
func (r *CheckedRail) path(l Limits, say sayer) {
	small, full := r.Small, r.Full
	if full.Wrong+small.Wrong > 0 {
		say(Fail, "replace the NIC, cable or memory that does it, and turn off what rewrites packets between", "%d of %d probes came back with other bytes", full.Wrong+small.Wrong, full.Back+small.Back)
	}
	switch {
	case full.Sent == 0:
		return
	case small.Back == 0 && full.Back == 0:
		say(Warn, "let UDP through between the two, or look at --probes 0", "no probe came back%s", because(full.Error))
		return
	case full.Back == 0 && small.Back > 0:
		say(Fail, fmt.Sprintf("set a smaller MTU at both ends, or %d at every switch and tunnel between, and let ICMP \"fragmentation needed\" through", full.Size),
			"packets of %d bytes, which its MTU allows, do not arrive, and those of %d do%s", full.Size, small.Size, because(full.Error))
		return
	}
	lost := float64(full.Sent-full.Back) / float64(full.Sent)
	if l.Lost > 0 && lost > l.Lost {
		do := "look at the error counters of NIC and switch (ethtool -S): a good link in a rack loses none"
		if r.Here.Kind == rails.TCP && (!r.Here.BBR || !r.There.BBR) {
			do += "; and let bbr be used at both ends (modprobe tcp_bbr), which lost packets slow down less"
		}
		say(Warn, do, "%d of %d full-size probes were lost (%.2g %%)", full.Sent-full.Back, full.Sent, 100*lost)
	}
}

func because(err string) string {
	if err == "" {
		return ""
	}
	return " (" + err + ")"
}

// line is the slower end's speed; 0 if one is not known.
func (r *CheckedRail) line() float64 {
	if r.Here.LineRate <= 0 || r.There.LineRate <= 0 {
		return 0
	}
	return min(r.Here.LineRate, r.There.LineRate)
}

// unreached are errors of connections that were not made.
var unreached = regexp.MustCompile("refused|timed out|timeout|deadline|no route|unreachable")

// moved is what the transfer engine found out.
func (r *CheckedRail) moved(l Limits, best float64, rails int, say sayer) {
	m := &r.Rates
	for _, d := range []struct {
		name string
		rate Rate
	}{{"write", m.Write}, {"read", m.Read}} {
		if d.rate.Bad > 0 {
			say(Fail, "do not serve over it: replace the NIC, cable or memory that does it", "%d of %d blocks of a %s arrived with other bytes (%s)", d.rate.Bad, d.rate.Checked, d.name, d.rate.BadAt)
		}
	}
	if m.Error != "" && (r.Here.Elsewhere != "" || r.There.Elsewhere != "") {
		return // the engine does not use it: that was said
	}
	if m.Error != "" {
		do := "see what it says"
		switch {
		case unreached.MatchString(m.Error):
			do += "; a firewall must let its port through"
		case r.Full.Back == 0 && r.Small.Back > 0:
			do = "its path is the reason, most likely: see there"
		case m.Write.GBps > 0:
			do = "it carried bytes before: look at the link, and whether the other end still runs"
		}
		say(Fail, do, "nothing, or not all, was moved: %s", m.Error)
		return
	}
	if line := r.line(); line > 0 && l.Line > 0 && m.least()*1e9 < l.Line*line {
		say(Fail, r.hint(), "%.2f of line rate (limit %.2f): write %.3g, read %.3g GB/s of %.3g", m.least()*1e9/line, l.Line, m.Write.GBps, m.Read.GBps, line/1e9)
	}
	if rails > 1 && l.Best > 0 && best > 0 && r.share() < l.Best*best {
		say(Fail, r.hint(), "%.2f of what the best rail does (limit %.2f): write %.3g, read %.3g GB/s", r.share()/best, l.Best, m.Write.GBps, m.Read.GBps)
	}
	if w, d := m.Write.GBps, m.Read.GBps; l.Best > 0 && min(w, d) < l.Best*max(w, d) {
		say(Warn, "look at the slower direction's route, queue and switch port", "write %.3g GB/s, read %.3g: one direction is %.2f of the other", w, d, min(w, d)/max(w, d))
	}
}

// hint is where to look first for a rail that is slow.
func (r *CheckedRail) hint() string {
	var all []string
	if a, b := r.Here.MTU, r.There.MTU; a != b && a > 0 && b > 0 {
		all = append(all, fmt.Sprintf("MTU %d here, %d there", a, b))
	}
	if lost := r.Full.Sent - r.Full.Back; lost > 0 {
		all = append(all, "packets that are lost")
	}
	if r.Here.Elsewhere != "" || r.There.Elsewhere != "" {
		all = append(all, "its route")
	}
	if len(all) == 0 {
		return "look at its duplex and speed (ethtool), at the CPU that takes its interrupts, and at who else uses the link"
	}
	return "look first at " + strings.Join(all, ", and ")
}

// share is a rail's rate by its line, or as it is: shares and rates are not compared, see best.
func (r *CheckedRail) share() float64 {
	if line := r.line(); line > 0 {
		return r.Rates.least() * 1e9 / line
	}
	return r.Rates.least()
}

// best is the greatest share; 0 if some lines are known and some not.
func (s *Seen) best() (most float64) {
	known := 0
	for i := range s.Rails {
		if s.Rails[i].line() > 0 {
			known++
		}
		most = max(most, s.Rails[i].share())
	}
	if known > 0 && known < len(s.Rails) {
		return 0
	}
	return most
}

// together is what is of no single rail.
func (s *Seen) together(l Limits) (all []Finding) {
	if s.All != nil {
		sum, good := 0.0, true
		for i := range s.Rails {
			sum += s.Rails[i].Rates.least()
			good = good && s.Rails[i].Rates.Error == ""
		}
		switch {
		case s.All.Write.Bad+s.All.Read.Bad > 0:
			all = append(all, Finding{All, Fail, fmt.Sprintf("%d blocks arrived with other bytes (%s%s)", s.All.Write.Bad+s.All.Read.Bad, s.All.Write.BadAt, s.All.Read.BadAt), "do not serve over them; a rail alone may show which it is"})
		case s.All.Error != "":
			all = append(all, Finding{All, Fail, "nothing, or not all, was moved: " + s.All.Error, "leave out the rails that fail alone"})
		case l.Together > 0 && sum > 0 && s.All.least() < l.Together*sum:
			do := "look for what they share: a switch port, a PCI slot (kvferry rail topo), the CPUs"
			if !good {
				do = "leave out the rails that fail alone"
			}
			all = append(all, Finding{All, Fail, fmt.Sprintf("together %.2f of the sum of each alone (limit %.2f): %.3g of %.3g GB/s", s.All.least()/sum, l.Together, s.All.least(), sum), do})
		}
	}
	for _, end := range []struct {
		h     *Host
		where string
	}{{&s.Here, "here"}, {&s.There, "there"}} {
		if end.h.HugePages == "never" && end.h.HugeFree < s.Segment {
			all = append(all, Finding{Hosts, Warn, "no huge pages " + end.where + ": " + fmt.Sprintf("transparent ones are off and %s are set aside", config.FormatSize(end.h.HugeFree)), "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"})
		}
	}
	if c := s.Clock; c != nil && l.Clock > 0 && c.Offset.Abs()-c.RoundTrip/2 > l.Clock {
		all = append(all, Finding{Hosts, Warn, fmt.Sprintf("the other end's clock is %v off (known to %v)", c.Offset.Round(time.Microsecond), (c.RoundTrip / 2).Round(time.Microsecond)), "let NTP or PTP set both; until then times of one end cannot be set against the other's"})
	}
	return all
}
