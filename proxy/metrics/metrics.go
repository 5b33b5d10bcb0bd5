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
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are one proxy's.
type Metrics struct {
	registry *prometheus.Registry

	counters   map[string]*prometheus.CounterVec // of modelCounters and loadCounts, by name
	histograms map[string]*prometheus.HistogramVec
	iterations *prometheus.HistogramVec
	success    *prometheus.CounterVec
	retries    *prometheus.CounterVec
	failures   *prometheus.CounterVec
	badBlocks  *prometheus.CounterVec
	stages     *prometheus.HistogramVec

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
	counters        []prometheus.Counter // as in loadCounts, nil for those that are no metrics
	iterationTokens prometheus.Observer
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

// modelCounters are the counters of a Model that have no labels of their own.
var modelCounters = []struct {
	in         func(*Model) *prometheus.Counter
	name, help string
}{
	{func(h *Model) *prometheus.Counter { return &h.promptTokens }, "vllm:prompt_tokens_total", "Prompt tokens of requests that ended well."},
	{func(h *Model) *prometheus.Counter { return &h.promptTokensCached }, "vllm:prompt_tokens_cached_total", "Prompt tokens of these that were found in a prefix cache."},
	{func(h *Model) *prometheus.Counter { return &h.generationTokens }, "vllm:generation_tokens_total", "Tokens generated and delivered."},
	{func(h *Model) *prometheus.Counter { return &h.externalQueries }, "vllm:external_prefix_cache_queries_total", "Prompt tokens whose KV was asked of another node."},
	{func(h *Model) *prometheus.Counter { return &h.externalHits }, "vllm:external_prefix_cache_hits_total", "Prompt tokens whose KV came from another node."},
	{func(h *Model) *prometheus.Counter { return &h.migrations }, "kvferry:migrations_total", "Times that a running request went on on another node."},
	{func(h *Model) *prometheus.Counter { return &h.notMigrated }, "kvferry:migrations_failed_total", "Times that one was to, and went on where it was."},
	{func(h *Model) *prometheus.Counter { return &h.migratedBytes }, "kvferry:migrated_bytes_total", "KV bytes moved so that requests that ended well could go on on other nodes, also in vain."},
	{func(h *Model) *prometheus.Counter { return &h.ahead }, "kvferry:prompts_ahead_total", "Prompts submitted before the decode node had said where their KV goes."},
	{func(h *Model) *prometheus.Counter { return &h.undirected }, "kvferry:prompts_undirected_total", "Prompts of these that waited too long to be told, and were submitted again."},
}

// modelHistograms are the histograms of a Model but for the stages.
var modelHistograms = []struct {
	in         func(*Model) *prometheus.Observer
	buckets    []float64
	name, help string
}{
	{func(h *Model) *prometheus.Observer { return &h.ttft }, ttftBuckets, "vllm:time_to_first_token_seconds", "From the request's arrival to its first token at the proxy."},
	{func(h *Model) *prometheus.Observer { return &h.itl }, itlBuckets, "vllm:inter_token_latency_seconds", "Between tokens of a request at the proxy."},
	{func(h *Model) *prometheus.Observer { return &h.tpot }, itlBuckets, "vllm:request_time_per_output_token_seconds", "(last token - first token) / (tokens - 1) of a request."},
	{func(h *Model) *prometheus.Observer { return &h.e2e }, latency, "vllm:e2e_request_latency_seconds", "From a request's arrival to its end."},
	{func(h *Model) *prometheus.Observer { return &h.queue }, latency, "vllm:request_queue_time_seconds", "A request's time waiting for a scheduler."},
	{func(h *Model) *prometheus.Observer { return &h.prefill }, latency, "vllm:request_prefill_time_seconds", "A request's time in prefill steps."},
	{func(h *Model) *prometheus.Observer { return &h.decode }, latency, "vllm:request_decode_time_seconds", "From a request's first token to its last."},
	{func(h *Model) *prometheus.Observer { return &h.inference }, latency, "vllm:request_inference_time_seconds", "Prefill and decode time of a request."},
	{func(h *Model) *prometheus.Observer { return &h.pause }, itlBuckets, "kvferry:migration_pause_seconds", "From the last token of a request on one node to its first on the next."},
	{func(h *Model) *prometheus.Observer { return &h.promptLength }, lengths, "vllm:request_prompt_tokens", "Prompt length."},
	{func(h *Model) *prometheus.Observer { return &h.generationLength }, lengths, "vllm:request_generation_tokens", "Output length."},
	{func(h *Model) *prometheus.Observer { return &h.maxGeneration }, lengths, "vllm:request_max_num_generation_tokens", "Longest output of a request's completions: the output length, as a request has one."},
	{func(h *Model) *prometheus.Observer { return &h.maxTokens }, lengths, "vllm:request_params_max_tokens", "Output length asked for."},
	{func(h *Model) *prometheus.Observer { return &h.completions }, completions, "vllm:request_params_n", "Completions asked for: 1, more are refused."},
	{func(h *Model) *prometheus.Observer { return &h.nixlXfer }, nixlXferTimes, "vllm:nixl_xfer_time_seconds", "A request's KV from posted to delivered."},
	{func(h *Model) *prometheus.Observer { return &h.nixlPost }, nixlPostTimes, "vllm:nixl_post_time_seconds", "A request's KV from ready to posted."},
	{func(h *Model) *prometheus.Observer { return &h.nixlBytes }, nixlBytes, "vllm:nixl_bytes_transferred", "KV bytes of a request."},
	{func(h *Model) *prometheus.Observer { return &h.nixlDescriptor }, nixlCounts, "vllm:nixl_num_descriptors", "KV blocks of a request."},
}

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
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, label string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"model_name", label})
		m.registry.MustRegister(v)
		return v
	}
	for _, c := range modelCounters {
		m.counters[c.name] = counter(c.name, c.help, "model_name", "engine")
	}
	for _, c := range loadCounts {
		if c.name != "" && m.counters[c.name] == nil {
			m.counters[c.name] = counter(c.name, c.help, append([]string{"model_name", "engine"}, strings.Fields(c.label)...)...)
		}
	}
	for _, h := range modelHistograms {
		m.histograms[h.name] = histogram(h.name, h.help, h.buckets, "engine")
	}
	m.iterations = histogram("vllm:iteration_tokens_total", "Tokens emitted by one engine iteration.", iterations, "engine")
	m.stages = histogram("kvferry:request_stage_seconds", "Where a request's time went.", stageBuckets, "stage")
	m.success = counter("vllm:request_success_total", "Requests ended, by finish reason: length, stop, abort (by the client), error (of the server).", "model_name", "engine", "finished_reason")
	m.retries = counter("kvferry:request_retries_total", "Times a request was placed again after a node failed it.", "model_name")
	m.failures = counter("kvferry:request_failures_total", "Requests answered with an error, by its code.", "model_name", "code")
	m.badBlocks = counter("kvferry:kv_bad_blocks_total", "KV blocks that went bad, by where: in the memory of a prefill or decode node, or on the wire.", "model_name", "owner")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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
	ended := func(reason string) prometheus.Counter { return m.success.WithLabelValues(name, wholeCluster, reason) }
	h := &Model{
		retries:   m.retries.WithLabelValues(name),
		length:    ended("length"),
		stop:      ended("stop"),
		abort:     ended("abort"),
		broken:    ended("error"),
		failures:  m.failures.MustCurryWith(prometheus.Labels{"model_name": name}),
		badBlocks: m.badBlocks.MustCurryWith(prometheus.Labels{"model_name": name}),
	}
	for _, c := range modelCounters {
		*c.in(h) = m.counters[c.name].WithLabelValues(name, wholeCluster)
	}
	for _, o := range modelHistograms {
		*o.in(h) = m.histograms[o.name].WithLabelValues(name, wholeCluster)
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
	h := &Engine{counters: make([]prometheus.Counter, len(loadCounts)), iterationTokens: m.iterations.WithLabelValues(model, node)}
	for i, c := range loadCounts {
		if c.name != "" {
			h.counters[i] = m.counters[c.name].WithLabelValues(append([]string{model, node}, strings.Fields(c.value)...)...)
		}
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
	m.iterations.DeletePartialMatch(series)
	for _, v := range m.counters {
		v.DeletePartialMatch(series)
	}
}

// back takes a node off those that are gone. The caller holds mu.
func (m *Metrics) back(key [2]string) {
	m.gone = slices.DeleteFunc(m.gone, func(k [2]string) bool { return k == key })
}
