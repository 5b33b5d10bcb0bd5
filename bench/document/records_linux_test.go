package document

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDiskFull: the first record that does not fit is told of, once, and none is
// written after it.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	var warnings []string
	o := OpenFolder(dir, func(line string) { warnings = append(warnings, line) })
	o.Record(map[string]int{"index": 1})
	kept := o.records
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.records = full
	for range 3 {
		o.Record(map[string]int{"index": 2})
	}
	o.Save(File{Name: "summary.json", Write: func(w io.Writer) error { return nil }})
	err = o.Close()
	if lost := (*OutputError)(nil); !errors.As(err, &lost) || !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "no space left") != 1 {
		t.Errorf("err = %v", err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], dir) {
		t.Errorf("warnings = %q", warnings)
	}
	if err := full.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is left open: %v", err)
	}
	_ = kept.Close()
	if text, err := os.ReadFile(filepath.Join(dir, RecordsFile)); err != nil || string(text) != "{\"index\":1}\n" {
		t.Errorf("records %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "summary.json")); err != nil {
		t.Errorf("what fits is not kept: %v", err)
	}
}
