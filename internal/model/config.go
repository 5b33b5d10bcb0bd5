package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// A Config is what is read of a config.json. Fields that it may leave out are 0 then.
type Config struct {
	ModelType    string `json:"model_type"`
	Layers       int    `json:"num_hidden_layers"`
	Hidden       int    `json:"hidden_size"`
	Intermediate int    `json:"intermediate_size"`
	Vocab        int    `json:"vocab_size"`
	MaxLen       int    `json:"max_position_embeddings"`
	Tied         bool   `json:"tie_word_embeddings"`

	Heads   int `json:"num_attention_heads"`
	KVHeads int `json:"num_key_value_heads"`
	HeadDim int `json:"head_dim"`
	// Of latent attention, DeepSeek's.
	KVRank   int `json:"kv_lora_rank"`
	QRank    int `json:"q_lora_rank"`
	RopeDim  int `json:"qk_rope_head_dim"`
	NopeDim  int `json:"qk_nope_head_dim"`
	ValueDim int `json:"v_head_dim"`
	// What some layers have instead of attention to all tokens.
	LayerTypes []string `json:"layer_types"`
	Window     int      `json:"sliding_window"`
	UseWindow  *bool    `json:"use_sliding_window"`

	// Of a mixture of experts; families have names of their own for the first.
	NumExperts         int   `json:"num_experts"`
	NumLocalExperts    int   `json:"num_local_experts"`
	NumRoutedExperts   int   `json:"n_routed_experts"`
	PerToken           int   `json:"num_experts_per_tok"`
	ExpertIntermediate int   `json:"moe_intermediate_size"`
	SharedExperts      int   `json:"n_shared_experts"`
	SharedIntermediate int   `json:"shared_expert_intermediate_size"`
	FirstDense         int   `json:"first_k_dense_replace"`
	ExpertEvery        int   `json:"moe_layer_freq"`
	SparseStep         int   `json:"decoder_sparse_step"`
	DenseLayers        []int `json:"mlp_only_layers"`

	TorchType string            `json:"torch_dtype"`
	Type      string            `json:"dtype"`
	Quantized *quantizationJSON `json:"quantization_config"`
	Text      *Config           `json:"text_config"` // of a model that sees pictures too
}

// maxFile bounds a config.json: real ones have some kilobytes.
const maxFile = 1 << 20

// most bounds what a configuration may say of itself, so that products fit.
const most = 1 << 20

// FileName is what a model's configuration is called in its folder.
const FileName = "config.json"

// Find is the file that a name means: a config.json, that of a folder, or that of a model which the cache
// of the Hugging Face hub has.
func Find(name string) (path string, err error) {
	if path, err = FindFiles(name, FileName); err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, FileName)
	}
	return path, nil
}

// Read reads the config.json of that name.
func Read(name string) (Config, error) {
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Size() > maxFile {
		return Config{}, fmt.Errorf("%q: this is no model's config.json, which has at most %d bytes", name, maxFile)
	}
	text, err := config.ReadFile(name)
	if err != nil {
		return Config{}, err
	}
	c, err := Parse(text)
	if err != nil {
		return Config{}, fmt.Errorf("%q: %w", name, err)
	}
	return c, nil
}

// Parse reads a config.json. Of a model that sees pictures too it takes the part that reads
// and writes text.
func Parse(text []byte) (Config, error) {
	var c Config
	if err := config.Unmarshal(text, &c, false); err != nil {
		return c, fmt.Errorf("no model's config.json: %w", err)
	}
	if inner := c.Text; inner != nil && c.Layers == 0 {
		if inner.TorchType == "" && inner.Type == "" {
			inner.TorchType, inner.Type = c.TorchType, c.Type
		}
		config.Default(&inner.Quantized, c.Quantized)
		c = *inner
	}
	c.Text = nil // they do not nest
	return c, c.check()
}

// check refuses numbers that no model has.
func (c *Config) check() error {
	for _, f := range []struct {
		name  string
		n     int
		least int
	}{
		{"num_hidden_layers", c.Layers, 1},
		{"hidden_size", c.Hidden, 0},
		{"intermediate_size", c.Intermediate, 0},
		{"vocab_size", c.Vocab, 0},
		{"num_attention_heads", c.Heads, 0},
		{"num_key_value_heads", c.KVHeads, 0},
		{"head_dim", c.HeadDim, 0},
		{"kv_lora_rank", c.KVRank, 0},
		{"q_lora_rank", c.QRank, 0},
		{"qk_rope_head_dim", c.RopeDim, 0},
		{"qk_nope_head_dim", c.NopeDim, 0},
		{"v_head_dim", c.ValueDim, 0},
		{"sliding_window", c.Window, 0},
		{"num_experts", c.NumExperts, 0},
		{"num_local_experts", c.NumLocalExperts, 0},
		{"n_routed_experts", c.NumRoutedExperts, 0},
		{"num_experts_per_tok", c.PerToken, 0},
		{"moe_intermediate_size", c.ExpertIntermediate, 0},
		{"n_shared_experts", c.SharedExperts, 0},
		{"shared_expert_intermediate_size", c.SharedIntermediate, 0},
		{"first_k_dense_replace", c.FirstDense, 0},
		{"moe_layer_freq", c.ExpertEvery, 0},
		{"decoder_sparse_step", c.SparseStep, 0},
	} {
		if f.n < f.least || f.n > most {
			return fmt.Errorf("%s is %d: it must be %d to %d", f.name, f.n, f.least, most)
		}
	}
	if c.MaxLen < 0 || c.MaxLen > 1<<30 {
		return fmt.Errorf("max_position_embeddings is %d: it must be 0 to %d", c.MaxLen, 1<<30)
	}
	_, err := c.ElemBytes()
	return err
}

// elements are bytes an element. A configuration that does not say is served with two.
var elements = map[string]int{"": 2, "bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}

// ElemBytes is how many bytes an element of the model's type has.
func (c *Config) ElemBytes() (int, error) {
	name := c.TorchType
	config.Default(&name, c.Type)
	bytes, ok := elements[strings.TrimPrefix(name, "torch.")]
	if !ok {
		return 0, fmt.Errorf("torch_dtype is %q: bfloat16, float16, float32 and float8_e4m3fn are known", name)
	}
	return bytes, nil
}

// KV is the shape of the model's KV: how many layers have one, and how many elements a token
// has in each. Grouped attention has K and V of each KV head; latent attention one vector for
// both, of kv_lora_rank + qk_rope_head_dim elements (DeepSeek-V2, arXiv 2405.04434, section
// 2.1).
func (c *Config) KV() (layers, elems int, err error) {
	layers = c.Layers
	if len(c.LayerTypes) > 0 {
		layers = 0
		for _, t := range c.LayerTypes {
			if strings.HasSuffix(t, "attention") && !strings.HasPrefix(t, "linear") {
				layers++
			}
		}
		if layers == 0 {
			return 0, 0, errors.New("layer_types has no layer with attention: the model has no KV cache")
		}
	}
	if c.KVRank > 0 {
		return layers, c.KVRank + c.RopeDim, nil
	}
	heads, dim := c.kvHeads(), c.headDim()
	if heads == 0 || dim == 0 {
		return 0, 0, errors.New("it does not say how large KV is: it needs num_key_value_heads and head_dim, or num_attention_heads and hidden_size, or kv_lora_rank")
	}
	return layers, 2 * heads * dim, nil
}

func (c *Config) kvHeads() int {
	if c.KVHeads == 0 {
		return c.Heads
	}
	return c.KVHeads
}

func (c *Config) headDim() int {
	if c.HeadDim == 0 && c.Heads > 0 {
		return c.Hidden / c.Heads
	}
	return c.HeadDim
}

// window is how many tokens some layer's attention goes back; 0 is to the first. Qwen's models
// name one that they use only if they say so.
func (c *Config) window() int {
	used := !strings.HasPrefix(c.ModelType, "qwen")
	if c.UseWindow != nil {
		used = *c.UseWindow
	}
	if len(c.LayerTypes) > 0 {
		used = slices.Contains(c.LayerTypes, "sliding_attention")
	}
	if !used {
		return 0
	}
	return c.Window
}
