package trace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"kvferry/internal/config"
)

// maxRecord bounds a record. A session of an agent has a thousand calls of 20,000 block
// ids: 160 MB.
const maxRecord = 256 << 20

// Open opens a file for reading; a folder is none, and one that is compressed is no text.
func Open(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, config.FileError(path, err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errors.Join(config.FileError(path, syscall.EISDIR), f.Close())
	}
	var magic [2]byte
	if n, _ := f.ReadAt(magic[:], 0); n == 2 && magic == [2]byte{0x1f, 0x8b} { // a pipe is not looked into
		return nil, errors.Join(config.FileError(path, errors.New("it is compressed: unpack it with gunzip")), f.Close())
	}
	return f, nil
}

// ErrPipe is of a pipe where a file is read more than once.
var ErrPipe = errors.New("it is a pipe, which can be read once, and this run reads it again: write it to a file")

// IsPipe reports whether a path is that of a pipe. Open waits there until somebody writes to it.
func IsPipe(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeNamedPipe != 0
}

// Fault is an error of a record, by its file and line.
func Fault(name string, line int, err error) error {
	return fmt.Errorf("%s:%d: %w", name, line, err)
}

// Close closes what a reader reads from, if it is to be closed.
func Close(r io.Reader) error {
	if c, ok := r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
