// Package metrics counts what a proxy and its nodes do, for Prometheus: under vLLM's names,
// so that dashboards and bench clients made for vLLM read them, and under kvferry: what vLLM
// has no name for. vLLM's carry model_name and engine, as there: engine is a node's id where
// a node counts, and "0" where the proxy does, request by request. Units are in the names; a
// histogram's buckets are vLLM's, or vLLM's and finer ones between them.
//
// The serving path holds a [Model] and an [Engine], resolved once, and looks nothing up by
// label. All may be used at once. What is read when somebody asks, and not counted (the
// nodes' state, the queue), is for who has it to register as a collector.
package metrics

import (
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are one proxy's.
type Metrics struct {
	registry *prometheus.Registry

	counters   map[string]*prometheus.CounterVec
	histograms map[string]*prometheus.HistogramVec
	success    *prometheus.CounterVec
	retries    *prometheus.CounterVec
	failures   *prometheus.CounterVec
	badBlocks  *prometheus.CounterVec
	stages     *prometheus.HistogramVec
	tiers      tiers

	mu      sync.Mutex // of what is below
	models  map[string]*Model
	engines map[[2]string]*Engine // by model and node
	gone    [][2]string           // of these, nodes that are not there, in the order in which they went
}

// maxGone bounds the nodes that are gone and whose series stay, so that a node's counts go on when it comes back.
const maxGone = 64

// wholeCluster is the engine of what belongs to a request: several nodes serve it,
// and its client sees one. vLLM's only engine is called that.
const wholeCluster = "0"

// A Model counts the requests for one model. It is resolved once: the serving path looks
// nothing up by label. Those that begin with nixl have the names of vLLM's connector of that
// name, and are of KV that moved by whatever hand-off.
type Model struct {
	promptTokens, promptTokensCached, generationTokens prometheus.Counter
	externalQueries, externalHits                      prometheus.Counter
	retries, ahead, undirected                         prometheus.Counter
	migrations, notMigrated, migratedBytes             prometheus.Counter
	pause                                              prometheus.Observer
	ttft, itl, tpot, e2e                               prometheus.Observer
	queue, prefill, decode, inference                  prometheus.Observer
	promptLength, generationLength                     prometheus.Observer
	maxTokens, maxGeneration, completions              prometheus.Observer
	nixlXfer, nixlPost, nixlBytes, nixlDescriptor      prometheus.Observer
	stages                                             [stageCount]prometheus.Observer
	length, stop, abort, broken                        prometheus.Counter     // ended, by finish reason
	failures                                           *prometheus.CounterVec // {code}
	badBlocks                                          *prometheus.CounterVec // {owner}
}

// An Engine counts what one node does.
type Engine struct {
	preemptions, prefixQueries, prefixHits             prometheus.Counter
	kvBytes, blocksChecked, blocksBad, transfersFailed prometheus.Counter
	loraLoads, loraLoading                             prometheus.Counter
	iterationTokens                                    prometheus.Observer
	tiers                                              engineTiers
}

// Stages of a request, as in proto.Breakdown, which says what each begins and ends with.
const (
	stageProxy = iota
	stageQueue
	stagePrefill
	stagePost
	stageWire
	stageLand
	stageFirstDecode
	stageCount
)

var stageNames = [stageCount]string{"proxy", "queue", "prefill", "post", "wire", "land", "first_decode"}

// Buckets, in seconds and in tokens: vLLM's, and for the time between tokens finer
// ones where decode steps of one GPU lie, 6 to 25 ms. vLLM has one bucket there; a
// step of 11.5 ms is now told from one of 12.5.
var (
	ttftBuckets   = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets    = []float64{.005, .006, .007, .008, .009, .01, .011, .012, .013, .014, .016, .018, .02, .0225, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	latency       = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	lengths       = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000}
	iterations    = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	nixlXferTimes = []float64{.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5}
	nixlPostTimes = append([]float64{.001}, nixlXferTimes...)
	nixlBytes     = prometheus.ExponentialBuckets(1<<11, 4, 12)
	nixlCounts    = []float64{10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000}
	completions   = []float64{1, 2, 5, 10, 20}
	stageBuckets  = []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// New has counted nothing. It registers all metrics with a registry of its own, not
// Prometheus' global one: several proxies of one process, as in tests, each have their
// figures.
func New() *Metrics {
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		counters:   make(map[string]*prometheus.CounterVec),
		histograms: make(map[string]*prometheus.HistogramVec),
		models:     make(map[string]*Model),
		engines:    make(map[[2]string]*Engine),
	}
	labels := func(more ...string) []string { return append([]string{"model_name", "engine"}, more...) }
	for name, help := range map[string]string{
		"vllm:prompt_tokens_total":                 "Prompt tokens of requests that ended well.",
		"vllm:prompt_tokens_cached_total":          "Prompt tokens of these that were found in a prefix cache.",
		"vllm:generation_tokens_total":             "Tokens generated and delivered.",
		"vllm:num_preemptions_total":               "Sequences the engine preempted.",
		"vllm:prefix_cache_queries_total":          "Prompt tokens looked up in the engine's prefix cache.",
		"vllm:prefix_cache_hits_total":             "Prompt tokens found there.",
		"vllm:external_prefix_cache_queries_total": "Prompt tokens whose KV was asked of another node.",
		"vllm:external_prefix_cache_hits_total":    "Prompt tokens whose KV came from another node.",
		"vllm:nixl_num_failed_transfers_total":     "KV transfers of the engine that failed.",
		"kvferry:kv_bytes_total":                   "KV bytes that the engine's transfers moved.",
		"kvferry:kv_blocks_checked_total":          "KV blocks whose content was checked at the engine, their consumer.",
		"kvferry:kv_blocks_bad_total":              "KV blocks that failed the check.",
		"kvferry:lora_loads_total":                 "LoRA adapters that the engine loaded into slots.",
		"kvferry:lora_load_seconds_total":          "Time that the engine's steps took more for that.",
		"kvferry:migrations_total":                 "Times that a running request went on on another node.",
		"kvferry:migrations_failed_total":          "Times that one was to, and went on where it was.",
		"kvferry:migrated_bytes_total":             "KV bytes moved so that requests that ended well could go on on other nodes, also in vain.",
		"kvferry:prompts_ahead_total":              "Prompts submitted before the decode node had said where their KV goes.",
		"kvferry:prompts_undirected_total":         "Prompts of these that waited too long to be told, and were submitted again.",
	} {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels())
		m.counters[name] = v
		m.registry.MustRegister(v)
	}
	for _, h := range []struct {
		name, help string
		buckets    []float64
	}{
		{"vllm:time_to_first_token_seconds", "From the request's arrival to its first token at the proxy.", ttftBuckets},
		{"vllm:inter_token_latency_seconds", "Between tokens of a request at the proxy.", itlBuckets},
		{"vllm:request_time_per_output_token_seconds", "(last token - first token) / (tokens - 1) of a request.", itlBuckets},
		{"vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", latency},
		{"vllm:request_queue_time_seconds", "A request's time waiting for a scheduler.", latency},
		{"vllm:request_prefill_time_seconds", "A request's time in prefill steps.", latency},
		{"vllm:request_decode_time_seconds", "From a request's first token to its last.", latency},
		{"vllm:request_inference_time_seconds", "Prefill and decode time of a request.", latency},
		{"kvferry:migration_pause_seconds", "From the last token of a request on one node to its first on the next.", itlBuckets},
		{"vllm:request_prompt_tokens", "Prompt length.", lengths},
		{"vllm:request_generation_tokens", "Output length.", lengths},
		{"vllm:request_max_num_generation_tokens", "Longest output of a request's completions: the output length, as a request has one.", lengths},
		{"vllm:request_params_max_tokens", "Output length asked for.", lengths},
		{"vllm:request_params_n", "Completions asked for: 1, more are refused.", completions},
		{"vllm:iteration_tokens_total", "Tokens emitted by one engine iteration.", iterations},
		{"vllm:nixl_xfer_time_seconds", "A request's KV from posted to delivered.", nixlXferTimes},
		{"vllm:nixl_post_time_seconds", "A request's KV from ready to posted.", nixlPostTimes},
		{"vllm:nixl_bytes_transferred", "KV bytes of a request.", nixlBytes},
		{"vllm:nixl_num_descriptors", "KV blocks of a request.", nixlCounts},
	} {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: h.name, Help: h.help, Buckets: h.buckets}, labels())
		m.histograms[h.name] = v
		m.registry.MustRegister(v)
	}
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Requests ended, by finish reason: length, stop, abort (by the client), error (of the server).",
	}, labels("finished_reason"))
	m.retries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kvferry:request_retries_total", Help: "Times a request was placed again after a node failed it.",
	}, []string{"model_name"})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kvferry:request_failures_total", Help: "Requests answered with an error, by its code.",
	}, []string{"model_name", "code"})
	m.badBlocks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kvferry:kv_bad_blocks_total", Help: "KV blocks that went bad, by where: in the memory of a prefill or decode node, or on the wire.",
	}, []string{"model_name", "owner"})
	m.stages = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kvferry:request_stage_seconds", Help: "Where a request's time went.", Buckets: stageBuckets,
	}, []string{"model_name", "stage"})
	m.tiers = newTiers(labels)
	for _, v := range m.tiers.all() {
		m.registry.MustRegister(v)
	}
	m.registry.MustRegister(m.success, m.retries, m.failures, m.badBlocks, m.stages,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Register adds what is read when somebody asks.
func (m *Metrics) Register(all ...prometheus.Collector) { m.registry.MustRegister(all...) }

// Handler answers a scrape.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// Model returns the counts of one model.
func (m *Metrics) Model(name string) *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.models[name]; h != nil {
		return h
	}
	c := func(metric string) prometheus.Counter { return m.counters[metric].WithLabelValues(name, wholeCluster) }
	o := func(metric string) prometheus.Observer {
		return m.histograms[metric].WithLabelValues(name, wholeCluster)
	}
	ended := func(reason string) prometheus.Counter { return m.success.WithLabelValues(name, wholeCluster, reason) }
	h := &Model{
		promptTokens:       c("vllm:prompt_tokens_total"),
		promptTokensCached: c("vllm:prompt_tokens_cached_total"),
		generationTokens:   c("vllm:generation_tokens_total"),
		externalQueries:    c("vllm:external_prefix_cache_queries_total"),
		externalHits:       c("vllm:external_prefix_cache_hits_total"),
		retries:            m.retries.WithLabelValues(name),
		ahead:              c("kvferry:prompts_ahead_total"),
		undirected:         c("kvferry:prompts_undirected_total"),
		migrations:         c("kvferry:migrations_total"),
		notMigrated:        c("kvferry:migrations_failed_total"),
		migratedBytes:      c("kvferry:migrated_bytes_total"),
		pause:              o("kvferry:migration_pause_seconds"),
		ttft:               o("vllm:time_to_first_token_seconds"),
		itl:                o("vllm:inter_token_latency_seconds"),
		tpot:               o("vllm:request_time_per_output_token_seconds"),
		e2e:                o("vllm:e2e_request_latency_seconds"),
		queue:              o("vllm:request_queue_time_seconds"),
		prefill:            o("vllm:request_prefill_time_seconds"),
		decode:             o("vllm:request_decode_time_seconds"),
		inference:          o("vllm:request_inference_time_seconds"),
		promptLength:       o("vllm:request_prompt_tokens"),
		generationLength:   o("vllm:request_generation_tokens"),
		maxGeneration:      o("vllm:request_max_num_generation_tokens"),
		maxTokens:          o("vllm:request_params_max_tokens"),
		completions:        o("vllm:request_params_n"),
		nixlXfer:           o("vllm:nixl_xfer_time_seconds"),
		nixlPost:           o("vllm:nixl_post_time_seconds"),
		nixlBytes:          o("vllm:nixl_bytes_transferred"),
		nixlDescriptor:     o("vllm:nixl_num_descriptors"),
		length:             ended("length"),
		stop:               ended("stop"),
		abort:              ended("abort"),
		broken:             ended("error"),
		failures:           m.failures.MustCurryWith(prometheus.Labels{"model_name": name}),
		badBlocks:          m.badBlocks.MustCurryWith(prometheus.Labels{"model_name": name}),
	}
	for _, owner := range []string{"prefill", "wire", "decode"} {
		h.BadBlocks(owner, 0)
	}
	for i, stage := range stageNames {
		h.stages[i] = m.stages.WithLabelValues(name, stage)
	}
	m.models[name] = h
	return h
}

// Engine returns the counts of one node, the same ones when it comes back.
func (m *Metrics) Engine(model, node string) *Engine {
	// A model's counters are there from its first node on, at 0: a series that begins with its
	// first count shows no rate for it.
	m.Model(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{model, node}
	m.back(key)
	if h := m.engines[key]; h != nil {
		return h
	}
	c := func(metric string) prometheus.Counter { return m.counters[metric].WithLabelValues(model, node) }
	h := &Engine{
		preemptions:     c("vllm:num_preemptions_total"),
		prefixQueries:   c("vllm:prefix_cache_queries_total"),
		prefixHits:      c("vllm:prefix_cache_hits_total"),
		kvBytes:         c("kvferry:kv_bytes_total"),
		blocksChecked:   c("kvferry:kv_blocks_checked_total"),
		blocksBad:       c("kvferry:kv_blocks_bad_total"),
		transfersFailed: c("vllm:nixl_num_failed_transfers_total"),
		loraLoads:       c("kvferry:lora_loads_total"),
		loraLoading:     c("kvferry:lora_load_seconds_total"),
		iterationTokens: m.histograms["vllm:iteration_tokens_total"].WithLabelValues(model, node),
		tiers:           m.tiers.engine(model, node),
	}
	m.engines[key] = h
	return h
}

// Gone notes that a node is not there. Its series stay until maxGone others have gone after it.
func (m *Metrics) Gone(model, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if node == wholeCluster {
		return // the requests' series have this name too
	}
	m.back([2]string{model, node})
	m.gone = append(m.gone, [2]string{model, node})
	if len(m.gone) <= maxGone {
		return
	}
	oldest := m.gone[0]
	m.back(oldest)
	delete(m.engines, oldest)
	series := prometheus.Labels{"model_name": oldest[0], "engine": oldest[1]}
	for _, v := range slices.AppendSeq(m.tiers.all(), maps.Values(m.counters)) {
		v.DeletePartialMatch(series)
	}
	for _, v := range m.histograms {
		v.DeletePartialMatch(series)
	}
}

// back takes a node off those that are gone. The caller holds mu.
func (m *Metrics) back(key [2]string) {
	m.gone = slices.DeleteFunc(m.gone, func(k [2]string) bool { return k == key })
}
