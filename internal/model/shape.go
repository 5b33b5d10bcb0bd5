package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Shape is what a model is made of. Counts are of parameters, in all layers unless they say
// otherwise.
type Shape struct {
	Layers, Hidden, Vocab int
	MaxLen                int // tokens that it was made for; 0: it does not say
	Window                int // tokens that some layers look back; 0: all do to the first

	Heads           int  // of queries
	KVHeads, KVElem int  // KVHeads x KVElem elements a token and layer; latent attention has one head
	Latent          bool // latent attention
	QKNorm          bool // queries and keys are normalised

	Embedding float64 // the table of input embeddings
	Head      float64 // the output matrix, which may be the same table
	Tied      bool    // it is
	Norms     float64
	// Linear layers that every token goes through: attention, feed-forward layers that are not
	// of experts, and shared experts. Each GPU of several has the Copied ones whole.
	Linear, Copied float64
	Router         float64

	Experts, PerToken int     // of a layer that has them; 0: the model has none
	Expert            float64 // one expert of one layer
	ExpertLayers      int
	ExpertWidth       int // intermediate elements of an expert
	SharedExperts     bool
	Width             int // intermediate elements of a feed-forward layer that is not of experts

	// PairFlops are the operations of attention for a new token and one before it: a
	// multiplication and an addition for each element of scores and of sums, of each head.
	PairFlops float64
	// Attention is how many elements of queries, keys, values and sums a token has in a layer.
	Attention int

	Quantization Quantization
}

// families are the kinds of model that a Shape can be made of: decoders with RMSNorm and gated
// feed-forward layers. The value says whether they normalise queries and keys.
var families = map[string]bool{
	"llama": false, "mistral": false, "mixtral": false, "qwen2": false, "qwen2_moe": false, "qwen3": true, "qwen3_moe": true,
	"deepseek_v2": false, "deepseek_v3": false, "kimi_k2": false,
}

// Params are all parameters.
func (s *Shape) Params() float64 {
	n := s.Embedding + s.Norms + s.Linear + s.Router + s.experts(s.Experts)
	if !s.Tied {
		n += s.Head
	}
	return n
}

// Active are the parameters that a token is multiplied with: all but the table that its
// embedding is looked up in, and the experts that it is not routed to.
func (s *Shape) Active() float64 {
	return s.Head + s.Norms + s.Linear + s.Router + s.experts(s.PerToken)
}

func (s *Shape) experts(n int) float64 { return float64(n) * s.Expert * float64(s.ExpertLayers) }

// ExpertBytes are those of one expert's weights, in all layers.
func (s *Shape) ExpertBytes() float64 { return s.experts(1) * s.Quantization.WeightBytes() }

// DenseBytes are those of what each step reads whatever its tokens: all weights but experts and
// the table of embeddings.
func (s *Shape) DenseBytes() float64 {
	return s.Linear*s.Quantization.WeightBytes() + 2*(s.Router+s.Norms+s.Head)
}

// CopiedBytes are those of DenseBytes that each GPU of several has whole.
func (s *Shape) CopiedBytes() float64 {
	return s.Copied*s.Quantization.WeightBytes() + 2*(s.Router+s.Norms)
}

// WeightBytes are those of all weights.
func (s *Shape) WeightBytes() float64 {
	n := s.DenseBytes() + float64(s.Experts)*s.ExpertBytes()
	if !s.Tied {
		n += 2 * s.Embedding
	}
	return n
}

// Shape says what the model is made of. An error names the field of config.json.
func (c *Config) Shape() (Shape, error) {
	qkNorm, ok := families[c.ModelType]
	if !ok {
		return Shape{}, fmt.Errorf("model_type is %q: %s are known; if the model is built like one of them, set model_type to that in a copy of config.json", c.ModelType, strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"hidden_size", c.Hidden}, {"vocab_size", c.Vocab}, {"num_attention_heads", c.Heads}, {"intermediate_size", c.Intermediate}} {
		if f.n == 0 {
			return Shape{}, fmt.Errorf("it does not say its %s", f.name)
		}
	}
	for _, t := range c.LayerTypes {
		if t != "full_attention" && t != "sliding_attention" {
			return Shape{}, fmt.Errorf("layer_types has %q: full_attention and sliding_attention are known", t)
		}
	}
	quantization, err := c.Quantized.quantization()
	if err != nil {
		return Shape{}, err
	}
	if quantization.Bits == 16 { // a model kept with other bits than 16 is served with 16
		quantization.Name = "16 bits"
	}
	s := Shape{
		Layers: c.Layers, Hidden: c.Hidden, Vocab: c.Vocab, MaxLen: c.MaxLen, Window: c.window(), Heads: c.Heads, QKNorm: qkNorm,
		Embedding: float64(c.Vocab) * float64(c.Hidden), Head: float64(c.Vocab) * float64(c.Hidden), Tied: c.Tied,
		Norms: float64(2*c.Layers+1) * float64(c.Hidden), Width: c.Intermediate, Quantization: quantization,
	}
	if err := c.attention(&s); err != nil {
		return Shape{}, err
	}
	return s, c.feedForward(&s)
}

// attention adds the weights of attention.
func (c *Config) attention(s *Shape) error {
	layers, hidden, heads := float64(c.Layers), float64(c.Hidden), float64(c.Heads)
	if c.KVRank == 0 {
		dim, kv := c.headDim(), c.kvHeads()
		if dim == 0 {
			return fmt.Errorf("head_dim is missing, and hidden_size (%d) has less than one element for each of %d heads", c.Hidden, c.Heads)
		}
		if c.Heads%kv != 0 {
			return fmt.Errorf("num_key_value_heads is %d: it must divide num_attention_heads (%d)", kv, c.Heads)
		}
		s.KVHeads, s.KVElem = kv, 2*dim
		s.Attention = 2 * (c.Heads + kv) * dim
		s.Linear += layers * hidden * float64(s.Attention)
		s.PairFlops = layers * 4 * heads * float64(dim)
		return nil
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"qk_rope_head_dim", c.RopeDim}, {"qk_nope_head_dim", c.NopeDim}, {"v_head_dim", c.ValueDim}} {
		if f.n == 0 {
			return fmt.Errorf("it has a kv_lora_rank and does not say its %s", f.name)
		}
	}
	if (c.KVRank+c.RopeDim)%2 != 0 {
		return fmt.Errorf("kv_lora_rank + qk_rope_head_dim is %d: it must be even", c.KVRank+c.RopeDim)
	}
	s.Latent, s.KVHeads, s.KVElem = true, 1, c.KVRank+c.RopeDim
	key, value, rank := float64(c.NopeDim+c.RopeDim), float64(c.ValueDim), float64(c.KVRank)
	down := hidden * (rank + float64(c.RopeDim))
	query := hidden * heads * key
	if c.QRank > 0 {
		down += hidden * float64(c.QRank)
		query = float64(c.QRank) * heads * key
	}
	s.Copied = layers * down
	s.Linear += layers * (down + query + rank*heads*(float64(c.NopeDim)+value) + heads*value*hidden)
	s.PairFlops = layers * 2 * heads * (key + value)
	s.Attention = c.Heads * 2 * (c.NopeDim + c.RopeDim + c.ValueDim)
	return nil
}

// feedForward adds the weights of feed-forward layers, of which each has three matrices: gate,
// up and down.
func (c *Config) feedForward(s *Shape) error {
	gated := func(width int) float64 { return 3 * float64(c.Hidden) * float64(width) }
	s.Experts = max(c.NumExperts, c.NumLocalExperts, c.NumRoutedExperts)
	if s.Experts == 0 {
		s.Linear += float64(c.Layers) * gated(c.Intermediate)
		return nil
	}
	if s.PerToken = c.PerToken; s.PerToken < 1 || s.PerToken > s.Experts {
		return fmt.Errorf("num_experts_per_tok is %d: it must be 1 to %d, the number of experts", s.PerToken, s.Experts)
	}
	for i := range c.Layers {
		if i >= c.FirstDense && i%max(c.ExpertEvery, 1) == 0 && (i+1)%max(c.SparseStep, 1) == 0 && !slices.Contains(c.DenseLayers, i) {
			s.ExpertLayers++
		}
	}
	if s.ExpertLayers == 0 {
		return fmt.Errorf("first_k_dense_replace is %d: no layer of %d is left for the experts", c.FirstDense, c.Layers)
	}
	s.ExpertWidth = c.ExpertIntermediate
	s.ExpertWidth = cmp.Or(s.ExpertWidth, c.Intermediate)
	shared := cmp.Or(c.SharedIntermediate, c.SharedExperts*s.ExpertWidth)
	s.SharedExperts = shared > 0
	s.Expert = gated(s.ExpertWidth)
	s.Linear += float64(c.Layers-s.ExpertLayers)*gated(c.Intermediate) + float64(s.ExpertLayers)*gated(shared)
	s.Router = float64(s.ExpertLayers) * float64(c.Hidden) * float64(s.Experts)
	return nil
}
