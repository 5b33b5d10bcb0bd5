package kvcache

import (
	"slices"
	"testing"
)

func TestPrefixHashes(t *testing.T) {
	tokens := testTokens(100)
	hashes := PrefixHashes(Hash{}, tokens, 16)
	if len(hashes) != 6 {
		t.Fatalf("100 tokens have %d full blocks of 16, want 6", len(hashes))
	}
	// One block at a time gives the same chain, as decoding needs it.
	var h Hash
	for i := range hashes {
		h = HashBlock(h, tokens[i*16:(i+1)*16])
		if h != hashes[i] {
			t.Errorf("block %d: %v block by block, %v at once", i, h, hashes[i])
		}
	}
	// A changed token changes its block's hash and all after it, none before.
	for changed := range tokens {
		other := slices.Clone(tokens)
		other[changed] ^= 1
		for i, h := range PrefixHashes(Hash{}, other, 16) {
			if same := h == hashes[i]; same != (i < changed/16) {
				t.Fatalf("token %d changed: hash of block %d same=%v", changed, i, same)
			}
		}
	}
	if !slices.Equal(PrefixHashes(Hash{}, tokens[:96], 16), hashes) {
		t.Error("tokens after the last full block change the hashes")
	}
	if got := PrefixHashes(Hash{}, tokens[:15], 16); len(got) != 0 {
		t.Errorf("15 tokens have the hashes %v", got)
	}
	if got := PrefixHashes(Hash{}, nil, 16); len(got) != 0 {
		t.Errorf("no tokens have the hashes %v", got)
	}
}

// Blocks of different sizes over the same tokens have different hashes, also
// when they end at the same token; and equal blocks at different depths too.
func TestPrefixHashesDistinct(t *testing.T) {
	seen := map[Hash]string{}
	for _, size := range []int{1, 2, 4, 8, 16, 32, 64, 128} {
		for i, h := range PrefixHashes(Hash{}, make([]Token, 256), size) {
			if other, taken := seen[h]; taken {
				t.Fatalf("block %d of size %d has the hash of %s", i, size, other)
			}
			seen[h] = h.String()
		}
	}
}

// TestRoots: the same tokens have other hashes and other KV under each adapter and each salt, in every
// block, and the model's own are as they always were.
func TestRoots(t *testing.T) {
	tokens := testTokens(64)
	if Root("", "") != (Hash{}) {
		t.Error("the model itself has a root: its hashes have changed")
	}
	seen, blocks := map[Hash][2]string{}, map[string][2]string{}
	block := make([]byte, small.LayerBytes())
	for _, r := range [][2]string{{"", ""}, {"sql", ""}, {"sql2", ""}, {"chat", ""}, {"", "sql"}, {"sql", "2"}, {"sq", "l2"}, {"", "sql2"}} {
		for i, h := range PrefixHashes(Root(r[0], r[1]), tokens, 16) {
			if other, taken := seen[h]; taken {
				t.Errorf("block %d has one hash under %q and %q", i, r, other)
			}
			seen[h] = r
		}
		NewContent(small, r[0], r[1], tokens).Fill(block, 0, 0)
		if other, taken := blocks[string(block)]; taken {
			t.Errorf("block 0 has the same KV under %q and %q", r, other)
		}
		blocks[string(block)] = r
	}
}
