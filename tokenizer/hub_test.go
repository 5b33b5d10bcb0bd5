package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvferry/load"
	"kvferry/tokenizer"
)

// cached puts a model into a cache of the Hugging Face hub, as huggingface_hub lays it out.
func cached(t *testing.T, hub, model, commit, ref string, files ...string) string {
	t.Helper()
	root := filepath.Join(hub, "models--"+strings.ReplaceAll(model, "/", "--"))
	folder := filepath.Join(root, "snapshots", commit)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	own, err := tokenizer.Own(tokenizer.MinOwn)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		var text bytes.Buffer
		if err := own.Files(1000).Write(&text, name); err != nil {
			t.Fatal(err)
		}
		blob := filepath.Join(root, "blobs", name) // there by their hash
		write(t, blob, text.String())
		if err := os.Symlink(filepath.Join("..", "..", "blobs", name), filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	if ref != "" {
		write(t, filepath.Join(root, "refs", "main"), ref)
	}
	return folder
}

// TestHubNames: a name as users of vLLM write it is looked up where huggingface_hub keeps what
// it has downloaded; what is not there is refused with the command that downloads it.
func TestHubNames(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	t.Chdir(t.TempDir()) // nothing here has such a name
	hub := filepath.Join(home, ".cache", "huggingface", "hub")
	want := cached(t, hub, "Org/Model-1.5_b", "aaaa", "aaaa", tokenizer.FileName, tokenizer.ConfigFileName)
	cached(t, hub, "Org/Model-1.5_b", "bbbb", "aaaa") // an older one
	cached(t, hub, "single", "cccc", "", tokenizer.FileName)
	cached(t, hub, "org/weights", "dddd", "dddd", tokenizer.ConfigFileName)
	cached(t, hub, "org/torn", "eeee", "ffff", tokenizer.FileName)
	cached(t, hub, "org/two", "gggg", "", tokenizer.FileName)
	cached(t, hub, "org/two", "hhhh", "", tokenizer.FileName)

	for _, variable := range []struct{ name, value string }{
		{"HOME", home}, {"XDG_CACHE_HOME", filepath.Join(home, ".cache")}, {"HF_HOME", "~/.cache/huggingface"}, {"HF_HUB_CACHE", hub},
	} {
		t.Run(variable.name, func(t *testing.T) {
			if variable.name != "HOME" {
				t.Setenv("HOME", home)
				t.Setenv(variable.name, variable.value)
			}
			if path, err := tokenizer.Find("Org/Model-1.5_b"); err != nil || path != want {
				t.Errorf("%q, %v, want %q", path, err, want)
			}
		})
	}
	tok, err := tokenizer.Load("Org/Model-1.5_b")
	if err != nil || tok.Len() != tokenizer.MinOwn {
		t.Fatal(tok, err)
	}
	if _, err := tok.Chat([]load.Message{{Role: "user", Content: "hi"}}, true); err != nil {
		t.Errorf("its settings are not read: %v", err)
	}
	if tok, err := tokenizer.Load("single"); err != nil || tok.Len() != tokenizer.MinOwn {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"Qwen/Qwen3-8B":     `"Qwen/Qwen3-8B": there is no such file or folder, and the cache of the Hugging Face hub (` + hub + `) does not have it: download it: hf download Qwen/Qwen3-8B tokenizer.json tokenizer_config.json`,
		"org/weights":       "is without a tokenizer.json: download it: hf download org/weights tokenizer.json",
		"org/torn":          "does not have it: download it: hf download org/torn ",
		"org/two":           "has 2 commits and no refs/main says which: name one of these folders",
		"./Qwen/Qwen3-8B":   `"./Qwen/Qwen3-8B": there is no such file`,
		"a/b/c":             `"a/b/c": there is no such file`,
		"here/tokeniz.json": `"here/tokeniz.json": there is no such file`,
		"../Model":          `"../Model": there is no such file`,
		"-/x":               `"-/x": there is no such file`,
	} {
		if _, err := tokenizer.Load(name); err == nil || !strings.Contains(err.Error(), want) || strings.HasPrefix(want, `"./`) && strings.Contains(err.Error(), "hf download") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	// A folder of that name comes first, as in transformers.
	write(t, filepath.Join("single", tokenizer.FileName), "{")
	if _, err := tokenizer.Load("single"); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Error(err)
	}
}

// TestFiles: a folder has all that clients look for, config.json among it, and that names a
// model_type: without one vLLM's client waits 2 s and logs two errors.
func TestFiles(t *testing.T) {
	own, err := tokenizer.Own(5000)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "new", "folder")
	names, err := own.Files(777).Save(folder)
	if want := []string{"tokenizer.json", "tokenizer_config.json", "config.json"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, %v, want %q", names, err, want)
	}
	text, err := os.ReadFile(filepath.Join(folder, "config.json"))
	var model struct {
		Type      string `json:"model_type"`
		Vocab     int    `json:"vocab_size"`
		Positions int    `json:"n_positions"`
		EOS       int    `json:"eos_token_id"`
	}
	if err == nil {
		err = json.Unmarshal(text, &model)
	}
	if err != nil || model.Type == "" || model.Vocab != 5000 || model.Positions != 777 || own.Token(uint32(model.EOS)) != "<|im_end|>" {
		t.Errorf("%s: %v", text, err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != len(names) {
		t.Errorf("%v, %v", entries, err)
	}

	// A model's are copied as they are, as many as there are.
	write(t, filepath.Join(folder, tokenizer.TemplateFileName), "{{ messages }}")
	if err := os.Remove(filepath.Join(folder, "config.json")); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(t.TempDir(), "copy")
	names, err = tokenizer.FilesAt(folder).Save(again)
	if want := []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v, want %q", names, err, want)
	}
	for _, name := range names {
		a, errA := os.ReadFile(filepath.Join(folder, name))
		b, errB := os.ReadFile(filepath.Join(again, name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %d and %d bytes, %v, %v", name, len(a), len(b), errA, errB)
		}
	}
	if names, err := tokenizer.FilesAt(filepath.Join(folder, tokenizer.FileName)).Save(again); err != nil || len(names) != 1 {
		t.Errorf("of a file: %q, %v", names, err)
	}
	if _, err := tokenizer.FilesAt(filepath.Join(folder, "none")).Save(again); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("of nothing: %v", err)
	}
}
