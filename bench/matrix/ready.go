package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"
)

// How often it is looked whether a server is ready, and how long one answer may take.
const (
	lookForReady = 50 * time.Millisecond
	readyAnswer  = 5 * time.Second
)

// awaitServer waits until a server of somebody else's is there, before any client waits for it: each
// would do that anew. It is there when its ready.url answers 200, or else when it takes
// connections; what it then answers is the client's to judge.
func (r *runner) awaitServer(ctx context.Context) event {
	s, c, _, folder := r.now()
	r.show("waiting for the server")
	ready, ask := s.Ready, probe
	ready.Within = s.within()
	values, err := r.cfg.File.values(s, c, folder)
	if err == nil {
		at := fill(s.Ready.URL, values, verbatim)
		if at == "" {
			at, ask = values["url"], listens
		}
		err = awaitReady(ctx, ready, at, ask, nil, nil)
	}
	switch {
	case err == nil:
		return serverReady
	case ctx.Err() != nil:
		return interrupt
	}
	r.down = "the server is not there: " + err.Error()
	return serverFailed
}

// within is how long a server may take to be ready.
func (s Server) within() time.Duration {
	if s.Command.empty() {
		return or(s.Ready.Within, DefaultRunning)
	}
	return or(s.Ready.Within, DefaultReady)
}

// listens asks whether somebody takes connections at a URL. Behind a proxy that is the proxy's to know, and the answer
// is yes.
func listens(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if by, err := http.ProxyFromEnvironment(req); by != nil || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyAnswer)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(req.URL.Hostname(), portOf(req.URL)))
	if err != nil {
		return err
	}
	return conn.Close()
}

// errNotReady is of a server whose time is up.
var errNotReady = errors.New("it is not ready in time")

// awaitReady returns when a server is ready: when its line is in what is behind tail, and its URL answers when it is
// asked as ask does. It returns an error when ctx is over, when gone closes or after within. gone is nil of a server
// that is somebody else's.
func awaitReady(ctx context.Context, r Ready, url string, ask func(ctx context.Context, url string) error, tail *logTail, gone <-chan struct{}) error {
	within := or(r.Within, DefaultReady)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%w: %s", errNotReady, within))
	defer cancel()
	line := regexp.MustCompile(r.Line)
	tick := time.NewTicker(lookForReady)
	defer tick.Stop()
	why := errors.New("it has not said anything")
	said, asked := r.Line == "", false
	for {
		if !said {
			found, err := tail.find(line)
			said, why = found, fmt.Errorf("no line of its output has %q", r.Line)
			if err != nil {
				return err
			}
		}
		if said {
			if url == "" {
				return nil
			}
			err := ask(ctx, url)
			switch {
			case err == nil:
				return nil
			case ctx.Err() == nil:
				why = err
			case !asked: // its first answer did not come in time
				why = fmt.Errorf("%s does not answer", url)
			}
			asked = true
		}
		select {
		case <-tick.C:
		case <-gone:
			return errors.New("it ended before it was ready")
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, errNotReady) {
				return fmt.Errorf("%w: %w", cause, why)
			}
			return ctx.Err()
		}
	}
}

// probe asks a URL, which answers 200 to 299 when the server is ready.
func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyAnswer)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return nil
}

// A logTail looks for a line in a file that grows. It is read and not piped, so that a server
// never waits for kvferry, and its log is whole whatever becomes of kvferry.
type logTail struct {
	path string
	at   int64  // what has been read
	rest []byte // of a line that has not ended
}

// newLogTail begins at the end of what is there: of an earlier process, which was ready too.
func newLogTail(path string) (*logTail, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return &logTail{path: path, at: info.Size()}, nil
}

// longestLine bounds what is kept of a line that does not end.
const longestLine = 1 << 20

// find reads what has come and says whether a line of it has what is looked for. A line counts
// before it has ended: some servers print no newline behind the last word for long.
func (t *logTail) find(line *regexp.Regexp) (bool, error) {
	f, err := os.Open(t.path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, t.at, 1<<62))
	if err != nil {
		return false, err
	}
	t.at += int64(len(text))
	t.rest = append(t.rest, text...)
	for {
		end := bytes.IndexByte(t.rest, '\n')
		if end < 0 {
			break
		}
		if line.Match(t.rest[:end]) {
			return true, nil
		}
		t.rest = t.rest[end+1:]
	}
	if len(t.rest) > longestLine {
		t.rest = t.rest[len(t.rest)-longestLine:]
	}
	return len(t.rest) > 0 && line.Match(t.rest), nil
}

// lastLine is the last line of a file that is not blank, for a message.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	const enough = 4 << 10
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, size-enough), enough))
	if err != nil {
		return ""
	}
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}
