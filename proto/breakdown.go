package proto

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
}
