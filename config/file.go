package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ReadFile is os.ReadFile with a [FileError].
func ReadFile(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
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
