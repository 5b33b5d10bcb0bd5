package metrics

import "kvferry/proto"

const (
	bySource = "Prompt tokens that were found, by where: device (the engine's prefix cache), host memory or disk below it."
	// diskTier is the tier that is the disk, as vLLM's metrics name it: the first below host memory, of files.
	diskTier = "1:fs"
)

// loadCounts are the counts in a node's load that do not go back, and their metrics: one without a name is none. The
// names of the tiers below the prefix cache are those that vLLM 0.32 has for its OffloadingConnector.
var loadCounts = []struct {
	of           func(*proto.Load) *uint64
	unit         float64 // of the metric
	name, help   string
	label, value string // beside the node's; empty: none
}{
	{func(l *proto.Load) *uint64 { return &l.Preemptions }, 1, "vllm:num_preemptions_total", "Sequences the engine preempted.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.PrefixQueries }, 1, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the engine's prefix cache.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.PrefixHits }, 1, "vllm:prefix_cache_hits_total", "Prompt tokens found there.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.PrefixHits }, 1, "vllm:prompt_tokens_cached_by_source_total", bySource, "source", "device"},
	{func(l *proto.Load) *uint64 { return &l.HostHits }, 1, "vllm:prompt_tokens_cached_by_source_total", bySource, "source", "host"},
	{func(l *proto.Load) *uint64 { return &l.DiskHits }, 1, "vllm:prompt_tokens_cached_by_source_total", bySource, "source", "disk"},
	{func(l *proto.Load) *uint64 { return &l.KvBytes }, 1, "kvferry:kv_bytes_total", "KV bytes that the engine's transfers moved.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.KvBlocksChecked }, 1, "kvferry:kv_blocks_checked_total", "KV blocks whose content was checked at the engine, their consumer.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.KvBlocksBad }, 1, "kvferry:kv_blocks_bad_total", "KV blocks that failed the check.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.KvTransfers }, 1, "", "", "", ""},
	{func(l *proto.Load) *uint64 { return &l.KvTransfersFailed }, 1, "vllm:nixl_num_failed_transfers_total", "KV transfers of the engine that failed.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.KvBytesLoaded }, 1, "vllm:kv_offload_load_bytes_total", "KV bytes that the engine copied from host memory to its GPU.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.KvBytesStored }, 1, "vllm:kv_offload_store_bytes_total", "KV bytes that the engine copied from its GPU to host memory.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.DiskBytesRead }, 1, "vllm:kv_offload_tiering_read_bytes_total", "KV bytes that the engine read from a tier below host memory.", "tier", diskTier},
	{func(l *proto.Load) *uint64 { return &l.DiskBytesWritten }, 1, "vllm:kv_offload_tiering_write_bytes_total", "KV bytes that the engine wrote there.", "tier", diskTier},
	{func(l *proto.Load) *uint64 { return &l.AdapterLoads }, 1, "kvferry:lora_loads_total", "LoRA adapters that the engine loaded into slots.", "", ""},
	{func(l *proto.Load) *uint64 { return &l.AdapterLoadUs }, 1e6, "kvferry:lora_load_seconds_total", "Time that the engine's steps took more for that.", "", ""},
}

// Steady has the counters of a node's report be no lower than those of the one before, whatever
// the node says.
func Steady(old, l *proto.Load) {
	for _, c := range loadCounts {
		*c.of(l) = max(*c.of(l), *c.of(old))
	}
}
