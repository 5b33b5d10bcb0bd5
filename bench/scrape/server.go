package scrape

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// Names of what is known of a server: keys of Figures.Counts.
const (
	Requests        = "requests"         // that ended
	InputTokens     = "input_tokens"     // of their prompts
	OutputTokens    = "output_tokens"    // that were generated
	Preemptions     = "preemptions"      // sequences that were put back
	PrefixQueries   = "prefix_queries"   // prompt tokens looked up in a prefix cache
	PrefixHits      = "prefix_hits"      // of these, found
	RemoteQueries   = "remote_queries"   // prompt tokens whose KV was asked of another node or store
	RemoteHits      = "remote_hits"      // of these, found
	KVBytes         = "kv_bytes"         // of KV that was moved
	KVSeconds       = "kv_seconds"       // that transfers of KV took, one after the other
	KVTransfers     = "kv_transfers"     // done
	KVFailures      = "kv_failures"      // of transfers
	ComputedTokens  = "computed_tokens"  // prompt tokens that were prefilled, where the server counts no others
	ComputeSeconds  = "compute_seconds"  // of prefill
	GenerateSeconds = "generate_seconds" // of decode
)

// Names of latencies: keys of Figures.Latencies.
const (
	TTFT    = "ttft"
	ITL     = "itl"
	TPOT    = "tpot"
	E2EL    = "e2el"
	Queue   = "queue"
	Prefill = "prefill"
	Decode  = "decode"
)

// A source is where a figure stands: the first of several names that is there, which
// versions of a server have had, and what one of it is in the figure's unit.
type source struct {
	names []string
	unit  float64
	only  labels // series that count
}

func from(names ...string) source { return source{names: names, unit: 1} }

// A dialect is the names of one kind of server.
type dialect struct {
	server    string
	prefix    string // of the metrics that only it has
	counts    map[string]source
	latencies map[string]source
}

// seconds is a histogram of seconds, in milliseconds.
func seconds(names ...string) source { return source{names: names, unit: 1e3} }

var vllm = dialect{
	server: "vLLM", prefix: "vllm:",
	counts: map[string]source{
		Requests:      from("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count"),
		InputTokens:   from("vllm:prompt_tokens_total"),
		OutputTokens:  from("vllm:generation_tokens_total"),
		Preemptions:   from("vllm:num_preemptions_total"),
		PrefixQueries: from("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total"),
		PrefixHits:    from("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total"),
		RemoteQueries: from("vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_queries"),
		RemoteHits:    from("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_hits"),
		KVBytes:       from("vllm:nixl_bytes_transferred_sum"),
		KVSeconds:     from("vllm:nixl_xfer_time_seconds_sum"),
		KVTransfers:   from("vllm:nixl_xfer_time_seconds_count"),
		KVFailures:    from("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_transfers"),
	},
	latencies: map[string]source{
		TTFT:    seconds("vllm:time_to_first_token_seconds"),
		ITL:     seconds("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
		TPOT:    seconds("vllm:request_time_per_output_token_seconds"),
		E2EL:    seconds("vllm:e2e_request_latency_seconds"),
		Queue:   seconds("vllm:request_queue_time_seconds"),
		Prefill: seconds("vllm:request_prefill_time_seconds"),
		Decode:  seconds("vllm:request_decode_time_seconds"),
	},
}

// dialects are asked in this order: kvferry has vLLM's names too.
var dialects = []dialect{
	{
		server: "kvferry", prefix: "kvferry:",
		counts: with(vllm.counts, map[string]source{
			KVBytes: from("kvferry:kv_bytes_total"), // as the nodes' transfers count, and not the requests
			// A prompt is looked up at the prefill node and again where it is decoded: the
			// requests' own figures have it once.
			PrefixQueries: from("vllm:prompt_tokens_total"),
			PrefixHits:    from("vllm:prompt_tokens_cached_total"),
		}),
		latencies: vllm.latencies,
	},
	vllm,
	{
		server: "SGLang", prefix: "sglang:",
		counts: map[string]source{
			Requests:      from("sglang:num_requests_total", "sglang:e2e_request_latency_seconds_count"),
			InputTokens:   from("sglang:prompt_tokens_total"),
			OutputTokens:  from("sglang:generation_tokens_total"),
			Preemptions:   from("sglang:num_retracted_requests_total"),
			PrefixQueries: from("sglang:prompt_tokens_total"),
			PrefixHits:    from("sglang:cached_tokens_total"),
			// Every rank reports its transfers, and of one request all say the same. A MB may be
			// 10^6 or 2^20 bytes: taken for the less, it accuses nobody wrongly.
			KVBytes:     {[]string{"sglang:kv_transfer_total_mb_sum"}, 1e6, labels{"tp_rank": "0"}},
			KVSeconds:   {[]string{"sglang:kv_transfer_latency_ms_sum"}, 1e-3, labels{"tp_rank": "0"}},
			KVTransfers: {[]string{"sglang:kv_transfer_latency_ms_count"}, 1, labels{"tp_rank": "0"}},
			KVFailures:  from("sglang:num_transfer_failed_reqs_total"),
		},
		latencies: map[string]source{
			TTFT:  seconds("sglang:time_to_first_token_seconds"),
			ITL:   seconds("sglang:inter_token_latency_seconds"),
			TPOT:  seconds("sglang:time_per_output_token_seconds"),
			E2EL:  seconds("sglang:e2e_request_latency_seconds"),
			Queue: seconds("sglang:queue_time_seconds"),
		},
	},
	{
		server: "llama.cpp", prefix: "llamacpp:",
		counts: map[string]source{
			ComputedTokens:  from("llamacpp:prompt_tokens_total"), // without those of its prompt cache
			ComputeSeconds:  from("llamacpp:prompt_seconds_total"),
			OutputTokens:    from("llamacpp:tokens_predicted_total"),
			GenerateSeconds: from("llamacpp:tokens_predicted_seconds_total"),
		},
	},
	{
		server: "TGI", prefix: "tgi_",
		counts: map[string]source{
			Requests:     from("tgi_request_count"),
			InputTokens:  from("tgi_request_input_length_sum"),
			OutputTokens: from("tgi_request_generated_tokens_sum"),
		},
		latencies: map[string]source{
			TPOT:  seconds("tgi_request_mean_time_per_token_duration"),
			E2EL:  seconds("tgi_request_duration"),
			Queue: seconds("tgi_request_queue_duration"),
		},
	},
}

// with is a map with some of its values replaced.
func with(m, other map[string]source) map[string]source {
	m = maps.Clone(m)
	maps.Copy(m, other)
	return m
}

// dialect is that of a page, or nil.
func (s *Snapshot) dialect() *dialect {
	for i := range dialects {
		for name := range s.families {
			if strings.HasPrefix(name, dialects[i].prefix) {
				return &dialects[i]
			}
		}
	}
	return nil
}

// Figures are what a server counted between two snapshots. What it does not say is not in
// the maps.
type Figures struct {
	URL       string             `json:"url"`
	Server    string             `json:"server"`            // "vLLM"; empty if no name was known
	Servers   int                `json:"servers,omitempty"` // that these are of together, if several
	Counts    map[string]float64 `json:"counts,omitempty"`
	Latencies map[string]Latency `json:"latencies,omitempty"`
	// Back are metrics that went back, as those of a server do that was restarted; they are
	// in neither map.
	Back []string `json:"went_back,omitempty"`
}

// Since is what the server counted after the snapshot before, of the same URL.
func (s *Snapshot) Since(before *Snapshot) Figures {
	f := Figures{URL: s.URL, Counts: map[string]float64{}, Latencies: map[string]Latency{}}
	d := s.dialect()
	if d == nil {
		return f
	}
	f.Server = d.server
	for _, key := range slices.Sorted(maps.Keys(d.counts)) {
		from := d.counts[key]
		for _, name := range from.names {
			now, ok := s.counter(name, from.only)
			if !ok {
				continue
			}
			old, _ := before.counter(name, from.only) // a series begins with its first count
			switch grown := now - old; {
			case !finite(grown): // a page may say NaN
			case grown < 0:
				f.Back = append(f.Back, name)
			default:
				f.Counts[key] = grown * from.unit
			}
			break
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.latencies)) {
		from := d.latencies[key]
		for _, name := range from.names {
			now, ok := s.histogram(name, from.only)
			if !ok {
				continue
			}
			old, _ := before.histogram(name, from.only)
			switch h, ok := now.since(old); {
			case !finite(now.sum):
			case !ok:
				f.Back = append(f.Back, name)
			default:
				f.Latencies[key] = h.latency(from.unit)
			}
			break
		}
	}
	return f
}

// leaveOut takes out what is of a metric that went back.
func (f *Figures) leaveOut(name string) {
	if !slices.Contains(f.Back, name) {
		f.Back = append(f.Back, name)
	}
	for i := range dialects {
		if d := &dialects[i]; d.server == f.Server {
			maps.DeleteFunc(f.Counts, func(key string, _ float64) bool { return slices.Contains(d.counts[key].names, name) })
			maps.DeleteFunc(f.Latencies, func(key string, _ Latency) bool { return slices.Contains(d.latencies[key].names, name) })
		}
	}
}

// finite reports whether a server may have counted a number: it is one, and what is computed of it is
// finite too.
func finite(v float64) bool { return math.Abs(v) <= 1e18 }

// HitRate is the share of prompt tokens that the server found in its prefix cache; false if
// it does not say, or looked up none.
func (f *Figures) HitRate() (float64, bool) {
	queries, ok := f.Counts[PrefixQueries]
	hits, also := f.Counts[PrefixHits]
	if !ok || !also || queries == 0 {
		return 0, false
	}
	return hits / queries, true
}
