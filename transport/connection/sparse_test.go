package connection

import (
	"testing"
	"time"
)

// However often it happens, there is a line every ten seconds, which counts the others.
func TestSparse(t *testing.T) {
	var s Sparse
	now := time.Unix(1, 0)
	lines, told := 0, 0
	for range 3000 { // a hundred a second
		if held, ok := s.Line(now); ok {
			lines++
			told += held
		}
		now = now.Add(10 * time.Millisecond)
	}
	if held, ok := s.Line(now); !ok || lines != 3 || lines+told+held != 3000 {
		t.Errorf("%d lines, %d others counted, %v", lines, told+held, ok)
	}
}
