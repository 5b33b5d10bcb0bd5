package matrix

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/config"
	"kvferry/internal/proc"
)

// How often a server is asked whether it is ready, and how long it may take to answer.
const (
	lookPeriod   = 50 * time.Millisecond
	answerWithin = 5 * time.Second
)

// start starts the server of a pair, sets r.port and waits until the server is ready. Where a server
// runs already, it only waits, so that not each client has to, and returns nil.
func (r *runner) start(ctx context.Context, p *Pair) (*proc.Proc, error) {
	r.progress.Describe(p.Server + "/" + p.Client + ": waiting for the server")
	ready, within := p.server.Ready, DefaultReady
	if p.server.Command.empty() {
		within = DefaultRunning
	}
	within = cmp.Or(ready.Within, within)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it is not ready within %s", within))
	defer cancel()
	if p.server.Command.empty() {
		v := r.File.values(p, "")
		return nil, await(ctx, nil, func() error { return answers(ctx, v.fill(ready.URL), v.address()) })
	}
	port, err := config.FreePort(cmp.Or(p.server.Host, DefaultHost))
	if err != nil {
		return nil, err
	}
	r.port = strconv.Itoa(port)
	v := r.File.values(p, r.port)
	if answers(ctx, "", v.address()) == nil { // the server would end or hang, and the other one be measured
		return nil, fmt.Errorf("somebody listens at %s already: end it, or change the server's port or url", v.address())
	}
	folder := p.folder
	if p.server.Share { // all its clients' output is of one process
		folder = filepath.Dir(folder)
	}
	log, err := os.OpenFile(filepath.Join(folder, serverFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, &document.OutputError{Err: err}
	}
	cmd := r.File.process(p.server.Command, p.server.Env, p.server.Dir, r.File.dir, p.server.Stop, v)
	said, line := atomic.Bool{}, regexp.MustCompile(ready.Line)
	cmd.Log = proc.Lines(func(text string) {
		fmt.Fprintln(log, text)
		if line.MatchString(text) {
			said.Store(true)
		}
	})
	p.ServerCommand = cmd.Args
	s, err := proc.Start(ctx, cmd)
	if err != nil {
		log.Close()
		return nil, err
	}
	s.In.Close()
	go func() { // after the last line
		<-s.Done()
		log.Close()
	}()
	err = await(ctx, s, func() error {
		switch {
		case ready.Line != "" && !said.Load():
			return fmt.Errorf("no line of its output has %q", ready.Line)
		case ready.URL == "":
			return nil
		}
		return answers(ctx, v.fill(ready.URL), "")
	})
	p.ReadyS = time.Since(p.Started).Seconds()
	if err != nil {
		p.stopped(s)
		return nil, fmt.Errorf("%w%s", err, lastLine(s, log.Name()))
	}
	return s, nil
}

// await returns nil when ready does. It returns an error when the server, if s is not nil, or ctx ends before.
func await(ctx context.Context, s *proc.Proc, ready func() error) (err error) {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		why := ready()
		if why == nil {
			return gone(s)
		}
		if err == nil || ctx.Err() == nil { // else it failed because ctx has ended
			err = why
		}
		select {
		case <-tick.C:
		case <-done(s):
			return gone(s)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// done returns a channel that is closed when a server ends, and gone returns how it has ended by
// itself. Both return nil for a server that runs already, which is nil.
func done(s *proc.Proc) <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.Done()
}

func gone(s *proc.Proc) error {
	if s == nil {
		return nil
	}
	return s.Err()
}

// answers returns nil if a URL answers 200 to 299 or, without a URL, if somebody takes connections at an address.
func answers(ctx context.Context, url, address string) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if url == "" {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return nil
}

// lastLine returns the last line of a process's log, for an error.
func lastLine(p *proc.Proc, of string) string {
	if tail := p.Tail(); len(tail) > 0 {
		return fmt.Sprintf("; the last line of %s: %s", of, tail[len(tail)-1])
	}
	return ""
}
