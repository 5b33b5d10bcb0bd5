package lab

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// A Line is a line that a command printed on a host, without its newline.
type Line struct {
	Host   int
	Stderr bool
	Text   string
}

// maxLine is where a line without an end is cut into two, in bytes: a command that prints
// no newlines must not fill this process's memory.
const maxLine = 64 << 10

// readLines calls emit for each line of in until token, which ends the output. It reports whether the token came. What stands
// before it without a newline is a line too. Lines end in LF or, as a terminal writes
// them, in CR LF; both are left out. An error of in is its end.
func readLines(in io.Reader, token string, emit func(text string)) bool {
	var pending []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := in.Read(chunk)
		pending = append(pending, chunk[:n]...)
		text, _, whole := bytes.Cut(pending, []byte(token))
		for {
			line, rest, found := bytes.Cut(text, []byte("\n"))
			if !found {
				break
			}
			emit(string(bytes.TrimSuffix(line, []byte("\r"))))
			text = rest
		}
		if whole {
			if len(text) > 0 {
				emit(string(text))
			}
			return true
		}
		pending = bytes.Clone(text)
		if len(pending) > maxLine+len(token) { // a cut never splits the token
			emit(string(pending[:maxLine]))
			pending = pending[maxLine:]
		}
		if err != nil {
			if len(pending) > 0 {
				emit(string(pending))
			}
			return false
		}
	}
}

// A Printer writes the lines of all hosts and those of the lab, each whole and one at
// a time; several of its writers may be the same. The zero value of a field means none.
type Printer struct {
	Stdout, Stderr io.Writer  // the commands' lines, each behind "host1| "
	Log            io.Writer  // the lab's
	OnLine         func(Line) // gets each of a command, one at a time
	Faults         *Schedule  // sees each before that

	mu sync.Mutex // held while a line is written: a writer that blocks holds up all hosts
}

// Note prints a line of the lab's own.
func (p *Printer) Note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Log != nil {
		fmt.Fprintf(p.Log, format+"\n", args...)
	}
}

// Print prints a line of a command.
func (p *Printer) Print(l Line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.Stdout
	if l.Stderr {
		w = p.Stderr
	}
	if w != nil {
		fmt.Fprintf(w, "%s| %s\n", hostname(l.Host), l.Text)
	}
	if p.Faults != nil {
		p.Faults.See(l)
	}
	if p.OnLine != nil {
		p.OnLine(l)
	}
}

// tailSize is how much of a console is kept: a kernel's panic is some 4 KB.
const tailSize = 64 << 10

// A tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// find returns the first line that has text in it, or "".
func (t *tail) find(text string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(t.buf) {
		if bytes.Contains(line, []byte(text)) {
			return string(bytes.TrimSpace(line))
		}
	}
	return ""
}

// last returns up to n lines, indented for an error text.
func (t *tail) last(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(bytes.ReplaceAll(t.buf, []byte("\r"), nil)), []byte("\n"))
	lines = lines[max(0, len(lines)-n):]
	return "\t" + string(bytes.Join(lines, []byte("\n\t")))
}
