package kvcache

import "kvferry/internal/config"

// A Token is a token id of the model's vocabulary.
type Token = uint32

// Geometry is the shape of a model's KV cache.
//
// A block is BlockTokens consecutive tokens of one sequence, and lies in one
// slot of the slab. A slot is layer-major, so that a layer of a block is one
// contiguous range and can leave while the next layer is computed:
//
//	| layer 0: K[BlockTokens] V[BlockTokens] | layer 1: K V | ... | hidden[BlockTokens] |
//
// K and V of a token are KVHeads x HeadDim elements each. The hidden-state plane
// is HiddenSize elements a token; only hand-off v0 sends it, as the published
// system did. For Qwen2.5-7B-Instruct (28 layers, 4 KV heads of 128, fp16,
// hidden 3584) and blocks of 16:
//
//	KV of a token    28 x 2 x 4 x 128 x 2 B =    57,344 B
//	layer of a block 16 x 2 x 4 x 128 x 2 B =    32,768 B
//	KV of a block    28 x 32,768 B          =   917,504 B
//	hidden of a block 16 x 3584 x 2 B       =   114,688 B
//	slot                                      1,032,192 B = 252 pages
type Geometry struct {
	Layers      int `json:"layers"`       // transformer layers
	KVHeads     int `json:"kv_heads"`     // KV heads a layer (after grouping, GQA)
	HeadDim     int `json:"head_dim"`     // elements a head
	ElemBytes   int `json:"elem_bytes"`   // bytes an element: 2 for fp16 and bf16, 1 for fp8
	BlockTokens int `json:"block_tokens"` // tokens a block
	HiddenSize  int `json:"hidden_size"`  // elements of a token's hidden state; 0 leaves the plane out
}

// maxSlotBytes bounds a slot so that every size of a valid Geometry fits an int
// of 32 bits, and every offset of a slab of 1<<32 blocks an int64. The largest
// open models need 2 MB a block of 16; 1 GiB is no limit in practice.
const maxSlotBytes = 1 << 30

// Validate lists every fault by its field, as a [config.Invalid]. The methods below may be
// used only after it returned nil.
func (g Geometry) Validate() error {
	var bad config.Faults
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"layers", g.Layers, 1},
		{"kv_heads", g.KVHeads, 1},
		{"head_dim", g.HeadDim, 1},
		{"elem_bytes", g.ElemBytes, 1},
		{"block_tokens", g.BlockTokens, 1},
		{"hidden_size", g.HiddenSize, 0},
	} {
		if f.value < f.least {
			bad.Add(f.name, f.value, "use %d or more", f.least)
		}
	}
	if len(bad) > 0 {
		return bad.Err("kvcache.Geometry")
	}
	kv, fits := product(g.Layers, 2, g.BlockTokens, g.KVHeads, g.HeadDim, g.ElemBytes)
	hidden, hiddenFits := product(g.BlockTokens, g.HiddenSize, g.ElemBytes)
	if !fits || !hiddenFits || kv+hidden > maxSlotBytes {
		bad.Add("block_tokens", g.BlockTokens, "a block of so many tokens takes more than %d bytes: use less, or check the model's shape", maxSlotBytes)
	}
	return bad.Err("kvcache.Geometry")
}

// product multiplies, and reports whether the result is at most maxSlotBytes.
// A zero factor may follow others, so every step is checked.
func product(factors ...int) (int, bool) {
	p := 1
	for _, f := range factors {
		if f != 0 && p > maxSlotBytes/f {
			return 0, false
		}
		p *= f
	}
	return p, true
}

// rowBytes is K, or V, of one token in one layer.
func (g Geometry) rowBytes() int { return g.KVHeads * g.HeadDim * g.ElemBytes }

// TokenBytes is K and V of one token in all layers.
func (g Geometry) TokenBytes() int { return g.Layers * 2 * g.rowBytes() }

// HiddenTokenBytes is the hidden state of one token.
func (g Geometry) HiddenTokenBytes() int { return g.HiddenSize * g.ElemBytes }

// LayerBytes is one layer of one block: K of its tokens, then V.
func (g Geometry) LayerBytes() int { return 2 * g.planeBytes() }

// planeBytes is K, or V, of one layer of one block.
func (g Geometry) planeBytes() int { return g.BlockTokens * g.rowBytes() }

// BlockBytes is K and V of one block in all layers.
func (g Geometry) BlockBytes() int { return g.Layers * g.LayerBytes() }

// HiddenBytes is the hidden-state plane of one block.
func (g Geometry) HiddenBytes() int { return g.BlockTokens * g.HiddenTokenBytes() }

// SlotBytes is the distance between two blocks in a slab: BlockBytes and
// HiddenBytes.
func (g Geometry) SlotBytes() int { return g.BlockBytes() + g.HiddenBytes() }

// Blocks is the number of blocks that hold tokens tokens, the last of them
// perhaps in part. It is 0 for 0 and for a negative number.
func (g Geometry) Blocks(tokens int) int { return blocksFor(tokens, g.BlockTokens) }

func blocksFor(tokens, blockTokens int) int {
	if tokens <= 0 {
		return 0
	}
	return (tokens-1)/blockTokens + 1
}

// BlockOffset is where a block's slot begins, from the start of any slab of
// this geometry: a peer's slab too.
func (g Geometry) BlockOffset(id BlockID) int64 { return int64(id) * int64(g.SlotBytes()) }

// LayerOffset is where one layer of a block begins, LayerBytes long.
func (g Geometry) LayerOffset(id BlockID, layer int) int64 {
	return g.BlockOffset(id) + int64(layer)*int64(g.LayerBytes())
}

// HiddenOffset is where the hidden-state plane of a block begins, HiddenBytes
// long.
func (g Geometry) HiddenOffset(id BlockID) int64 {
	return g.BlockOffset(id) + int64(g.BlockBytes())
}
