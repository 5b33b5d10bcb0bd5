package rail

// This file says how many bytes of KV cache a model has: a token, a block of
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

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"kvferry/internal/model"
)

// A Layout is the KV cache of a model. Sizes are bytes.
type Layout struct {
	Model  string `json:"model"`  // its name, or the file
	Source string `json:"source"` // what the sizes follow from
	Layers int    `json:"layers"` // that have KV
	Token  int64  `json:"token_layer_bytes"`
}

// A KVSize is the size of a transfer of KV.
type KVSize struct {
	Model  string `json:"model"`
	What   string `json:"what"`
	Bytes  int64  `json:"bytes"`
	Source string `json:"source"`
}

// Sizes are those of the model's transfers, with blocks of so many tokens: the least first.
func (l Layout) Sizes(blockTokens int) []KVSize {
	layer, token := l.Token*int64(blockTokens), l.Token*int64(l.Layers)
	all := []KVSize{
		{What: "token, one layer", Bytes: l.Token},
		{What: fmt.Sprintf("block of %d, one layer", blockTokens), Bytes: layer},
		{What: "token, all layers", Bytes: token},
		{What: fmt.Sprintf("block of %d, all layers", blockTokens), Bytes: layer * int64(l.Layers)},
	}
	for i := range all {
		all[i].Model, all[i].Source = l.Model, l.Source
	}
	slices.SortStableFunc(all, func(a, b KVSize) int { return int(min(max(a.Bytes-b.Bytes, -1), 1)) })
	return all
}

// ReadLayout is the layout of a known model, or of that whose config.json the text names.
func ReadLayout(text string) (Layout, error) {
	if l, ok := knownLayout(text); ok {
		return l, nil
	}
	if _, err := os.Stat(text); errors.Is(err, os.ErrNotExist) {
		return Layout{}, fmt.Errorf("%q: it is neither a file nor a known model: use a config.json, or one of %s", text, strings.Join(LayoutNames(), ", "))
	}
	c, err := model.Read(text)
	if err != nil {
		return Layout{}, err
	}
	l, err := layout(&c)
	if err != nil {
		return Layout{}, fmt.Errorf("%q: %w", text, err)
	}
	l.Model, l.Source = text, "config.json"
	return l, nil
}

// layout is that of KV that is kept in the model's type.
func layout(c *model.Config) (Layout, error) {
	layers, elems, err := c.KV()
	if err != nil {
		return Layout{}, err
	}
	bytes, err := c.ElemBytes()
	return Layout{Layers: layers, Token: int64(elems) * int64(bytes)}, err
}
