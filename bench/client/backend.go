package client

import (
	"fmt"
	"slices"

	"kvferry/internal/config"
)

// A Backend is a way to ask a server: which path, what the request looks like, and how the
// answer is read.
type Backend struct {
	Name string // what --backend says; several names may be the same way
	Path string // below the server's URL
	Port int    // where such a server listens by default
	kind kind
	lora bool // the name of a LoRA adapter goes into lora_path too, as SGLang has it
}

// A kind is a wire format.
type kind int

const (
	completions kind = iota // POST /v1/completions, OpenAI's legacy one
	chat                    // POST /v1/chat/completions
	generate                // SGLang's own POST /generate
)

// Backends are all there are, under the names that vLLM's and SGLang's clients have for
// them.
var Backends = []Backend{
	{Name: "openai", Path: "/v1/completions", Port: 8000},
	{Name: "vllm", Path: "/v1/completions", Port: 8000},
	{Name: "openai-chat", Path: "/v1/chat/completions", Port: 8000, kind: chat},
	{Name: "vllm-chat", Path: "/v1/chat/completions", Port: 8000, kind: chat},
	{Name: "sglang", Path: "/generate", Port: 30000, kind: generate, lora: true},
	{Name: "sglang-native", Path: "/generate", Port: 30000, kind: generate, lora: true},
	{Name: "sglang-oai", Path: "/v1/completions", Port: 30000, lora: true},
	{Name: "sglang-oai-chat", Path: "/v1/chat/completions", Port: 30000, kind: chat, lora: true},
}

// BackendNames are the names of Backends.
func BackendNames() []string {
	var names []string
	for _, b := range Backends {
		names = append(names, b.Name)
	}
	return names
}

// ParseBackend is the backend of that name; of "" it is OpenAI's completions.
func ParseBackend(name string) (Backend, error) {
	if name == "" {
		return Backends[0], nil
	}
	i := slices.IndexFunc(Backends, func(b Backend) bool { return b.Name == name })
	if i < 0 {
		return Backend{}, fmt.Errorf("%q: use %s", name, config.Or(BackendNames()))
	}
	return Backends[i], nil
}
