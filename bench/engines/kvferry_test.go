package engines

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkout is a folder with what kvferry's checkout has, and a Makefile of which make does no more
// than that.
func checkout(t *testing.T, makefile string) kvferryFolder {
	t.Helper()
	f := kvferryFolder(t.TempDir())
	err := os.MkdirAll(filepath.Join(string(f), "bindings", "python", "kvferry", "vllm"), 0o700)
	for name, text := range map[string]string{"go.mod": "module kvferry\n", "Makefile": makefile, "bindings/python/kvferry/vllm/__init__.py": ""} {
		err = errors.Join(err, os.WriteFile(filepath.Join(string(f), name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFindKVFerry: a checkout is found from within it, a folder of a wheel's packages where it is
// named, and what has no connector is refused.
func TestFindKVFerry(t *testing.T) {
	f := checkout(t, "")
	below := filepath.Join(string(f), "docs", "deep")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	if got, err := findKVFerry(""); err != nil || !strings.HasSuffix(string(got), string(f)) || got.module() != filepath.Join(string(got), "bindings", "python", "kvferry") {
		t.Errorf("%s, %v", got, err)
	}
	wheel, err := installed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got, err := findKVFerry(string(wheel))
	if err != nil || got != wheel || got.module() != filepath.Join(string(wheel), "kvferry") || got.libraries() != got.module() {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := findKVFerry(below); err == nil || !strings.Contains(err.Error(), "it has no Python package kvferry.vllm: name a checkout") {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	if got, err := findKVFerry(""); err == nil || !strings.Contains(err.Error(), "--kvferry") {
		t.Errorf("%s, %v", got, err)
	}
}

// TestMake: a checkout's library is made each time, and an error has what make said; what a wheel
// lacks is not made.
func TestMake(t *testing.T) {
	f := checkout(t, "lib:\n\tmkdir -p bin; echo made >> bin/libkvferry.so\nnixl:\n\techo there is no g++; exit 1\n")
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		if err := f.make(t.Context(), library, log); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := os.ReadFile(filepath.Join(f.libraries(), libraryFile)); string(text) != "made\nmade\n" {
		t.Errorf("%q", text)
	}
	if err := f.make(t.Context(), plugin, log); err == nil || !strings.HasPrefix(err.Error(), "make nixl in "+string(f)) || !strings.Contains(err.Error(), "there is no g++") {
		t.Error(err)
	}
	wheel, err := installed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := wheel.make(t.Context(), plugin, log); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(wheel.module(), pluginFile)); err != nil {
		t.Fatal(err)
	}
	if err := wheel.make(t.Context(), plugin, log); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "was installed without it") {
		t.Error(err)
	}
}

// TestWithoutKVFerry: its settings have a mark with the reason, those that need nothing of it run.
func TestWithoutKVFerry(t *testing.T) {
	out := t.TempDir()
	e := fakes("", out)
	e.kvferry = func(string) (kvferryFolder, error) {
		f := checkout(t, "lib:\n\tmkdir -p bin; touch bin/libkvferry.so\nnixl:\n\techo there is no g++; exit 1\n")
		return f, nil
	}
	cfg := Config{Prompts: 3, Rounds: 1, Settings: []string{"kvferry-pull/cma", "nixl-kvferry/tcp", "example"}, Out: out}
	if err := e.run(t.Context(), cfg.withDefaults()); !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	rows := summary(t, out)
	if len(rows) != 12 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		if failed := row.Setting == "nixl-kvferry"; (row.Error != "") != failed || failed && !strings.Contains(row.Error, "there is no g++") {
			t.Errorf("%+v", row)
		}
	}
	nothingLeft(t, out)
}
