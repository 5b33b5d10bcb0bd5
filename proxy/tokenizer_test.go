package proxy

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/openai"
	"kvferry/tokenizer"
)

// TestTokenizerFiles: what a client reads from the proxy counts as the proxy does.
func TestTokenizerFiles(t *testing.T) {
	c := newTestCluster(t, Config{NodeWait: -1})
	if status, body := c.get("/tokenizer/tokenizer.json"); status != http.StatusServiceUnavailable {
		t.Errorf("without nodes: %d %s", status, body)
	}
	c.addPair()
	resp, file := c.ask("GET", "/tokenizer/"+tokenizer.FileName, "")
	_, settings := c.get("/tokenizer/" + tokenizer.ConfigFileName)
	read, err := tokenizer.Parse([]byte(file), []byte(settings), nil)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%v, %v", resp, err)
	}
	if got := read.Encode("hi there", true); !slices.Equal(got, helloPrompt) || read.Len() != testVocab {
		t.Errorf("%v, want %v; %d tokens", got, helloPrompt, read.Len())
	}
	resp, model := c.ask("GET", "/tokenizer/"+tokenizer.ModelConfigFileName, "")
	if resp.Header.Get("Content-Type") != "application/json" || !strings.Contains(model, `"model_type"`) || !strings.Contains(model, fmt.Sprintf(`"vocab_size": %d`, testVocab)) {
		t.Errorf("%v %s", resp, model)
	}
	for _, name := range []string{"vocab.json", tokenizer.TemplateFileName} {
		if status, body := c.get("/tokenizer/" + name); status != http.StatusNotFound || !strings.Contains(body, "no such file of the tokenizer: "+name) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}

// TestModelsTokenizer: with --tokenizer texts are counted by a model's file, nodes get other
// ids, which begin with the words, and what they generate are tokens of the file again.
func TestModelsTokenizer(t *testing.T) {
	folder := t.TempDir()
	small, err := tokenizer.Own(tokenizer.MinOwn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := small.Files(1000).Save(folder); err != nil {
		t.Fatal(err)
	}
	model, err := openai.LoadModelFile(folder)
	if err != nil {
		t.Fatal(err)
	}
	tok := model.Tokenizer(testVocab)
	c := newTestCluster(t, Config{Tokenizer: folder})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		m := tokenMessage(s.Id, 0, 0, 7, s.Words-1) // as an engine draws: below the number of words
		m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH}}
		send(m)
	})
	status, body, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"ignore_eos":true}`)
	if err != nil || status != http.StatusOK {
		t.Fatal(status, body, err)
	}
	s := clocktest.Receive(t, n.submits, "the request")
	first, words := tok.Words()
	if s.FirstWord != first || s.Words != words || first != 0 || words < 1000 {
		t.Errorf("words %d from %d, want %d from %d", s.Words, s.FirstWord, words, first)
	}
	var prompt []uint32 // as the node has it
	for _, id := range tok.Encode("hi there") {
		prompt = append(prompt, tok.ToNode(id))
	}
	if got := promptOf(s); !slices.Equal(got, prompt) || slices.Equal(got, tok.Encode("hi there")) {
		t.Errorf("the node has %v, want %v", got, prompt)
	}
	generated := []uint32{tok.FromNode(0), tok.FromNode(7), tok.FromNode(words - 1)}
	text := tok.Decode(generated)
	if !strings.Contains(body, `"text":"`+text+`"`) || !slices.Equal(tok.Encode(text), generated) || !strings.Contains(body, fmt.Sprintf(`"prompt_tokens":%d,`, len(prompt))) {
		t.Errorf("%s, want %q", body, text)
	}
	for _, name := range []string{tokenizer.FileName, tokenizer.ConfigFileName, tokenizer.ModelConfigFileName} {
		want, err := os.ReadFile(filepath.Join(folder, name))
		if status, body := c.get("/tokenizer/" + name); err != nil || status != http.StatusOK || body != string(want) {
			t.Errorf("%s: %d, %d bytes, want %d, %v", name, status, len(body), len(want), err)
		}
	}
	if status, body := c.get("/tokenizer/chat_template.jinja"); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}

	if _, err := New(Config{HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", Tokenizer: "../tokenizer/testdata/llama2"}); err == nil || !strings.Contains(err.Error(), "Tokenizer: ") || !strings.Contains(err.Error(), "want a byte-level tokenizer") {
		t.Error(err)
	}
}
