package observe

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// Names of what is known of a server: keys of ServerFigures.Counts.
const (
	requests        = "requests"         // that ended
	inputTokens     = "input_tokens"     // of their prompts
	outputTokens    = "output_tokens"    // that were generated
	preemptions     = "preemptions"      // sequences that were put back
	prefixQueries   = "prefix_queries"   // prompt tokens looked up in a prefix cache
	prefixHits      = "prefix_hits"      // of these, found
	remoteQueries   = "remote_queries"   // prompt tokens whose KV was asked of another node or store
	remoteHits      = "remote_hits"      // of these, found
	kvBytes         = "kv_bytes"         // of KV that was moved
	kvSeconds       = "kv_seconds"       // that transfers of KV took, one after the other
	kvTransfers     = "kv_transfers"     // done
	kvFailures      = "kv_failures"      // of transfers
	computedTokens  = "computed_tokens"  // prompt tokens that were prefilled, where the server counts no others
	computeSeconds  = "compute_seconds"  // of prefill
	generateSeconds = "generate_seconds" // of decode
)

// Names of latencies: keys of ServerFigures.Latencies.
const (
	ttft    = "ttft"
	itl     = "itl"
	tpot    = "tpot"
	e2EL    = "e2el"
	queue   = "queue"
	prefill = "prefill"
	decode  = "decode"
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
		requests:      from("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count"),
		inputTokens:   from("vllm:prompt_tokens_total"),
		outputTokens:  from("vllm:generation_tokens_total"),
		preemptions:   from("vllm:num_preemptions_total"),
		prefixQueries: from("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total"),
		prefixHits:    from("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total"),
		remoteQueries: from("vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_queries"),
		remoteHits:    from("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_hits"),
		kvBytes:       from("vllm:nixl_bytes_transferred_sum"),
		kvSeconds:     from("vllm:nixl_xfer_time_seconds_sum"),
		kvTransfers:   from("vllm:nixl_xfer_time_seconds_count"),
		kvFailures:    from("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_transfers"),
	},
	latencies: map[string]source{
		ttft:    seconds("vllm:time_to_first_token_seconds"),
		itl:     seconds("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
		tpot:    seconds("vllm:request_time_per_output_token_seconds"),
		e2EL:    seconds("vllm:e2e_request_latency_seconds"),
		queue:   seconds("vllm:request_queue_time_seconds"),
		prefill: seconds("vllm:request_prefill_time_seconds"),
		decode:  seconds("vllm:request_decode_time_seconds"),
	},
}

// dialects are asked in this order: kvferry has vLLM's names too.
var dialects = []dialect{
	{
		server: "kvferry", prefix: "kvferry:",
		counts: with(vllm.counts, map[string]source{
			kvBytes: from("kvferry:kv_bytes_total"), // as the nodes' transfers count, and not the requests
			// A prompt is looked up at the prefill node and again where it is decoded: the
			// requests' own figures have it once.
			prefixQueries: from("vllm:prompt_tokens_total"),
			prefixHits:    from("vllm:prompt_tokens_cached_total"),
		}),
		latencies: vllm.latencies,
	},
	vllm,
	{
		server: "SGLang", prefix: "sglang:",
		counts: map[string]source{
			requests:      from("sglang:num_requests_total", "sglang:e2e_request_latency_seconds_count"),
			inputTokens:   from("sglang:prompt_tokens_total"),
			outputTokens:  from("sglang:generation_tokens_total"),
			preemptions:   from("sglang:num_retracted_requests_total"),
			prefixQueries: from("sglang:prompt_tokens_total"),
			prefixHits:    from("sglang:cached_tokens_total"),
			// Every rank reports its transfers, and of one request all say the same. A MB may be
			// 10^6 or 2^20 bytes: taken for the less, it accuses nobody wrongly.
			kvBytes:     {[]string{"sglang:kv_transfer_total_mb_sum"}, 1e6, labels{"tp_rank": "0"}},
			kvSeconds:   {[]string{"sglang:kv_transfer_latency_ms_sum"}, 1e-3, labels{"tp_rank": "0"}},
			kvTransfers: {[]string{"sglang:kv_transfer_latency_ms_count"}, 1, labels{"tp_rank": "0"}},
			kvFailures:  from("sglang:num_transfer_failed_reqs_total"),
		},
		latencies: map[string]source{
			ttft:  seconds("sglang:time_to_first_token_seconds"),
			itl:   seconds("sglang:inter_token_latency_seconds"),
			tpot:  seconds("sglang:time_per_output_token_seconds"),
			e2EL:  seconds("sglang:e2e_request_latency_seconds"),
			queue: seconds("sglang:queue_time_seconds"),
		},
	},
	{
		server: "llama.cpp", prefix: "llamacpp:",
		counts: map[string]source{
			computedTokens:  from("llamacpp:prompt_tokens_total"), // without those of its prompt cache
			computeSeconds:  from("llamacpp:prompt_seconds_total"),
			outputTokens:    from("llamacpp:tokens_predicted_total"),
			generateSeconds: from("llamacpp:tokens_predicted_seconds_total"),
		},
	},
	{
		server: "TGI", prefix: "tgi_",
		counts: map[string]source{
			requests:     from("tgi_request_count"),
			inputTokens:  from("tgi_request_input_length_sum"),
			outputTokens: from("tgi_request_generated_tokens_sum"),
		},
		latencies: map[string]source{
			tpot:  seconds("tgi_request_mean_time_per_token_duration"),
			e2EL:  seconds("tgi_request_duration"),
			queue: seconds("tgi_request_queue_duration"),
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

// ServerFigures hold what a server counted between two snapshots. The maps have no entry for what it does not count.
type ServerFigures struct {
	URL       string             `json:"url"`
	Server    string             `json:"server"`            // "vLLM"; empty if no name was known
	Servers   int                `json:"servers,omitempty"` // that these are of together, if several
	Counts    map[string]float64 `json:"counts,omitempty"`
	Latencies map[string]latency `json:"latencies,omitempty"`
	// Back are metrics that went back, as those of a server do that was restarted; they are
	// in neither map.
	Back []string `json:"went_back,omitempty"`
}

// Since is what the server counted after the snapshot before, of the same URL.
func (s *Snapshot) Since(before *Snapshot) ServerFigures {
	f := ServerFigures{URL: s.URL, Counts: map[string]float64{}, Latencies: map[string]latency{}}
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
func (f *ServerFigures) leaveOut(name string) {
	if !slices.Contains(f.Back, name) {
		f.Back = append(f.Back, name)
	}
	for i := range dialects {
		if d := &dialects[i]; d.server == f.Server {
			maps.DeleteFunc(f.Counts, func(key string, _ float64) bool { return slices.Contains(d.counts[key].names, name) })
			maps.DeleteFunc(f.Latencies, func(key string, _ latency) bool { return slices.Contains(d.latencies[key].names, name) })
		}
	}
}

// finite reports whether a server may have counted a number: it is one, and what is computed of it is
// finite too.
func finite(v float64) bool { return math.Abs(v) <= 1e18 }

// HitRate returns the share of prompt tokens that the server found in its prefix cache. It returns false if the server
// does not count them, or looked up none.
func (f *ServerFigures) HitRate() (float64, bool) {
	queries, ok := f.Counts[prefixQueries]
	hits, also := f.Counts[prefixHits]
	if !ok || !also || queries == 0 {
		return 0, false
	}
	return hits / queries, true
}
