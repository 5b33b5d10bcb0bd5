package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"kvferry/load"
)

// TestReasoning: what a model reasons is text like other text, under either name, or both; what it
// says after that is known apart.
func TestReasoning(t *testing.T) {
	delta := func(fields string) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{%s},\"finish_reason\":null}]}\n\n", fields)
	}
	const end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n" + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":6}}\n\n" + doneAt
	for _, c := range []struct {
		name          string
		pieces        []string
		text, content string // content is "-" where nothing was reasoned
	}{
		{"none", []string{delta(`"content":"a"`), delta(`"content":"b"`)}, "ab", "-"},
		{"first", []string{
			delta(`"role":"assistant"`), delta(`"reasoning_content":"h"`), delta(`"reasoning_content":"m"`), delta(`"reasoning_content":"m"`), delta(`"content":"a"`), delta(`"content":"b"`), delta(`"content":"c"`),
		}, "hmmabc", "abc"},
		{"the other name", []string{delta(`"reasoning":"h"`), delta(`"reasoning":"m"`), delta(`"content":"a"`)}, "hma", "a"},
		{"both names", []string{delta(`"reasoning":"h","reasoning_content":"h"`), delta(`"reasoning":"m","reasoning_content":"m","content":"a"`)}, "hma", "a"},
		{"among the others", []string{delta(`"content":"a"`), delta(`"reasoning_content":"h"`), delta(`"content":"b"`)}, "ahb", "ab"},
		{"nothing else", []string{delta(`"reasoning_content":"h"`), delta(`"reasoning_content":"m"`)}, "hm", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { says(append(c.pieces, end)...)(w) }))
			defer s.Close()
			r := single(t, Config{URL: s.URL, Backend: "openai-chat", KeepText: true}, load.Request{Text: "x", MaxTokens: 6})
			content := "-"
			if r.Content != nil {
				content = *r.Content
			}
			if r.Error != "" || r.Text != c.text || content != c.content {
				t.Errorf("text %q, content %q, want %q, %q; %s", r.Text, content, c.text, c.content, r.Error)
			}
		})
	}
}
