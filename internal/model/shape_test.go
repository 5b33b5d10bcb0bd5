package model

import (
	"math"
	"strings"
	"testing"
)

// TestKnownModels: the counts that the models' makers publish, to 1 %; of active parameters,
// which they round to whole billions, to half of one.
func TestKnownModels(t *testing.T) {
	for name, want := range map[string]struct{ params, active, kv float64 }{
		"qwen2.5-7b":           {7.62e9, 7.07e9, 57344},
		"qwen2.5-7b-gptq-int4": {7.62e9, 7.07e9, 57344},
		"qwen2.5-0.5b":         {0.494e9, 0.494e9, 12288},
		"llama-3-8b":           {8.03e9, 7.5e9, 131072},
		"mixtral-8x7b":         {46.7e9, 12.7e9, 131072},
		"deepseek-v3":          {671e9, 37e9, 70272},
		"qwen3-coder-480b":     {480e9, 35e9, 253952},
	} {
		c, err := Read("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Shape()
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Params(); math.Abs(got/want.params-1) > 0.01 {
			t.Errorf("%s has %.4g parameters, want %.4g", name, got, want.params)
		}
		if got := s.Active(); math.Abs(got-want.active) > 0.5e9 {
			t.Errorf("%s: %.4g parameters are active, want %.4g", name, got, want.active)
		}
		if got := float64(2 * s.Layers * s.KVHeads * s.KVElem); got != want.kv {
			t.Errorf("%s has %v bytes of KV a token, want %v", name, got, want.kv)
		}
		if s.Window != 0 {
			t.Errorf("%s has a window of %d", name, s.Window)
		}
	}
}

// TestWeightBytes: published sizes. The files of Qwen2.5-7B-Instruct-GPTQ-Int4 have 5.58 GB,
// vLLM says that Llama-3-8B takes 14.99 GiB, and DeepSeek-V3's weights have 8 bits.
func TestWeightBytes(t *testing.T) {
	for name, want := range map[string]float64{"qwen2.5-7b-gptq-int4": 5.58e9, "llama-3-8b": 14.99 * (1 << 30), "deepseek-v3": 673e9} {
		c, _ := Read("testdata/" + name + ".json")
		if s, err := c.Shape(); err != nil || math.Abs(s.WeightBytes()/want-1) > 0.01 {
			t.Errorf("%s: %.4g bytes, %v, want %.4g", name, s.WeightBytes(), err, want)
		}
	}
}

const llama = `"model_type":"llama","num_hidden_layers":2,"hidden_size":64,"intermediate_size":128,"vocab_size":100,"num_attention_heads":4`

func TestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                         "no model's config.json",
		`{"num_hidden_layers":"2"}`: "num_hidden_layers: string: want a whole number",
		`{"num_hidden_layers":2}`:   `model_type is ""`,
		`{"model_type":"mamba","num_hidden_layers":2}`:                                      "if the model is built like one of them, set model_type to that in a copy of config.json",
		`{"model_type":"llama","num_hidden_layers":2}`:                                      "does not say its hidden_size",
		`{` + llama + `,"num_key_value_heads":3}`:                                           "must divide num_attention_heads",
		`{` + llama + `,"layer_types":["linear_attention"]}`:                                "layer_types has",
		`{` + llama + `,"num_experts":8}`:                                                   "num_experts_per_tok is 0",
		`{` + llama + `,"num_experts":8,"num_experts_per_tok":2,"first_k_dense_replace":2}`: "no layer of 2 is left",
		`{` + llama + `,"kv_lora_rank":8}`:                                                  "does not say its qk_rope_head_dim",
		`{` + llama + `,"quantization_config":{"quant_method":"mxfp4"}}`:                    "quantization_config.quant_method",
		`{` + llama + `,"quantization_config":{"quant_method":"gptq"}}`:                     "quantization_config.bits is 0",
	} {
		c, err := Parse([]byte(text))
		if err == nil {
			_, err = c.Shape()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestWindow: Mistral has one, Qwen only if it says so, and layers may say.
func TestWindow(t *testing.T) {
	for text, want := range map[string]int{
		`{"model_type":"mistral","num_hidden_layers":1,"sliding_window":4096}`:                                   4096,
		`{"model_type":"qwen2","num_hidden_layers":1,"sliding_window":4096}`:                                     0,
		`{"model_type":"qwen2","num_hidden_layers":1,"sliding_window":4096,"use_sliding_window":true}`:           4096,
		`{"model_type":"qwen3","num_hidden_layers":1,"sliding_window":4096,"layer_types":["full_attention"]}`:    0,
		`{"model_type":"qwen3","num_hidden_layers":1,"sliding_window":4096,"layer_types":["sliding_attention"]}`: 4096,
	} {
		if c, err := Parse([]byte(text)); err != nil || c.window() != want {
			t.Errorf("%s: %d, %v, want %d", text, c.window(), err, want)
		}
	}
}

func TestQuantizations(t *testing.T) {
	for text, want := range map[string]Quantization{
		`{"quant_method":"awq","bits":4,"group_size":64}`: {Name: "awq", Bits: 4, Group: 64, Compute: "fp16"},
		`{"quant_method":"fp8"}`:                          {Name: "fp8", Bits: 8, Compute: "fp8"},
		`{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":8,"type":"int"},"input_activations":{"num_bits":8,"type":"int"}}}}`: {Name: "compressed-tensors", Bits: 8, Compute: "int8"},
	} {
		c, err := Parse([]byte(`{` + llama + `,"quantization_config":` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Shape(); err != nil || s.Quantization != want {
			t.Errorf("%s: %+v, %v, want %+v", text, s.Quantization, err, want)
		}
	}
	if got := (Quantization{Bits: 4, Group: 128}).WeightBytes(); got != (4+20.0/128)/8 {
		t.Errorf("a weight of 4 bits in groups of 128 has %v bytes", got)
	}
}

// FuzzShape: whatever a config.json says, it is an error or a model of some weight.
func FuzzShape(f *testing.F) {
	f.Add([]byte(`{` + llama + `,"num_experts":8,"num_experts_per_tok":2}`))
	f.Add([]byte(`{` + llama + `,"kv_lora_rank":8,"qk_rope_head_dim":2,"qk_nope_head_dim":2,"v_head_dim":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		s, err := c.Shape()
		if err == nil && !(s.Params() > 0 && s.Active() > 0 && s.WeightBytes() > 0 && s.PairFlops > 0 && s.Active() <= s.Params()+s.Head) {
			t.Errorf("%s: %+v", text, s)
		}
	})
}
