package vllm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiles: what of the programs in Python needs no package does what it says.
func TestFiles(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 here")
	}
	folder := Folder(t.TempDir())
	if err := folder.writeFiles(); err != nil {
		t.Fatal(err)
	}
	run := func(program string) string {
		t.Helper()
		cmd := exec.Command(python, "-c", program)
		cmd.Dir, cmd.Env = folder.at("files"), append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	// 4,096 tokens, none twice, each merge of tokens that there are, all bytes among them.
	got := run(`
import tiny
vocab, merges = tiny.vocabulary()
assert sorted(vocab.values()) == list(range(len(vocab))), "an id twice"
assert all(a in vocab and b in vocab and a + b in vocab for a, b in merges), "a merge of nothing"
assert len([t for t in vocab if len(t) == 1]) == 256, "a byte is missing"
print(len(vocab), "bado" in vocab, "Ġbado" in vocab)`)
	if got != "4096 True True" {
		t.Error(got)
	}
	run(`import metadata; metadata.write(".", "1.2.3"); metadata.write(".", "1.2.3")`)
	text, err := os.ReadFile(filepath.Join(folder.at("files"), "vllm-1.2.3+cpu.dist-info", "METADATA"))
	if err != nil || string(text) != "Metadata-Version: 2.1\nName: vllm\nVersion: 1.2.3+cpu\n" {
		t.Errorf("%q, %v", text, err)
	}
	for _, name := range []string{"smollm2", "try"} {
		run("import importlib; importlib.import_module('" + name + "')")
	}
}
