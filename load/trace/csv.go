package trace

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// CSV are the rows of a file of comma-separated values below a line of column names.
type CSV struct {
	name    string
	from    io.Reader
	r       *csv.Reader
	columns []string // asked for
	at      []int    // where they are in a row
	row     []string
	line    int
	err     error // the first; io.EOF at the end
}

// NewCSV reads rows from r that have these columns, and maybe others, in any order. The
// header may write them in capitals or not. name is for errors. Close closes r, if it is
// to be closed.
func NewCSV(name string, r io.Reader, columns ...string) *CSV {
	return &CSV{name: name, from: r, columns: columns, line: 1}
}

// Next goes to the next row; there is none if not ok.
func (c *CSV) Next() (ok bool, err error) {
	if c.err == nil && c.at == nil {
		c.header()
	}
	if c.err == nil {
		c.row, c.err = c.r.Read()
		c.read()
	}
	if errors.Is(c.err, io.EOF) {
		return false, nil
	}
	return c.err == nil, c.err
}

// header finds the columns. A byte order mark before them is left out: the first may be in
// quotes.
func (c *CSV) header() {
	from := bufio.NewReader(c.from)
	if mark, err := from.Peek(3); err == nil && string(mark) == "\ufeff" {
		_, _ = from.Discard(3)
	}
	c.r = csv.NewReader(&long{from: from})
	c.r.ReuseRecord = true
	c.r.TrimLeadingSpace = true
	row, err := c.r.Read()
	if c.err = err; err != nil {
		c.read()
		return
	}
	for _, name := range c.columns {
		at := -1
		for i, have := range row {
			if strings.EqualFold(strings.TrimSpace(have), name) {
				at = i
			}
		}
		if at < 0 {
			c.err = c.Fault(fmt.Errorf("there is no column %s: the first line names %s", name, strings.Join(row, ", ")))
			return
		}
		c.at = append(c.at, at)
	}
}

// read notes the line, and says in plain words what is wrong with it.
func (c *CSV) read() {
	var bad *csv.ParseError
	switch {
	case c.err == nil:
		c.line, _ = c.r.FieldPos(0)
	case errors.As(c.err, &bad):
		c.line = bad.StartLine
		c.err = c.Fault(bad.Err)
	case errors.Is(c.err, errLong):
		c.err = c.Fault(fmt.Errorf("a row is longer than %d bytes", maxRow))
	case !errors.Is(c.err, io.EOF):
		c.err = c.Fault(c.err)
	}
}

// Text is the value in the n-th column of those asked for. It is gone after the next Next.
func (c *CSV) Text(n int) string { return strings.TrimSpace(c.row[c.at[n]]) }

// Int is a value that is a whole number; 1.0 is one.
func (c *CSV) Int(n int) (int, error) {
	f, err := c.Float(n)
	if err != nil || f != float64(int(f)) {
		return 0, fmt.Errorf("%s: %q: want a whole number", c.columns[n], c.Text(n))
	}
	return int(f), nil
}

// Float is a value that is a number.
func (c *CSV) Float(n int) (float64, error) {
	f, err := strconv.ParseFloat(c.Text(n), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q: want a number", c.columns[n], c.Text(n))
	}
	return f, nil
}

// Line is that of the last row, from 1.
func (c *CSV) Line() int { return c.line }

// Fault is an error of the last row.
func (c *CSV) Fault(err error) error { return Fault(c.name, c.line, err) }

// Close closes what is read.
func (c *CSV) Close() error { return Close(c.from) }

// maxRow bounds a row: an open quote would otherwise take the whole file.
const maxRow = 1 << 20

// long ends a file that has no line's end for too long.
type long struct {
	from io.Reader
	line int // bytes since the last
}

// Read counts what has come since the last line's end.
func (l *long) Read(p []byte) (int, error) {
	if l.line > maxRow {
		return 0, errLong
	}
	n, err := l.from.Read(p)
	if i := strings.LastIndexByte(string(p[:n]), '\n'); i >= 0 {
		l.line = n - i
	} else {
		l.line += n
	}
	return n, err
}
