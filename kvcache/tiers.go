package kvcache

import (
	"encoding/binary"
	"slices"
)

// TierStats count what the tiers of a node did since they were made.
type TierStats struct {
	HostHits, DiskHits uint64 // prompt tokens that the pool did not have, and a tier did
	Loaded, Stored     uint64 // blocks copied from host memory to the GPU, and back
	Read, Written      uint64 // blocks copied from the disk to host memory, and back
}

// Tiers are the host memory and the disk below a pool: which prefixes they hold. They are those of
// vLLM's TieringOffloadingManager (v1/kv_offload/tiering/manager.py, read in 0.32):
// every full block is copied to host memory once its KV is there, and from there to the disk. Each
// tier forgets by itself what was used longest ago. What the disk alone has is copied to
// host memory before it goes to the GPU.
//
//	pool ── Want ... Stored ──▶ host ── Stored ... Written ──▶ disk
//	  ◀────── Find ───────────   ◀────── Find ... Read ────────
//
// It is a pure state machine, and touches no memory: whoever copies says when that is over. nil
// Tiers hold nothing.
type Tiers struct {
	host, disk *tier
	coming     map[Hash]struct{} // on their way to host memory
	stats      TierStats
}

// NewTiers returns tiers with room for so many blocks, which hold nothing; nil if host memory has
// no room, since all that goes to the disk or comes from it passes there.
func NewTiers(hostBlocks, diskBlocks int) *Tiers {
	if hostBlocks <= 0 {
		return nil
	}
	return &Tiers{host: newTier(hostBlocks), disk: newTier(diskBlocks), coming: make(map[Hash]struct{})}
}

// OwnHash names a full block of a sequence that is nobody else's: one with tokens of its output.
// id is the sequence's in its scheduler, index the block's place in it.
func OwnHash(id uint64, index int) (h Hash) {
	binary.LittleEndian.PutUint64(h[:], id)
	binary.LittleEndian.PutUint32(h[8:], uint32(index))
	copy(h[12:], "own ") // no hash ends so but by chance
	return h
}

// Want reports whether a block with the full prefix h, whose KV is in the pool, is to be copied to
// host memory: it is not there, nor on its way. From now on it is, until Stored.
func (t *Tiers) Want(h Hash) bool {
	if t == nil || t.host.has(h) {
		return false
	}
	if _, ok := t.coming[h]; ok {
		return false
	}
	t.coming[h] = struct{}{}
	return true
}

// Stored says that these blocks, in the order of their sequence, have come to host memory. It
// returns those that the disk lacks.
func (t *Tiers) Stored(hashes []Hash) (lacks []Hash) {
	t.stats.Stored += uint64(len(hashes))
	for _, h := range slices.Backward(hashes) { // a prefix is of use only with what is before it
		if _, ok := t.coming[h]; !ok {
			continue // forgotten meanwhile
		}
		delete(t.coming, h)
		t.host.put(h)
		if t.disk.room > 0 && !t.disk.has(h) {
			lacks = append(lacks, h)
		}
	}
	return lacks
}

// Held are those of these blocks that are in host memory still: the others cannot be copied from
// there any more.
func (t *Tiers) Held(hashes []Hash) []Hash {
	return slices.DeleteFunc(hashes, func(h Hash) bool { return !t.host.has(h) })
}

// Written says that these blocks have come to the disk, the last of their sequence first.
func (t *Tiers) Written(hashes []Hash) {
	t.stats.Written += uint64(len(hashes))
	for _, h := range hashes {
		t.disk.put(h)
	}
}

// Found is how many blocks the tiers have of a sequence, and how many of these the disk alone.
type Found struct{ Blocks, Disk int }

// Find looks up a sequence's blocks, of which the pool has the first ones: those that follow, up to
// the first that no tier has. All that the tiers have of the sequence counts as used now.
func (t *Tiers) Find(hashes []Hash, pooled int) (f Found) {
	if t == nil {
		return f
	}
	for _, h := range slices.Backward(hashes) {
		t.host.touch(h)
		t.disk.touch(h)
	}
	for _, h := range hashes[pooled:] {
		switch {
		case t.host.has(h):
		case t.disk.has(h):
			f.Disk++
		default:
			return f
		}
		f.Blocks++
	}
	return f
}

// Hit counts tokens of a prompt that were found.
func (t *Tiers) Hit(f Found, blockTokens int) {
	t.stats.HostHits += uint64((f.Blocks - f.Disk) * blockTokens)
	t.stats.DiskHits += uint64(f.Disk * blockTokens)
}

// Read says that blocks which were found have come from the disk to host memory, disk of them.
func (t *Tiers) Read(hashes []Hash, disk int) {
	t.stats.Read += uint64(disk)
	for _, h := range slices.Backward(hashes) {
		t.host.put(h)
	}
}

// Loaded says that so many blocks have come from host memory to the GPU.
func (t *Tiers) Loaded(blocks int) { t.stats.Loaded += uint64(blocks) }

// Forget forgets blocks, also those that are on their way.
func (t *Tiers) Forget(hashes []Hash) {
	for _, h := range hashes {
		delete(t.coming, h)
		t.host.take(h)
		t.disk.take(h)
	}
}

// Flush forgets all blocks.
func (t *Tiers) Flush() {
	if t != nil {
		t.host, t.disk = newTier(t.host.room), newTier(t.disk.room)
		clear(t.coming)
	}
}

// Stats returns the counts so far.
func (t *Tiers) Stats() TierStats {
	if t == nil {
		return TierStats{}
	}
	return t.stats
}

// A tier is prefixes, up to room of them, the one used longest ago at the front of lru. Its slots
// are blocks as a pool has them, of which it uses hash and link.
type tier struct {
	room  int
	index *Index
	slots []prefix
	free  []BlockID
	lru   lruList
}

func newTier(room int) *tier {
	t := &tier{room: room, lru: newLRUList()}
	t.index = NewIndex(func(place uint32) Hash { return t.slots[place].hash })
	return t
}

func (t *tier) has(h Hash) bool {
	_, ok := t.index.Find(h)
	return ok
}

// touch has a prefix be the one used last, if it is there.
func (t *tier) touch(h Hash) bool {
	place, ok := t.index.Find(h)
	if ok {
		t.lru.remove(t.slots, BlockID(place))
		t.lru.pushBack(t.slots, BlockID(place))
	}
	return ok
}

// put has a prefix be there, and the one used last.
func (t *tier) put(h Hash) {
	if t.touch(h) || t.room <= 0 {
		return
	}
	if t.lru.len >= t.room {
		t.take(t.slots[t.lru.front].hash)
	}
	var id BlockID
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		id = BlockID(len(t.slots))
		t.slots = append(t.slots, prefix{})
	}
	t.slots[id].hash = h
	t.index.Add(h, uint32(id))
	t.lru.pushBack(t.slots, id)
}

func (t *tier) take(h Hash) {
	if place, ok := t.index.Find(h); ok {
		t.lru.remove(t.slots, BlockID(place))
		t.index.Remove(place)
		t.free = append(t.free, BlockID(place))
	}
}
