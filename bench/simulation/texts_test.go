package simulation

import (
	"os"
	"path/filepath"
	"testing"

	"kvferry/load"
)

// TestTexts: prompts that are texts are so many tokens as kvferry's own tokenizer makes of them.
func TestTexts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.jsonl")
	if err := os.WriteFile(file, []byte("{\"prompt\": \"What is the capital of France?\", \"output_tokens\": 5}\n{\"prompt\": \"Tell me of the sea.\", \"output_tokens\": 5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := simulation(t)
	s.Load = load.Spec{Kind: load.CustomName, Compat: load.CompatVLLM, File: file, Requests: 2, Rate: 1, Burstiness: 1}
	l, err := InTokens(s.Load, s.Costs)
	if err != nil {
		t.Fatal(err)
	}
	tokens := len(l.Tokenizer.Encode("What is the capital of France?", true)) + len(l.Tokenizer.Encode("Tell me of the sea.", true))
	if r := simulated(t, s); r.Failed > 0 || r.OutputTokens != 10 || r.PromptTokens < int64(tokens) || tokens < 5 {
		t.Errorf("%d failed, %d prompt tokens of %d or more, %d output tokens: %s", r.Failed, r.PromptTokens, tokens, r.OutputTokens, r.Failure)
	}
	small := *s.Costs
	small.Vocab = 100
	s.Costs = &small
	if err := s.Validate(); err == nil {
		t.Error("a vocabulary of 100 tokens has no tokenizer, and is not refused")
	}
}
