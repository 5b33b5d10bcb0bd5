package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/nullserver"
)

// A toolFile is what both tools write of every request, and what SGLang's has of the server.
type toolFile struct {
	Texts       []string        `json:"generated_texts"`
	InputLens   []int           `json:"input_lens"`
	Errors      []string        `json:"errors"`
	ServerInfo  json.RawMessage `json:"server_info"`
	Retokenized *int            `json:"total_output_tokens_retokenized"`
	Output      int             `json:"total_output_tokens"`
}

func readTool(t *testing.T, path string) (f toolFile) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &f) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return f
}

// TestServeTexts: the files of both tools have what was generated, with the flags that ask for
// it and not without; SGLang's has what the server says of itself, null where it says nothing.
func TestServeTexts(t *testing.T) {
	for _, c := range []struct {
		backend, details string
		texts            bool
	}{
		{"openai", "--save-detailed --output-details", true},
		{"openai-chat", "--save-detailed --output-details", true},
		{"sglang", "--save-detailed --output-details", true},
		{"openai", "", false},
	} {
		dir := t.TempDir()
		rowsOf(t, 0, strings.Fields("--backend "+c.backend+" --base-url "+served(t, nullserver.Config{})+" --num-prompts 3 --request-rate 1000 --random-input-len 8 --random-output-len 4 --save-result --result-dir "+dir+
			" --result-filename vllm.json --output-file "+filepath.Join(dir, "sglang.jsonl")+" "+c.details)...)
		for _, name := range []string{"vllm.json", "sglang.jsonl"} {
			f := readTool(t, filepath.Join(dir, name))
			if (len(f.Texts) == 3 && len(f.InputLens) == 3 && len(f.Errors) == 3) != c.texts {
				t.Errorf("%s %s, %s: %+v", c.backend, c.details, name, f)
			}
			for _, text := range f.Texts {
				if text != " tok tok tok tok" {
					t.Errorf("%s, %s: %q", c.backend, name, text)
				}
			}
			if name == "sglang.jsonl" && string(f.ServerInfo) != "null" {
				t.Errorf("server_info of a server that has none: %s", f.ServerInfo)
			}
		}
	}
}

// TestServeRetokenized: kvferry's cluster says what it is, and its words are one token each of its
// tokenizer, as SGLang's report counts them again.
func TestServeRetokenized(t *testing.T) {
	dir := t.TempDir()
	profile := profileFile(t, 32000, 1)
	if code, _, stderr := command(t.Context(), "tokenizer", "--profile", profile, "--out", filepath.Join(dir, "tok")); code != 0 {
		t.Fatal(stderr)
	}
	_, stdout, _ := rowsOf(t, 0, strings.Fields("--compat sglang --backend sglang-oai --dataset-name random --profile "+profile+" --kv-warm-mib 0 --link 10gbit --num-prompts 4 --request-rate 1000 --random-input-len 16 --random-output-len 6"+
		" --random-range-ratio 1 --flush-cache --tokenizer "+filepath.Join(dir, "tok")+" --output-details --output-file "+filepath.Join(dir, "sglang.jsonl"))...)
	f := readTool(t, filepath.Join(dir, "sglang.jsonl"))
	if len(f.Texts) != 4 || strings.TrimSpace(f.Texts[0]) == "" || !strings.HasPrefix(string(f.ServerInfo), "{") {
		t.Errorf("%+v, server_info %.200s", f, f.ServerInfo)
	}
	if f.Output != 24 || f.Retokenized == nil || *f.Retokenized != 24 || !strings.Contains(stdout, "Total generated tokens (retokenized):    24 ") {
		t.Errorf("%d tokens, %v retokenized\n%s", f.Output, f.Retokenized, stdout)
	}
}

// TestServeConversation: what a conversation lacks is said once.
func TestServeConversation(t *testing.T) {
	_, stdout, _ := rowsOf(t, 0, strings.Fields("--base-url "+served(t, nullserver.Config{})+" --dataset-name multi-turn --min-turns 3 --max-turns 3 --min-think 0 --max-think 0 --num-prompts 4 --random-input-len 8 --random-output-len 4")...)
	if n := strings.Count(stdout, "8 requests went on with a conversation without the answers in it"); n != 1 || !strings.Contains(stdout, "(--tokenizer)") {
		t.Errorf("said %d times:\n%s", n, stdout)
	}
}
