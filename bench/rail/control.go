package rail

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"kvferry/bench/observe"
	"kvferry/transport"
)

// protocol is the version of the control connection's lines. Both ends must have
// the same.
const protocol = 4

// A message is one line of JSON on the control connection. The initiator asks, the
// target answers each with one line:
//
//	hello    welcome   how much memory, and how it is reached
//	point    ready     the plan; for a read with checks the memory is filled
//	mark     usage     CPU time so far
//	check    verdict   of the blocks that were written
//	reference serving  the target's end of what is measured beside a point
//	facts    known     what the kernel says of the target's rails and machine; probes are echoed from then on
//	clock    time      the target's clock
//
// or with an error. Whoever closes the connection ends the session.
type message struct {
	Type     string `json:"type"`
	Protocol int    `json:"protocol,omitempty"` // of hello and welcome
	Error    string `json:"error,omitempty"`

	Segment int64                  `json:"segment,omitempty"` // of hello
	Seed    uint64                 `json:"seed,omitempty"`    // of hello
	Info    *transport.SegmentInfo `json:"info,omitempty"`    // of welcome
	Machine *observe.Machine       `json:"machine,omitempty"` // of welcome
	Rails   []string               `json:"rails,omitempty"`   // of welcome
	Plan    *plan                  `json:"plan,omitempty"`    // of point
	CPU     float64                `json:"cpu,omitempty"`     // of usage, seconds
	Landed  []landing              `json:"landed,omitempty"`  // of check, one a thread
	Verdict *verdict               `json:"verdict,omitempty"`

	Name string `json:"name,omitempty"` // of reference
	Addr string `json:"addr,omitempty"` // of serving
	Why  string `json:"why,omitempty"`  // of serving: why it is not

	Facts  []Facts `json:"facts,omitempty"`  // of facts: where the asker's rails are reached; of known: the target's
	Echo   bool    `json:"echo,omitempty"`   // of facts: probes are to come
	Host   *Host   `json:"host,omitempty"`   // of known, before the session had its memory
	Echoes []echo  `json:"echoes,omitempty"` // of known, one a rail; without an address where there is none
	Clock  int64   `json:"clock_ns,omitempty"`
}

// maxLine bounds a message. A check names at most the blocks of the batches that
// were under way when one failed.
const maxLine = 16 << 20

// helloTimeout is how long a new connection may take to say what it is.
const helloTimeout = 10 * time.Second

// lines reads and writes messages.
type lines struct {
	conn net.Conn
	in   *bufio.Scanner
}

func newLines(conn net.Conn) *lines {
	if tc, ok := conn.(*net.TCPConn); ok {
		// A machine that has gone without a word is missed after 20 s.
		_ = tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3})
	}
	in := bufio.NewScanner(conn)
	in.Buffer(make([]byte, 0, 4<<10), maxLine)
	return &lines{conn: conn, in: in}
}

func (l *lines) send(m *message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(helloTimeout))
	_, err = l.conn.Write(append(text, '\n'))
	return err
}

// errNoLine: what came is no message of ours.
var errNoLine = errors.New("no line of this protocol")

func (l *lines) receive() (*message, error) {
	if !l.in.Scan() {
		if err := l.in.Err(); errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("%w: longer than %d bytes", errNoLine, maxLine)
		} else if err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	m := &message{}
	if err := json.Unmarshal(l.in.Bytes(), m); err != nil || m.Type == "" {
		return nil, fmt.Errorf("%w: %.40q", errNoLine, l.in.Bytes())
	}
	return m, nil
}

// A peer is the target, as the initiator talks to it.
type peer struct {
	name  string // in errors
	lines *lines

	answers chan *message
	lost    chan struct{} // closed with err when the connection has ended
	err     error
	reading sync.WaitGroup
}

// newPeer reads what the target says on conn. command is what starts one.
func newPeer(name, command string, conn net.Conn) *peer {
	p := &peer{name: name, lines: newLines(conn), answers: make(chan *message, 1), lost: make(chan struct{})}
	p.reading.Go(func() {
		defer close(p.lost)
		for {
			m, err := p.lines.receive()
			switch {
			case errors.Is(err, errNoLine):
				p.err = fmt.Errorf("%s does not speak the protocol of kvferry rail bench and check (%w): is %s running there?", name, err, command)
				return
			case err != nil:
				p.err = fmt.Errorf("%s has gone: %w", name, err)
				return
			}
			select {
			case p.answers <- m:
			default:
				p.err = fmt.Errorf("%s answers what was not asked", name)
				return
			}
		}
	})
	return p
}

// ask sends a message and waits for the answer of that type. The last words of a
// target that has gone are its answer still.
func (p *peer) ask(ctx context.Context, m *message, answer string, timeout time.Duration) (*message, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	sent := p.lines.send(m)
	if sent != nil {
		timer.Reset(time.Second) // the reader knows more, soon
	}
	var err error
	select {
	case got := <-p.answers:
		return p.accept(m, got, answer)
	case <-p.lost:
		err = p.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = fmt.Errorf("%s has not answered %s within %v: it may be serving another client, or hang", p.name, m.Type, timeout)
		if sent != nil {
			err = fmt.Errorf("%s has gone: %w", p.name, sent)
		}
	}
	select {
	case got := <-p.answers:
		return p.accept(m, got, answer)
	default:
		return nil, err
	}
}

func (p *peer) accept(asked, got *message, answer string) (*message, error) {
	switch {
	case got.Error != "":
		return nil, fmt.Errorf("%s: %s", p.name, got.Error)
	case got.Type != answer:
		return nil, fmt.Errorf("%s answers %s with %q", p.name, asked.Type, got.Type)
	}
	return got, nil
}

func (p *peer) close() {
	_ = p.lines.conn.Close()
	p.reading.Wait()
}
