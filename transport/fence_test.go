package transport

import (
	"bytes"
	"testing"
)

// A secret comes back from the immediate that carries it, and its name tells nothing
// of it.
func TestSecret(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if a == b || a == (Secret{}) || a.Name() == b.Name() {
		t.Errorf("secrets %x and %x", a, b)
	}
	if imm := a.fence(); imm.Source != 0 || fenced(&imm) != a {
		t.Errorf("%x travels as %+v", a, imm)
	}
	name := a.Name()
	if bytes.Contains(name[:], a[:8]) || bytes.Contains(name[:], a[8:]) {
		t.Errorf("%x is named %x", a, name)
	}
}
