package rail

import "kvferry/internal/model"

// hub is where the models' makers publish config.json: hub + repository + /blob/main/config.json.
const hub = "huggingface.co/"

// models are known ones, with the values of their config.json, all in bf16.
var models = []struct {
	name, repository               string
	layers, heads, dim, rank, rope int
}{
	{"llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 8, 128, 0, 0},
	{"llama-3.1-70b", "meta-llama/Llama-3.1-70B", 80, 8, 128, 0, 0},
	{"mistral-7b", "mistralai/Mistral-7B-v0.3", 32, 8, 128, 0, 0},
	{"qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", 28, 4, 128, 0, 0},
	{"qwen3-8b", "Qwen/Qwen3-8B", 36, 8, 128, 0, 0},
	{"qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 94, 4, 128, 0, 0},
	{"gpt-oss-20b", "openai/gpt-oss-20b", 24, 8, 64, 0, 0},
	{"gpt-oss-120b", "openai/gpt-oss-120b", 36, 8, 64, 0, 0},
	{"deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 0, 0, 512, 64},
	{"deepseek-r1", "deepseek-ai/DeepSeek-R1", 61, 0, 0, 512, 64},
}

// LayoutNames returns the names of the known models.
func LayoutNames() (all []string) {
	for _, m := range models {
		all = append(all, m.name)
	}
	return all
}

func knownLayout(name string) (Layout, bool) {
	for _, m := range models {
		if m.name == name {
			c := model.Config{Layers: m.layers, KVHeads: m.heads, HeadDim: m.dim, KVRank: m.rank, RopeDim: m.rope}
			l, err := layout(&c)
			l.Model, l.Source = name, hub+m.repository
			return l, err == nil
		}
	}
	return Layout{}, false
}
