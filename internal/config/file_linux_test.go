package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kvferry/internal/config"
)

// TestReadFileEnds: no name that a user gives makes ReadFile read for ever.
func TestReadFileEnds(t *testing.T) {
	dir := t.TempDir()
	pipe, large, small := filepath.Join(dir, "pipe"), filepath.Join(dir, "large"), filepath.Join(dir, "small")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, config.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(small, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"/dev/zero": "device", large: "256 MiB", dir: "folder", small: "", pipe: ""} {
		text, err := config.ReadFile(name)
		switch {
		case want == "" && (err != nil || len(text) > 0 != (name == small)):
			t.Errorf("%s: %q, %v", name, text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name)):
			t.Errorf("%s: %v", name, err)
		}
	}
	r, w, err := os.Pipe() // as a shell's <(command)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("piped"); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		text, err := config.ReadFile(fmt.Sprint("/proc/self/fd/", r.Fd()))
		if err != nil {
			t.Error(err)
		}
		read <- string(text)
	}()
	w.Close()
	if got := <-read; got != "piped" {
		t.Errorf("a pipe: %q", got)
	}
}
