package matrix

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// keeperEnv carries what a keeper keeps, as JSON.
const keeperEnv = "KVFERRY_MATRIX_KEEPER"

// A keep is a command and how it is ended.
type keep struct {
	Words  []string
	Signal syscall.Signal // that asks it to end
	Within time.Duration  // from then until it is killed
}

// An end is how a command ended: a keeper's last word, on descriptor 3.
type end struct {
	Code   int            `json:"code"`             // exit status, -1 of one that a signal ended
	Signal syscall.Signal `json:"signal,omitempty"` // that ended it
	Asked  bool           `json:"asked,omitempty"`  // it was asked to end
	Killed bool           `json:"killed,omitempty"` // it, or what it left, was killed at the deadline
	Error  string         `json:"error,omitempty"`  // it did not run, or something of it is left
}

// ok says that the command ended by itself, and well.
func (e end) ok() bool { return e.Error == "" && e.Signal == 0 && e.Code == 0 && !e.Asked }

func (e end) String() string {
	switch {
	case e.Error != "":
		return e.Error
	case e.Killed && e.Asked:
		return "was killed: it did not end in time"
	case e.Signal != 0:
		return fmt.Sprintf("was ended by signal %d (%v)", e.Signal, e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Timing of an end: how often a keeper looks for what is left, and how long it waits after kill
// -9, which only a process in the kernel outlives.
const (
	lookAgain = 20 * time.Millisecond
	killWait  = 10 * time.Second
)

// Child keeps a command and exits, if this process was started to; otherwise it returns at once.
//
// A keeper stands between kvferry and a command, so that nothing of the command is left whatever
// ends first. The command has a process group of its own; a signal to it reaches what it has
// started. What has left the group and lost its parent becomes the keeper's child, on Linux, and
// is found there. The keeper's standard input is a pipe that only kvferry holds: a line in it, or
// its end when kvferry is gone, asks for an end.
func Child() {
	spec, ok := os.LookupEnv(keeperEnv)
	if !ok {
		return
	}
	os.Unsetenv(keeperEnv)
	var k keep
	e := end{Code: -1}
	if err := json.Unmarshal([]byte(spec), &k); err != nil {
		e.Error = fmt.Sprintf("%s: %v", keeperEnv, err)
	} else {
		e = k.run()
	}
	_ = json.NewEncoder(os.NewFile(3, "end")).Encode(e) // nobody is there to tell if it fails
	os.Exit(0)
}

// run starts the command and returns when nothing of it is left.
func (k keep) run() end {
	// The kernel ends the command with the thread that started it (PR_SET_PDEATHSIG): this one,
	// which lives as long as the keeper.
	runtime.LockOSThread()
	syscall.CloseOnExec(3)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	gone := make(chan struct{}) // closed when an end is asked for
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // or its end
		close(gone)
	}()
	adopt()
	program, err := exec.LookPath(k.Words[0])
	if err != nil {
		return end{Code: -1, Error: err.Error()}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return end{Code: -1, Error: err.Error()}
	}
	pid, err := syscall.ForkExec(program, k.Words, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), 1, 2}, Sys: attributes(),
	})
	if err != nil {
		return end{Code: -1, Error: fmt.Sprintf("%s: %v", program, err)}
	}
	reaped := make(chan struct{}, 1) // a child has ended; has room, so that none is missed
	own := make(chan syscall.WaitStatus, 1)
	go reap(pid, own, reaped)

	var e end
	select {
	case status := <-own:
		e = ended(status)
		e.Killed, e.Error = k.sweep(pid, nil, reaped)
	case <-gone:
		e = k.stop(pid, own, reaped)
	case <-asked:
		e = k.stop(pid, own, reaped)
	}
	return e
}

// stop asks the command to end, and returns when nothing of it is left.
func (k keep) stop(pid int, own <-chan syscall.WaitStatus, reaped <-chan struct{}) end {
	e := end{Code: -1, Asked: true}
	e.Killed, e.Error = k.sweep(pid, func() bool {
		select {
		case status := <-own:
			e = ended(status)
			e.Asked = true
		default:
		}
		return e.Code == -1 && e.Signal == 0
	}, reaped)
	return e
}

// sweep ends what there is of a command: its group, and what has left the group and lost its
// parent. It asks each process once, kills what is left at the deadline, and says what is left
// even then. alive says whether the command itself still is, nil that it is not.
func (k keep) sweep(pid int, alive func() bool, reaped <-chan struct{}) (killed bool, fault string) {
	toldGroup, told := false, map[int]bool{}
	deadline := time.NewTimer(k.Within)
	defer deadline.Stop()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	with := k.Signal
	for {
		group := syscall.Kill(-pid, 0) == nil
		left := strays(pid)
		if !group && len(left) == 0 && (alive == nil || !alive()) {
			return killed, ""
		}
		if group && !toldGroup {
			toldGroup = syscall.Kill(-pid, with) == nil
		}
		for _, p := range left {
			if !told[p] {
				told[p] = true
				_ = syscall.Kill(p, with) // it may have ended
			}
		}
		select {
		case <-reaped:
		case <-tick.C:
		case <-deadline.C:
			if killed {
				return true, fmt.Sprintf("processes %v are left: kill -9 does not end them", append(left, pid))
			}
			killed, with = true, syscall.SIGKILL
			toldGroup = false
			clear(told)
			deadline.Reset(killWait)
		}
	}
}

// reap waits for the keeper's children, those that it adopts too, until there are none.
func reap(pid int, own chan<- syscall.WaitStatus, reaped chan<- struct{}) {
	for {
		var status syscall.WaitStatus
		p, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return // ECHILD: nothing is left that could be adopted later
		case p == pid:
			own <- status
		}
		select {
		case reaped <- struct{}{}:
		default:
		}
	}
}

// ended is what the kernel says of a process that has.
func ended(status syscall.WaitStatus) end {
	if status.Signaled() {
		return end{Code: -1, Signal: status.Signal()}
	}
	return end{Code: status.ExitStatus()}
}
