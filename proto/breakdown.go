package proto

import "encoding/binary"

// Sum adds b, which may be nil.
func (sum *Breakdown) Sum(b *Breakdown) {
	if b == nil {
		return
	}
	sum.ProxyUs += b.ProxyUs
	sum.QueueUs += b.QueueUs
	sum.PrefillUs += b.PrefillUs
	sum.PostUs += b.PostUs
	sum.WireUs += b.WireUs
	sum.LandUs += b.LandUs
	sum.FirstDecodeUs += b.FirstDecodeUs
	sum.KvBytes += b.KvBytes
	sum.KvBlocksChecked += b.KvBlocksChecked
	sum.KvBlocksBad += b.KvBlocksBad
	sum.MigratedBytes += b.MigratedBytes
	sum.Migrations += b.Migrations
	sum.MigrationPauseUs += b.MigrationPauseUs
}

// TokenIDs are tokens as messages have them: four bytes each, little endian.
func TokenIDs(b []byte) []uint32 {
	ids := make([]uint32, len(b)/4)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return ids
}

// TokenBytes is the inverse of TokenIDs.
func TokenBytes(ids []uint32) []byte {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}
