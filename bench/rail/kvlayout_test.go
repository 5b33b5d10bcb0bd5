package rail

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/internal/model"
	"kvferry/kvcache"
)

// TestKnown: published sizes. Llama 3.1 8B has 128 KiB a token, and 70B 320 KiB; DeepSeek's
// latent vector of 576 elements is 1152 bytes in bf16.
func TestKnown(t *testing.T) {
	for name, want := range map[string][4]int64{
		"llama-3.1-8b":  {4096, 65536, 131072, 2 << 20},
		"llama-3.1-70b": {4096, 65536, 327680, 5 << 20},
		"qwen2.5-7b":    {2048, 32768, 57344, 917504},
		"deepseek-r1":   {1152, 18432, 70272, 1124352},
		"gpt-oss-120b":  {2048, 32768, 73728, 1179648},
	} {
		l, err := ReadLayout(name)
		if err != nil || !strings.HasPrefix(l.Source, hub) {
			t.Fatal(l, err)
		}
		for i, s := range l.Sizes(16) {
			if s.Bytes != want[i] {
				t.Errorf("%s: %+v, want %v", name, l.Sizes(16), want)
				break
			}
		}
	}
	for _, name := range LayoutNames() {
		if l, err := ReadLayout(name); err != nil || l.Token < 1 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

// TestIsTheCaches: what a node keeps of a model is what its config.json says.
func TestIsTheCaches(t *testing.T) {
	g := kvcache.Geometry{Layers: 28, KVHeads: 4, HeadDim: 128, ElemBytes: 2, BlockTokens: 16}
	l, _ := ReadLayout("qwen2.5-7b")
	sizes := l.Sizes(16)
	if int64(g.LayerBytes()) != sizes[1].Bytes || int64(g.TokenBytes()) != sizes[2].Bytes || int64(g.BlockBytes()) != sizes[3].Bytes {
		t.Errorf("%+v of %+v", sizes, g)
	}
}

func TestReadsConfigs(t *testing.T) {
	for text, want := range map[string]Layout{
		`{"num_hidden_layers":4,"num_attention_heads":8,"hidden_size":512}`:                                                                                       {Layers: 4, Token: 2 * 8 * 64 * 2},
		`{"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":128,"torch_dtype":"float32"}`:                                          {Layers: 4, Token: 2 * 2 * 128 * 4},
		`{"num_hidden_layers":4,"kv_lora_rank":512,"qk_rope_head_dim":64,"num_key_value_heads":128,"head_dim":64,"dtype":"float8_e4m3fn"}`:                        {Layers: 4, Token: 576},
		`{"torch_dtype":"bfloat16","text_config":{"num_hidden_layers":2,"num_key_value_heads":1,"head_dim":8}}`:                                                   {Layers: 2, Token: 32},
		`{"num_hidden_layers":4,"num_key_value_heads":1,"head_dim":8,"layer_types":["linear_attention","full_attention","sliding_attention","linear_attention"]}`: {Layers: 2, Token: 32},
	} {
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want.Model, want.Source = path, "config.json"
		if l, err := ReadLayout(path); err != nil || l != want {
			t.Errorf("%s: %+v, %v, want %+v", text, l, err, want)
		}
	}
	for text, want := range map[string]string{
		`{`:                       "no model's config.json",
		`{}`:                      "num_hidden_layers is 0",
		`{"num_hidden_layers":4}`: "does not say how large",
		`{"num_hidden_layers":4,"num_key_value_heads":-1,"head_dim":8}`:                                   "num_key_value_heads is -1",
		`{"num_hidden_layers":4,"num_key_value_heads":1,"head_dim":8,"torch_dtype":"int3"}`:               `torch_dtype is "int3"`,
		`{"num_hidden_layers":1,"num_key_value_heads":1,"head_dim":8,"layer_types":["linear_attention"]}`: "no KV cache",
	} {
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := ReadLayout(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", text, l, err, want)
		}
	}
	if _, err := ReadLayout("gpt-9"); err == nil || !strings.Contains(err.Error(), "known model") || !strings.Contains(err.Error(), "llama-3.1-8b") {
		t.Error(err)
	}
}

// FuzzConfig: whatever a config.json says, sizes are positive or it is an error.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"num_hidden_layers":4,"kv_lora_rank":512,"qk_rope_head_dim":64,"layer_types":["full_attention"],"text_config":{"num_hidden_layers":1}}`))
	f.Add([]byte(`{"num_attention_heads":8,"hidden_size":3,"num_hidden_layers":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := model.Parse(text)
		if err != nil {
			return
		}
		l, err := layout(&c)
		for _, s := range l.Sizes(16) {
			if err == nil && s.Bytes < 1 {
				t.Errorf("%s: %+v", text, l)
			}
		}
	})
}
