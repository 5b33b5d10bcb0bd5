package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
)

// A Hash names a prefix: all tokens from the start of a sequence to the end of
// a full block. Two blocks with the same Hash hold the same KV, because
// attention makes a token's KV depend on everything before it.
//
// It is SHA-256 cut to 128 bits. A weak hash is not enough: prompts come from
// clients, and a collision would serve one client's KV to another.
type Hash [16]byte

// String is the first 8 bytes in hex, for logs and transcripts.
func (h Hash) String() string { return hex.EncodeToString(h[:8]) }

// HashBlock is the hash of the prefix that ends with block, a full block of
// tokens, where parent is the hash of the prefix before it: Root for the first
// block. The length of block is part of the hashed message, so block
// sizes do not meet.
func HashBlock(parent Hash, block []Token) Hash {
	var buf [len(parent) + 4*64]byte // blocks of up to 64 tokens stay off the heap
	msg := append(buf[:0], parent[:]...)
	for _, t := range block {
		msg = binary.LittleEndian.AppendUint32(msg, t)
	}
	sum := sha256.Sum256(msg)
	return Hash(sum[:len(parent)])
}

// Root returns the hash of the empty prefix under a LoRA adapter and a cache salt, where
// PrefixHashes begins: the zero Hash for the model itself without a salt. An adapter changes
// the weights that KV is computed with, so the same tokens have other KV under it and must
// have other hashes. A salt separates the prefixes of tenants who must not learn from a hit
// that another one has sent the same prompt.
func Root(adapter, salt string) Hash {
	if adapter == "" && salt == "" {
		return Hash{}
	}
	// No block's message begins so. The length keeps a name from reaching into the salt.
	sum := sha256.Sum256(fmt.Appendf(nil, "kvferry prefix root\x00%d %s%s", len(adapter), adapter, salt))
	return Hash(sum[:len(Hash{})])
}

// PrefixHashes returns one hash per full block of tokens, in order, from root on. Tokens
// after the last full block have none. blockTokens must be positive.
func PrefixHashes(root Hash, tokens []Token, blockTokens int) []Hash {
	hashes := make([]Hash, 0, len(tokens)/blockTokens)
	h := root
	for block := range slices.Chunk(tokens, blockTokens) {
		if len(block) < blockTokens {
			break
		}
		h = HashBlock(h, block)
		hashes = append(hashes, h)
	}
	return hashes
}
