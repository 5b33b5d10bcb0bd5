package connection

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"
)

// Options of a rail that raise its limits, as users write them.
const (
	OptionMax     = "maxconns"
	OptionPerPeer = "peerconns"
)

// A Full is why a connection is refused: as many as there may be have something under way.
type Full struct {
	Limit   int
	OneHost bool // of those from one host; else of all
	Fixed   bool // no option raises it
}

func (f *Full) Error() string {
	whose, option := "", OptionMax
	if f.OneHost {
		whose, option = " from one host", OptionPerPeer
	}
	text := fmt.Sprintf("%d connections%s have something under way, and no more are served", f.Limit, whose)
	if !f.Fixed {
		text += " (option " + option + " raises that)"
	}
	return text
}

// fileReserve is how many of a process's files are for other things than the connections that
// a rail serves: its own connections, logs, listeners.
const fileReserve = 256

// within is a limit that a process can keep which may have so many files open.
func within(limit int, files uint64) int {
	if files >= uint64(limit+fileReserve) {
		return limit
	}
	return min(limit, max(int(files)-fileReserve, int(files)/2, 1))
}

// fit has Max be no more than the process may open. Go has raised what it may to the hard limit
// when it started.
func (cfg *AdmissionConfig) fit() {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return
	}
	most := within(cfg.Max, files.Cur)
	if most == cfg.Max {
		return
	}
	cfg.Logger.Warn("transport: fewer connections are served than the limit says, as the process may have too few files open: raise that by ulimit -n or LimitNOFILE=",
		"rail", cfg.Rail, "limit", cfg.Max, "served", most, "files", files.Cur)
	cfg.Max, cfg.PerPeer = most, min(cfg.PerPeer, most)
}

var errNoFiles = errors.New("it was idle, and the process has no file left for another")

// Failed is called when a connection could not be accepted. Where the process has no files left, the
// one ends that is to make room first.
func (a *Admission) Failed(why error) {
	text := "transport: a connection was not accepted"
	if errors.Is(why, syscall.EMFILE) || errors.Is(why, syscall.ENFILE) {
		text += ": no files are left, so an idle one is ended; raise them by ulimit -n or LimitNOFILE="
		a.mu.Lock()
		out := a.idlest("", false)
		if out != nil {
			a.leave(out)
		}
		a.mu.Unlock()
		if out != nil {
			out.Evict(errNoFiles)
		}
	}
	if held, ok := a.failures.Line(time.Now()); ok {
		a.cfg.Logger.Error(text, slog.String("rail", a.cfg.Rail), slog.Any("err", why), slog.Int("since_last_line", held+1))
	}
}
