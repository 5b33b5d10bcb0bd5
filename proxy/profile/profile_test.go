package profile

import (
	"bytes"
	"errors"
	"testing"
)

func TestProfiler(t *testing.T) {
	var p Profiler
	if _, err := p.Take(); !errors.Is(err, ErrNone) {
		t.Errorf("none was begun: %v", err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); !errors.Is(err, ErrRuns) {
		t.Errorf("begun twice: %v", err)
	}
	var other Profiler // of the same process
	if err := other.Start(); !errors.Is(err, ErrRuns) {
		t.Errorf("two of a process: %v", err)
	}
	p.End()
	p.End()
	data, err := p.Take()
	if err != nil || !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) { // pprof's files are gzipped
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := p.Take(); !errors.Is(err, ErrNone) {
		t.Errorf("fetched twice: %v", err)
	}
	if err := p.Start(); err != nil {
		t.Error(err)
	}
	p.End()
}
