// Package kvlayout says how many bytes of KV cache a model has: a token, a block of
// tokens and a layer of one, from the config.json that comes with the model, or from a
// table of known models.
//
//	grouped attention   2 (K and V) x KV heads x head size x bytes an element, a token and layer
//	latent attention    (kv_lora_rank + qk_rope_head_dim) x bytes an element: one vector for both
//
// (Multi-head latent attention: DeepSeek-V2, arXiv 2405.04434, section 2.1.) These are the
// bytes of a whole model; with tensor parallelism a rank has its part of the heads. A layer
// with a sliding window has as much a token, but keeps only the window's tokens. Layers
// without a KV cache, of linear attention and of state space models, are not counted.
package kvlayout

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// A Layout is the KV cache of a model. Sizes are bytes.
type Layout struct {
	Model  string `json:"model"`  // its name, or the file
	Source string `json:"source"` // what the sizes follow from
	Layers int    `json:"layers"` // that have KV
	Token  int64  `json:"token_layer_bytes"`
}

// A Size is one that a transfer of KV has.
type Size struct {
	Model  string `json:"model"`
	What   string `json:"what"`
	Bytes  int64  `json:"bytes"`
	Source string `json:"source"`
}

// Sizes are those of the model's transfers, with blocks of so many tokens: the least first.
func (l Layout) Sizes(blockTokens int) []Size {
	layer, token := l.Token*int64(blockTokens), l.Token*int64(l.Layers)
	all := []Size{
		{What: "token, one layer", Bytes: l.Token},
		{What: fmt.Sprintf("block of %d, one layer", blockTokens), Bytes: layer},
		{What: "token, all layers", Bytes: token},
		{What: fmt.Sprintf("block of %d, all layers", blockTokens), Bytes: layer * int64(l.Layers)},
	}
	for i := range all {
		all[i].Model, all[i].Source = l.Model, l.Source
	}
	slices.SortStableFunc(all, func(a, b Size) int { return int(min(max(a.Bytes-b.Bytes, -1), 1)) })
	return all
}

// maxFile bounds a config.json: real ones have some kilobytes.
const maxFile = 1 << 20

// Read is the layout of a known model, or of that whose config.json the text names.
func Read(text string) (Layout, error) {
	if l, ok := known(text); ok {
		return l, nil
	}
	f, err := os.Open(text)
	if errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(text, "/.") {
		return Layout{}, fmt.Errorf("%q: it is neither a file nor a known model: use a config.json, or one of %s", text, strings.Join(Names(), ", "))
	}
	if err != nil {
		return Layout{}, fmt.Errorf("%q: %w: known models are %s", text, err, strings.Join(Names(), ", "))
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() > maxFile {
		return Layout{}, errors.Join(fmt.Errorf("%q: this is no model's config.json, which has at most %d bytes", text, maxFile), err)
	}
	var c modelConfig
	if err := json.NewDecoder(f).Decode(&c); err != nil {
		return Layout{}, fmt.Errorf("%q: no model's config.json: %w", text, err)
	}
	l, err := c.layout()
	if err != nil {
		return Layout{}, fmt.Errorf("%q: %w", text, err)
	}
	l.Model, l.Source = text, "config.json"
	return l, nil
}

// modelConfig is what of a config.json says how large KV is, under the names that
// Hugging Face's transformers gives it.
type modelConfig struct {
	Layers     int          `json:"num_hidden_layers"`
	Heads      int          `json:"num_attention_heads"`
	KVHeads    int          `json:"num_key_value_heads"`
	HeadDim    int          `json:"head_dim"`
	Hidden     int          `json:"hidden_size"`
	LoraRank   int          `json:"kv_lora_rank"`
	RopeDim    int          `json:"qk_rope_head_dim"`
	LayerTypes []string     `json:"layer_types"`
	TorchType  string       `json:"torch_dtype"`
	Type       string       `json:"dtype"`
	Text       *modelConfig `json:"text_config"` // of a model that sees pictures too
}

// elements are bytes an element. A configuration that does not say is served with two.
var elements = map[string]int64{"": 2, "bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}

// most bounds what a configuration may say of itself, so that products fit.
const most = 1 << 20

func (c *modelConfig) layout() (l Layout, err error) {
	if c.Text != nil && c.Layers == 0 {
		if c.Text.TorchType == "" && c.Text.Type == "" {
			c.Text.TorchType, c.Text.Type = c.TorchType, c.Type
		}
		c = c.Text
	}
	if c.Text != nil {
		c.Text = nil // they do not nest
	}
	for _, f := range []struct {
		name  string
		n     int
		least int
	}{
		{"num_hidden_layers", c.Layers, 1},
		{"num_attention_heads", c.Heads, 0},
		{"num_key_value_heads", c.KVHeads, 0},
		{"head_dim", c.HeadDim, 0},
		{"hidden_size", c.Hidden, 0},
		{"kv_lora_rank", c.LoraRank, 0},
		{"qk_rope_head_dim", c.RopeDim, 0},
	} {
		if f.n < f.least || f.n > most {
			return l, fmt.Errorf("%s is %d: it must be %d to %d", f.name, f.n, f.least, most)
		}
	}
	name := c.TorchType
	if name == "" {
		name = c.Type
	}
	bytes, ok := elements[strings.TrimPrefix(name, "torch.")]
	if !ok {
		return l, fmt.Errorf("torch_dtype is %q: bfloat16, float16, float32 and float8_e4m3fn are known", name)
	}
	l.Layers = c.Layers
	if len(c.LayerTypes) > 0 {
		l.Layers = 0
		for _, t := range c.LayerTypes {
			if strings.HasSuffix(t, "attention") && !strings.HasPrefix(t, "linear") {
				l.Layers++
			}
		}
		if l.Layers == 0 {
			return l, errors.New("layer_types has no layer with attention: the model has no KV cache")
		}
	}
	if c.LoraRank > 0 {
		l.Token = int64(c.LoraRank+c.RopeDim) * bytes
		return l, nil
	}
	heads, dim := c.KVHeads, c.HeadDim
	if heads == 0 {
		heads = c.Heads
	}
	if dim == 0 && c.Heads > 0 {
		dim = c.Hidden / c.Heads
	}
	if heads == 0 || dim == 0 {
		return l, errors.New("it does not say how large KV is: it needs num_key_value_heads and head_dim, or num_attention_heads and hidden_size, or kv_lora_rank")
	}
	l.Token = 2 * int64(heads) * int64(dim) * bytes
	return l, nil
}
