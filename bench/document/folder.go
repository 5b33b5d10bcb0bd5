package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A File is a file in the folder of a report.
type File struct {
	Name  string
	Write func(io.Writer) error
}

// An OutputError says that a run's results could not be written, or not all of them.
// It is no fault of what was measured.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return "results are not kept: " + e.Err.Error() }

// Unwrap is the system's error.
func (e *OutputError) Unwrap() error { return e.Err }

// MakeFolder makes a folder for results. Its error is an OutputError.
func MakeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return &OutputError{err}
	}
	return nil
}

// LogFile has what a command's own daemons said, in the folder of its results; there is none if they
// said nothing.
const LogFile = "cluster.log"

// results are files by which a folder is known to have results, of any command.
var results = []string{RecordsFile, "summary.json", "sweep.json", "search.json", "compare.json", "matrix.json", "check.json", "table.md", "report.html"}

// CheckNew is an error if no folder is named, or if it has results already: these would be lost, or lie beside
// those of another run. A folder that is not there has none.
func CheckNew(dir string) error {
	if dir == "" {
		return errors.New("none given: name a folder for the results")
	}
	for _, name := range results {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%q: it has results already (%s): name another folder, or remove them", dir, name)
		}
	}
	return nil
}

// WriteJSON writes a value as JSON that a person can read.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// WriteFiles writes files of a folder, which it makes. Each replaces the one before by
// a rename, so that whatever kills the program leaves whole files, these or the ones
// before. One that cannot be written does not keep it from the others. The error is
// the first, an OutputError: a full disk says the same of each.
func WriteFiles(dir string, files ...File) error {
	first := MakeFolder(dir)
	if first != nil {
		return first
	}
	for _, f := range files {
		if err := replace(dir, f); err != nil && first == nil {
			first = &OutputError{err}
		}
	}
	return first
}

func replace(dir string, f File) error {
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	path := filepath.Join(dir, f.Name)
	err := os.WriteFile(path+".tmp", b.Bytes(), 0o644)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp") // part of a file helps nobody
	}
	return err
}

// Present are those of the files in a folder that are there.
func Present(dir string, names ...string) (there []string) {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			there = append(there, name)
		}
	}
	return there
}

// Listing says where files are: "results: kvferry-out/now/{a.json,b.html}".
func Listing(dir string, names ...string) string {
	return fmt.Sprintf("results: %s%c{%s}", dir, filepath.Separator, strings.Join(names, ","))
}
