package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kvferry/bench/page"
)

// TestDiskFull: the first record that does not fit is told of, once, and none is
// written after it.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	var warnings []string
	o := openOutput(dir, func(line string) { warnings = append(warnings, line) })
	o.record(&Record{Index: 1})
	kept := o.records
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.records = full
	for range 3 {
		o.record(&Record{Index: 2})
	}
	o.save((&Results{}).files()...)
	err = o.close()
	if lost := (*page.OutputError)(nil); !errors.As(err, &lost) || !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "no space left") != 1 {
		t.Errorf("err = %v", err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], dir) {
		t.Errorf("warnings = %q", warnings)
	}
	if err := full.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is left open: %v", err)
	}
	_ = kept.Close()
	if records := readAll(t, dir); len(records) != 1 || records[0].Index != 1 {
		t.Errorf("records %+v", records)
	}
	if _, err := os.Stat(filepath.Join(dir, summaryFile)); err != nil {
		t.Errorf("what fits is not kept: %v", err)
	}
}
