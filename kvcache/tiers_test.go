package kvcache

import (
	"strings"
	"testing"

	"kvferry/internal/config"
)

func name(n byte) Hash { return Hash{n} }

func names(all ...byte) (hashes []Hash) {
	for _, n := range all {
		hashes = append(hashes, name(n))
	}
	return hashes
}

// TestTiers: what is stored is in host memory and is to be written to the disk; each forgets what
// was used longest ago, of one sequence its end first. What comes from the disk is in host
// memory again. Only what has no gap is found.
func TestTiers(t *testing.T) {
	tiers := NewTiers(3, 4)
	store := func(all ...byte) []Hash {
		for _, n := range all {
			if !tiers.Want(name(n)) {
				t.Errorf("block %d is not wanted", n)
			}
			if tiers.Want(name(n)) {
				t.Errorf("block %d is wanted twice", n)
			}
		}
		if f := tiers.Find(names(all...), 0); f.Blocks != 0 {
			t.Errorf("found %+v of %v before they are stored", f, all)
		}
		return tiers.Stored(names(all...))
	}
	found := func(want Found, pooled int, all ...byte) {
		t.Helper()
		if got := tiers.Find(names(all...), pooled); got != want {
			t.Errorf("%v from %d on: %+v, want %+v", all, pooled, got, want)
		}
	}
	tiers.Written(tiers.Held(store(1, 2)))
	lacks := store(3, 4) // 2, the end of a sequence, leaves host memory
	found(Found{2, 0}, 0, 3, 4)
	found(Found{2, 1}, 0, 1, 2)
	found(Found{1, 1}, 1, 1, 2, 9, 3)
	found(Found{}, 0, 9, 1)
	tiers.Written(tiers.Held(lacks))
	found(Found{4, 1}, 0, 1, 2, 3, 4)

	lacks = store(5) // 4 leaves host memory
	store(6, 7, 8)
	if held := tiers.Held(lacks); len(held) != 0 {
		t.Errorf("%v is to be written, and has left host memory", held)
	}
	found(Found{4, 4}, 0, 1, 2, 3, 4)
	tiers.Read(names(1, 2), 2) // 7 and 8 leave
	found(Found{3, 0}, 0, 1, 2, 6)

	tiers.Want(name(20))
	tiers.Forget(names(1, 20))
	if lacks := tiers.Stored(names(20)); len(lacks) != 0 {
		t.Errorf("%v is stored, and was forgotten on its way", lacks)
	}
	found(Found{}, 0, 1)
	found(Found{}, 0, 20)
	tiers.Hit(Found{5, 2}, 16)
	tiers.Loaded(7)
	if got, want := tiers.Stats(), (TierStats{HostHits: 48, DiskHits: 32, Loaded: 7, Stored: 9, Read: 2, Written: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	tiers.Flush()
	found(Found{}, 0, 2)

	none := TierConfig{}.New(Geometry{Layers: 1, KVHeads: 1, HeadDim: 1, ElemBytes: 1, BlockTokens: 1})
	none.Flush()
	if none != nil || none.Want(name(1)) || none.Find(names(1), 0) != (Found{}) || none.Stats() != (TierStats{}) {
		t.Error("tiers without room hold something")
	}
}

// TestOwnHash: blocks of a sequence alone have names of their own.
func TestOwnHash(t *testing.T) {
	seen := map[Hash]bool{{}: true, HashBlock(Hash{}, []Token{1}): true}
	for id := range uint64(4) {
		for i := range 4 {
			h := OwnHash(id<<40, i)
			if seen[h] {
				t.Errorf("block %d of %d has the name of another", i, id<<40)
			}
			seen[h] = true
		}
	}
}

// TestTierConfig: sizes and rates that cannot be are named, with what would do.
func TestTierConfig(t *testing.T) {
	ok := TierConfig{HostGiB: 1, DiskGiB: 1, PCIe: 25, Disk: 5}
	g := Geometry{Layers: 1, KVHeads: 1, HeadDim: 512, ElemBytes: 1, BlockTokens: 1} // 1 KiB
	if tiers := ok.New(g); tiers.host.room != 1<<20 || tiers.disk.room != 1<<20 {
		t.Errorf("room for %d and %d blocks of 1 KiB in 1 GiB", tiers.host.room, tiers.disk.room)
	}
	if n := (TierConfig{HostGiB: 1, DiskGiB: 2}).Holds(5, g); n != 2<<20 {
		t.Errorf("2 GiB hold %d blocks of 1 KiB", n)
	}
	if n := (TierConfig{}).Holds(5, g); n != 5 {
		t.Errorf("a pool of 5 blocks holds %d", n)
	}
	for _, c := range []struct {
		spoil   func(*TierConfig)
		caching bool
		want    string
	}{
		{func(*TierConfig) {}, true, ""},
		{func(c *TierConfig) { *c = TierConfig{} }, false, ""},
		{func(c *TierConfig) { c.DiskGiB, c.Disk = 0, 0 }, true, ""},
		{func(*TierConfig) {}, false, "HostGiB: 1: what goes to host memory is found by its prefix: use --enable-prefix-caching too"},
		{func(c *TierConfig) { c.HostGiB = 0 }, true, "DiskGiB: 1: what goes to the disk and comes from it passes host memory: use --kv-offloading-size too"},
		{func(c *TierConfig) { c.HostGiB = -1 }, true, "HostGiB: -1: use a number"},
		{func(c *TierConfig) { c.PCIe = 0 }, true, "PCIe: 0: use a number above 0"},
		{func(c *TierConfig) { c.Disk = 0 }, true, "Disk: 0: use a number above 0"},
	} {
		got := ok
		c.spoil(&got)
		err := got.Validate(c.caching)
		if text := config.Named(err, nil); (c.want == "") != (err == nil) || err != nil && !strings.Contains(text.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", got, err, c.want)
		}
	}
}
