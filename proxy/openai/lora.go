package openai

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// A LoRA is an adapter that clients may ask for by name. It is served as the model is, with KV
// and prefixes of its own. Its Path is said again in the list of models, and nothing is read
// there. Where it is a number, it is the adapter's rank.
type LoRA struct{ Name, Path string }

// ParseLoRA reads name=path, as vLLM's --lora-modules has it.
func ParseLoRA(text string) (LoRA, error) {
	name, path, ok := strings.Cut(text, "=")
	if !ok || name == "" || path == "" {
		return LoRA{}, fmt.Errorf("write name=path, not %q", text)
	}
	return LoRA{name, path}, nil
}

// String is what ParseLoRA reads.
func (l LoRA) String() string { return l.Name + "=" + l.Path }

// maxName bounds names of models and adapters, which are in answers and in messages to nodes.
const maxName = 256

// CheckNames notes what is wrong with the names that are served, of the model and of adapters.
func CheckNames(bad *config.Faults, served []string, loras []LoRA) {
	seen := make(map[string]bool)
	check := func(field, name string) {
		switch {
		case name == "" || len(name) > maxName:
			bad.Add(field, name, "use a name of 1 to %d bytes", maxName)
		case field == "LoRAs" && slices.Contains(served, name):
			bad.Add(field, name, "the model has that name: give the adapter another")
		case seen[name]:
			bad.Add(field, name, "two models have that name: leave one out")
		}
		seen[name] = true
	}
	for _, name := range served {
		check("ServedNames", name)
	}
	for _, l := range loras {
		check("LoRAs", l.Name)
	}
}

// Adapters are the names of adapters.
func Adapters(loras []LoRA) (names []string) {
	for _, l := range loras {
		names = append(names, l.Name)
	}
	return slices.Clip(names)
}
