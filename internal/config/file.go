package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// MaxFile bounds what ReadFile reads, in bytes. The largest files that users name are tokenizers, of 35 MB.
const MaxFile = 256 << 20

var errLarge = fmt.Errorf("it is larger than %d MiB: name another file", MaxFile>>20)

// ReadFile reads a file or what is in a pipe, and returns a [FileError] if it cannot. It ends whatever the name stands
// for, unless a writer keeps a pipe open: a pipe without a writer is empty, a device and more than MaxFile bytes are errors.
func ReadFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, FileError(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode()&fs.ModeDevice != 0 {
		return nil, FileError(name, errors.New("it is a device: name a file"))
	}
	if err == nil && info.Size() > MaxFile {
		return nil, FileError(name, errLarge)
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if len(text) > MaxFile {
		err = errLarge
	}
	return text, FileError(name, err)
}

// FileError says in plain words why a file that a configuration names cannot be opened, and
// unwraps to err; nil if that is nil.
func FileError(name string, err error) error {
	why := plain{"", err}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		why.text = "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		why.text = "this user may not: see its permissions"
	case errors.Is(err, syscall.EISDIR):
		why.text = "it is a folder: name a file"
	default:
		return fmt.Errorf("%q: %w", name, err)
	}
	return fmt.Errorf("%q: %w", name, why)
}
