package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"kvferry/proto"
)

// tiers counts what nodes' prefix caches and the tiers below them had, and what was copied between
// these, under the names that vLLM 0.32 has for its OffloadingConnector.
type tiers struct{ found, loaded, stored, read, written *prometheus.CounterVec }

// The tier that is the disk, as vLLM's metrics name it: the first below host memory, of files.
const diskTier = "1:fs"

func newTiers(labels func(more ...string) []string) tiers {
	vec := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels(more...))
	}
	return tiers{
		found:   vec("vllm:prompt_tokens_cached_by_source_total", "Prompt tokens that were found, by where: device (the engine's prefix cache), host memory or disk below it.", "source"),
		loaded:  vec("vllm:kv_offload_load_bytes_total", "KV bytes that the engine copied from host memory to its GPU."),
		stored:  vec("vllm:kv_offload_store_bytes_total", "KV bytes that the engine copied from its GPU to host memory."),
		read:    vec("vllm:kv_offload_tiering_read_bytes_total", "KV bytes that the engine read from a tier below host memory.", "tier"),
		written: vec("vllm:kv_offload_tiering_write_bytes_total", "KV bytes that the engine wrote there.", "tier"),
	}
}

func (t *tiers) all() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{t.found, t.loaded, t.stored, t.read, t.written}
}

// An engineTiers is one node's.
type engineTiers struct{ device, host, disk, loaded, stored, read, written prometheus.Counter }

func (t *tiers) engine(model, node string) engineTiers {
	return engineTiers{
		device: t.found.WithLabelValues(model, node, "device"), host: t.found.WithLabelValues(model, node, "host"), disk: t.found.WithLabelValues(model, node, "disk"),
		loaded: t.loaded.WithLabelValues(model, node), stored: t.stored.WithLabelValues(model, node),
		read: t.read.WithLabelValues(model, node, diskTier), written: t.written.WithLabelValues(model, node, diskTier),
	}
}

// count counts what a node did between two of its reports.
func (t *engineTiers) count(old, l *proto.Load) {
	for _, c := range []struct {
		counter  prometheus.Counter
		old, now uint64
	}{
		{t.device, old.PrefixHits, l.PrefixHits},
		{t.host, old.HostHits, l.HostHits},
		{t.disk, old.DiskHits, l.DiskHits},
		{t.loaded, old.KvBytesLoaded, l.KvBytesLoaded},
		{t.stored, old.KvBytesStored, l.KvBytesStored},
		{t.read, old.DiskBytesRead, l.DiskBytesRead},
		{t.written, old.DiskBytesWritten, l.DiskBytesWritten},
	} {
		c.counter.Add(float64(c.now - c.old))
	}
}

// Steady has the counters of a node's report be no lower than those of the one before, whatever
// the node says.
func Steady(old, l *proto.Load) {
	for _, c := range []struct{ now, old *uint64 }{
		{&l.Preemptions, &old.Preemptions},
		{&l.PrefixQueries, &old.PrefixQueries},
		{&l.PrefixHits, &old.PrefixHits},
		{&l.KvBytes, &old.KvBytes},
		{&l.KvBlocksChecked, &old.KvBlocksChecked},
		{&l.KvBlocksBad, &old.KvBlocksBad},
		{&l.KvTransfers, &old.KvTransfers},
		{&l.KvTransfersFailed, &old.KvTransfersFailed},
		{&l.HostHits, &old.HostHits},
		{&l.DiskHits, &old.DiskHits},
		{&l.KvBytesLoaded, &old.KvBytesLoaded},
		{&l.KvBytesStored, &old.KvBytesStored},
		{&l.DiskBytesRead, &old.DiskBytesRead},
		{&l.DiskBytesWritten, &old.DiskBytesWritten},
		{&l.AdapterLoads, &old.AdapterLoads},
		{&l.AdapterLoadUs, &old.AdapterLoadUs},
	} {
		*c.now = max(*c.now, *c.old)
	}
}
