package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/internal/config"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := config.ReadFile(dir); err == nil || !strings.HasSuffix(err.Error(), `": it is a folder: name a file`) {
		t.Error(err)
	}
	name := filepath.Join(dir, "a")
	if _, err := config.ReadFile(name); err == nil || !strings.HasSuffix(err.Error(), `/a": there is no such file`) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := config.ReadFile(name); err != nil || string(text) != "1" {
		t.Errorf("%s, %v", text, err)
	}
}
