package kvcache

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestGeometrySizes(t *testing.T) {
	llama70 := Geometry{Layers: 80, KVHeads: 8, HeadDim: 128, ElemBytes: 2, BlockTokens: 16, HiddenSize: 8192}
	for _, tc := range []struct {
		name                                                     string
		g                                                        Geometry
		token, hiddenToken, layer, block, hidden, slot, blocks14 int
	}{
		// blocks14: slots of KV alone in the 14 GB an A10 keeps beside int4 weights.
		{"Qwen2.5-7B", qwen, 57_344, 7_168, 32_768, 917_504, 114_688, 1_032_192, 15_258},
		{"Llama-3-70B", llama70, 327_680, 16_384, 65_536, 5_242_880, 262_144, 5_505_024, 2_670},
		{"odd", odd, 60, 77, 90, 180, 231, 411, 77_777_777},
		{"no hidden plane", Geometry{2, 1, 8, 1, 4, 0}, 32, 0, 64, 128, 0, 128, 109_375_000},
	} {
		g := tc.g
		if err := g.Validate(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		got := [...]int{
			g.TokenBytes(), g.HiddenTokenBytes(), g.LayerBytes(), g.BlockBytes(),
			g.HiddenBytes(), g.SlotBytes(), 14_000_000_000 / g.BlockBytes(),
		}
		want := [...]int{tc.token, tc.hiddenToken, tc.layer, tc.block, tc.hidden, tc.slot, tc.blocks14}
		if got != want {
			t.Errorf("%s: token, hidden token, layer, block, hidden, slot, blocks in 14 GB = %v, want %v", tc.name, got, want)
		}
	}
	// calibration.md: the published transfer of a 1,012-token prompt is 65.3 MB,
	// hidden states included; of 245 tokens 15.8 MB.
	for tokens, mb := range map[int]float64{1012: 65.3, 245: 15.8} {
		got := float64(tokens*(qwen.TokenBytes()+qwen.HiddenTokenBytes())) / 1e6
		if got < mb-0.05 || got > mb+0.05 {
			t.Errorf("%d tokens are %.2f MB, published %.1f", tokens, got, mb)
		}
	}
}

func TestGeometryBlocks(t *testing.T) {
	for tokens, want := range map[int]int{-1: 0, 0: 0, 1: 1, 15: 1, 16: 1, 17: 2, 245: 16, 1024: 64, 1025: 65, 1<<63 - 1: 1 << 59} {
		if got := qwen.Blocks(tokens); got != want {
			t.Errorf("Blocks(%d) = %d, want %d", tokens, got, want)
		}
	}
}

// The ranges of a slot lie side by side in the documented order, and slots
// follow each other.
func TestGeometryOffsets(t *testing.T) {
	for _, g := range []Geometry{qwen, small, odd} {
		at := int64(0)
		for id := range BlockID(3) {
			if got := g.BlockOffset(id); got != at {
				t.Errorf("BlockOffset(%d) = %d, want %d", id, got, at)
			}
			for l := range g.Layers {
				if got := g.LayerOffset(id, l); got != at {
					t.Errorf("LayerOffset(%d, %d) = %d, want %d", id, l, got, at)
				}
				at += int64(g.LayerBytes())
			}
			if got := g.HiddenOffset(id); got != at {
				t.Errorf("HiddenOffset(%d) = %d, want %d", id, got, at)
			}
			at += int64(g.HiddenBytes())
		}
	}
	if got, want := qwen.HiddenOffset(1<<32-1), int64(1<<32-1)*1_032_192+917_504; got != want {
		t.Errorf("HiddenOffset of the last block = %d, want %d", got, want)
	}
}

func TestGeometryValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		g    Geometry
		want []string // each on its own line of the error, in order
	}{
		{"zero", Geometry{}, []string{
			"layers: 0: use 1 or more", "kv_heads: 0: use", "head_dim: 0: use", "elem_bytes: 0: use", "block_tokens: 0: use",
		}},
		{"negative", Geometry{28, -4, 128, 2, 16, -1}, []string{"kv_heads: -4: use", "hidden_size: -1: use 0 or more"}},
		{"large", Geometry{80, 8, 128, 2, 1 << 20, 0}, []string{"block_tokens: 1048576: a block"}},
		{"overflow to small", Geometry{1 << 62, 1, 1, 4, 1, 0}, []string{"takes more than 1073741824 bytes"}},
		{"overflow to zero", Geometry{1 << 32, 1 << 32, 1, 1, 1, 0}, []string{"takes more than 1073741824 bytes"}},
		{"hidden overflow", Geometry{1, 1, 1, 1, 16, 1 << 62}, []string{"takes more than 1073741824 bytes"}},
		{"both just fit, not together", Geometry{1, 1, 1 << 28, 1, 1, 1<<29 + 1}, []string{"takes more than 1073741824 bytes"}},
	} {
		err := tc.g.Validate()
		if err == nil {
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(tc.want) {
			t.Errorf("%s: got %q, want %d faults", tc.name, lines, len(tc.want))
			continue
		}
		for i, want := range tc.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%s: got %q, want it to contain %q", tc.name, lines[i], want)
			}
		}
	}
	if err := (Geometry{1, 1, 1 << 28, 1, 1, 1 << 29}).Validate(); err != nil {
		t.Errorf("a slot of exactly 1 GiB: %v", err)
	}
}

// FuzzGeometry reads a geometry as a profile file brings it. Whatever Validate
// accepts has sizes that agree with each other and with exact arithmetic.
func FuzzGeometry(f *testing.F) {
	f.Add([]byte(`{"layers":28,"kv_heads":4,"head_dim":128,"elem_bytes":2,"block_tokens":16,"hidden_size":3584}`))
	f.Add([]byte(`{"layers":4611686018427387904,"kv_heads":4,"head_dim":1,"elem_bytes":1,"block_tokens":1}`))
	f.Add([]byte(`{"layers":1,"kv_heads":1,"head_dim":1,"elem_bytes":1,"block_tokens":1,"hidden_size":-1}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var g Geometry
		if json.Unmarshal(data, &g) != nil || g.Validate() != nil {
			return
		}
		slot := g.BlockTokens * (g.TokenBytes() + g.HiddenTokenBytes())
		if slot != g.SlotBytes() || slot < 1 || slot > maxSlotBytes {
			t.Fatalf("%+v: slot of %d bytes, from the tokens %d", g, g.SlotBytes(), slot)
		}
		if g.LayerBytes() < 2 || g.LayerBytes()*g.Layers != g.BlockBytes() || g.HiddenBytes() < 0 {
			t.Fatalf("%+v: layer %d, block %d, hidden %d", g, g.LayerBytes(), g.BlockBytes(), g.HiddenBytes())
		}
		last := BlockID(1<<32 - 1)
		if g.LayerOffset(last, g.Layers-1)+int64(g.LayerBytes()) != g.HiddenOffset(last) ||
			g.HiddenOffset(last)+int64(g.HiddenBytes()) != int64(1<<32)*int64(slot) {
			t.Fatalf("%+v: offsets of the last block overflow", g)
		}
	})
}
