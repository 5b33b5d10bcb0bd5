package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// RecordsFile is the file of records in a folder.
const RecordsFile = "results.jsonl"

// A Folder is where a run's results go. A record goes to the kernel when its request
// ends; the other files are functions of all records so far and are replaced as the run
// goes on. What cannot be written is said once, and keeps nothing from being measured
// and printed.
type Folder struct {
	dir  string
	warn func(line string) // told when the first write fails

	mu      sync.Mutex
	records *os.File // nil if they cannot be written (any more)
	kept    bool     // something was written or saved, or tried to
	err     error    // the first; an OutputError
}

// NewFolder is a folder without records, made when the first file is saved. warn is told,
// once, when something cannot be written.
func NewFolder(dir string, warn func(line string)) *Folder {
	return &Folder{dir: dir, warn: warn}
}

// OpenFolder is a folder with records, [RecordsFile], and makes it. Records of an
// earlier run in it are left alone: nothing is kept of this one then. See [CheckNew].
func OpenFolder(dir string, warn func(line string)) *Folder {
	f := NewFolder(dir, warn)
	if err := f.open(); err != nil {
		f.fail(&OutputError{Err: err})
	}
	return f
}

func (f *Folder) open() error {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	var err error
	f.records, err = os.OpenFile(filepath.Join(f.dir, RecordsFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	return err
}

// fail notes an error, if it is the first.
func (f *Folder) fail(err error) {
	if err == nil || f.err != nil {
		return
	}
	f.err = err
	f.warn("results cannot be kept in " + f.dir + " from here on: they are printed, and at the end why")
}

// Record appends a line of JSON. It may be called from several goroutines.
func (f *Folder) Record(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("document: record %+v: %v", v, err)) // only numbers that JSON has not, NaN or Inf
	}
	_, _ = f.Write(append(line, '\n'))
}

// Write appends whole lines to the records. It never fails: what cannot be kept is
// dropped.
func (f *Folder) Write(lines []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.records == nil {
		return len(lines), nil
	}
	f.kept = true
	if _, err := f.records.Write(lines); err != nil {
		// The last line may be half a record: nothing may come after it.
		f.fail(&OutputError{Err: errors.Join(err, f.records.Close())})
		f.records = nil
	}
	return len(lines), nil
}

// Save rewrites files of the folder, and has the system bring the records to the
// disk.
func (f *Folder) Save(files ...File) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = true
	if f.records != nil {
		if err := f.records.Sync(); err != nil {
			f.fail(&OutputError{Err: err})
		}
	}
	f.fail(WriteFiles(f.dir, files...))
}

// End saves a document, closes the folder and prints the document. A failure to write does not keep it from
// printing: a full disk costs the files and not the figures.
func (f *Folder) End(d *Document, w io.Writer) error {
	f.Save(d.Files()...)
	lost, dir := f.Close(), f.dir
	if lost != nil {
		dir = ""
	}
	return errors.Join(d.Print(w, dir), lost)
}

// Close ends the records, and returns the first error that there was. Of a run that had no result
// the empty file of records is removed: it would keep the next run out of the folder ([CheckNew]).
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.records != nil {
		err := f.records.Close()
		if !f.kept {
			err = errors.Join(err, os.Remove(f.records.Name()))
		}
		if err != nil {
			f.fail(&OutputError{Err: err})
		}
		f.records = nil
	}
	return f.err
}
