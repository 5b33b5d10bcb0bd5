package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCopyTree(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"tree/a": "alpha", "tree/b/c": "gamma"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, link := filepath.Join(dir, "tree"), filepath.Join(dir, "link")
	if err := os.Symlink(tree, link); err != nil {
		t.Fatal(err)
	}
	b := builder{archive: newArchive(), from: make(map[string]string)}
	for _, f := range []File{{From: tree}, {From: link}, {From: filepath.Join(tree, "a"), To: "/bin/a"}} {
		if err := b.copyTree(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/lab/tree/a", "/lab/tree/b/c", "/lab/link/b/c", "/usr/bin/a"} {
		if !b.seen[name] {
			t.Errorf("no %s", name)
		}
	}
	if err := b.copyTree(File{From: tree}); err == nil || !strings.Contains(err.Error(), "would replace /lab/tree/a") {
		t.Error(err)
	}
	if err := os.Symlink(dir, filepath.Join(tree, "round")); err != nil {
		t.Fatal(err)
	}
	if err := b.copyTree(File{From: tree, To: "/x"}); err == nil || !strings.Contains(err.Error(), "symlink to a folder") {
		t.Error(err)
	}
}

func TestBrings(t *testing.T) {
	c := Config{Files: []File{{From: "x/run.sh"}, {From: "y", To: "/opt/y"}}}
	for name, want := range map[string]bool{"/lab/run.sh": true, "/opt/y/bin/z": true, "/opt/yy": false, "run.sh": false} {
		if got := c.brings(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
