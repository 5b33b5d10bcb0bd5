package lab

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// StopGrace is how long a command has between SIGTERM and the end of its host.
const StopGrace = 5 * time.Second

// killedStatus is the exit status of a host that was killed, as a shell has it for
// a process: 128 plus the 9 of SIGKILL.
const killedStatus = 137

// A Followed is a host whose command is run, of whatever kind of lab.
type Followed interface {
	Name() string // "host1"
	// Over is closed when the host is over, at the latest when its lab is cleared away.
	Over() <-chan struct{}
	// Ended is how, once Over is closed: the command's exit status, and whether a fault
	// killed the host. The error is that of a host that died.
	Ended() (code int, killed bool, err error)
	Tell(word string) // to the host's init: "go", "stop"
}

// IsOver says whether a host has ended, and with that whether Ended may be called.
func IsOver(h Followed) bool {
	select {
	case <-h.Over():
		return true
	default:
		return false
	}
}

// Follow returns when the commands that count are over: those of all hosts, or that of
// host number until, from 1, and the others StopGrace later at the latest; late is told then
// which still run. It writes results, one of each host. The error is that of a host that
// died and was not killed by a fault, or ctx's with what each host does.
func Follow[H Followed](ctx context.Context, hosts []H, until int, results []HostResult, late func(running []H)) error {
	over := make(chan int, len(hosts))
	for i, h := range hosts {
		go func() {
			<-h.Over()
			over <- i
		}()
	}
	var grace <-chan time.Time
	stopping := false
	for running := len(hosts); running > 0; {
		select {
		case i := <-over:
			running--
			if err := ended(hosts[i], &results[i], stopping); err != nil {
				return err
			}
			if i == until-1 {
				stopping, grace = true, time.After(StopGrace)
				for _, other := range hosts {
					other.Tell("stop")
				}
			}
		case <-grace:
			var still []H
			for i, h := range hosts {
				if !IsOver(h) {
					still = append(still, h)
					results[i] = HostResult{ExitCode: killedStatus, Stopped: true}
				}
			}
			late(still)
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), states(hosts))
		}
	}
	return nil
}

// ended notes how the command of a host that is over has ended; stopped says that the lab
// had told it to.
func ended(h Followed, r *HostResult, stopped bool) error {
	code, killed, err := h.Ended()
	r.ExitCode, r.Killed, r.Stopped = code, killed, stopped
	if killed {
		r.ExitCode = killedStatus
		return nil
	}
	return err
}

// states is what each host does, for the error of a lab that was ended.
func states[H Followed](hosts []H) string {
	var states []string
	for _, h := range hosts {
		state := "runs"
		if IsOver(h) {
			code, _, _ := h.Ended()
			state = fmt.Sprintf("exited %d", code)
		}
		states = append(states, h.Name()+" "+state)
	}
	return strings.Join(states, ", ")
}
