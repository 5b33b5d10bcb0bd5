package nics

import (
	"fmt"
	"time"

	"kvferry/lab"
)

// Inflict makes a fault happen now, whatever its time, and writes it down in the journal
// of both hosts. It returns when the kernel has done what the fault is. One that the lab
// cannot do is in the log, not in the journal.
func (l *Lab) Inflict(f lab.Fault) error {
	if err := f.Validate(Hosts, len(l.cfg.Rates), Actions); err != nil {
		return err
	}
	r, err := record(f, l.started, func() error { return l.inflict(f) })
	at := time.Unix(0, r.UnixNS)
	if err != nil {
		l.out.Note("fault %s failed at %s: %v", f, at.Format("15:04:05.000000"), err)
		return err
	}
	l.out.Note("fault %s at %s, %.4f s after the start", f, at.Format("15:04:05.000000"), time.Duration(r.SinceStartNS).Seconds())
	return l.journal.write(r)
}

func (l *Lab) inflict(f lab.Fault) error {
	if dead := l.dead.Load(); dead != 0 {
		return fmt.Errorf("host %d was killed, and all links are its own", dead)
	}
	switch f.Action {
	case lab.Kill:
		return l.kill(f.Host)
	case lab.LinkDown, lab.LinkUp:
		return l.net.setLink(f.NIC, f.Action == lab.LinkUp)
	case lab.SetRate:
		return l.net.changeRate(f.NIC, f.Rate)
	case lab.BlackHole:
		return l.net.blackHole(f.NIC)
	case lab.SetFlap:
		flap, err := lab.ParseFlap(f.Value)
		if err == nil {
			l.flaps.start(f.NIC, flap, l.plug)
		}
		return err
	case lab.Clear:
		l.flaps.quiet(f.NIC)
		return l.net.clear(f.NIC)
	default:
		return l.net.changeCondition(f.NIC, f.Host, string(f.Action), f.Value)
	}
}

// kill is a power cut: the other host sees silence, no closed connections. A
// host's kernel is this machine's and lives on: it would close the connections of the
// processes that are killed, and say so to their peers. So the wires go silent first.
func (l *Lab) kill(host int) error {
	if err := l.net.silence(); err != nil {
		return err
	}
	l.dead.Store(int32(host))
	for _, h := range l.hosts {
		if h.number != host {
			continue
		}
		if !lab.IsOver(h) { // a command that has ended keeps its exit status
			h.killed.Store(true)
		}
		h.kill()
	}
	return nil
}

// The faults by name, for programs. A link is that of NIC nic of both hosts; Host is 1 below
// since a Fault has to name one.

// Cut pulls the cable of a link: both hosts see the carrier go.
func (l *Lab) Cut(nic int) error {
	return l.Inflict(lab.Fault{Action: lab.LinkDown, Host: 1, NIC: nic})
}

// Restore plugs it in again.
func (l *Lab) Restore(nic int) error {
	return l.Inflict(lab.Fault{Action: lab.LinkUp, Host: 1, NIC: nic})
}

// SetRate shapes a link to bits a second, in each direction.
func (l *Lab) SetRate(nic int, rate int64) error {
	return l.Inflict(lab.Fault{Action: lab.SetRate, Host: 1, NIC: nic, Rate: rate})
}

// BlackHole loses all that a link carries from now on. Its carrier stays.
func (l *Lab) BlackHole(nic int) error {
	return l.Inflict(lab.Fault{Action: lab.BlackHole, Host: 1, NIC: nic})
}

// SetCondition changes one of a link's, by its name: "loss", "0.1%". Two values with a slash
// between are those of what host 1 sends and of what it receives.
func (l *Lab) SetCondition(nic int, name, value string) error {
	return l.Inflict(lab.Fault{Action: lab.Action(name), Host: 1, NIC: nic, Value: value})
}

// Clear makes a link what it was at the start: plugged in, whole and at its rate.
func (l *Lab) Clear(nic int) error {
	return l.Inflict(lab.Fault{Action: lab.Clear, Host: 1, NIC: nic})
}

// Kill cuts the power of a host. Its peer sees silence, no closed connections.
func (l *Lab) Kill(host int) error {
	return l.Inflict(lab.Fault{Action: lab.Kill, Host: host})
}

// Traffic returns what a host's NIC has sent and received so far.
func (l *Lab) Traffic(host, nic int) (Traffic, error) {
	if err := (lab.Fault{Action: lab.Clear, Host: host, NIC: nic}).Validate(Hosts, len(l.cfg.Rates), Actions); err != nil {
		return Traffic{}, err
	}
	return l.net.traffic(host, nic)
}

// Do runs fn on a thread in a host, where the sockets it makes will stay: dial and
// listen in it, by address, and use the connections anywhere. What fn starts with
// go is not in the host. It returns fn's error; the lab may end while fn runs.
func (l *Lab) Do(host int, fn func() error) error {
	if err := (lab.Fault{Action: lab.Kill, Host: host}).Validate(Hosts, 0, Actions); err != nil {
		return err
	}
	return l.net.do(host, fn)
}

// Namespace returns a descriptor of a host's network namespace, for [proc.Cmd]. It is the
// lab's, which closes it at its end, and -1 after that.
func (l *Lab) Namespace(host int) int { return l.net.namespace(host) }
