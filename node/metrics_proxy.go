package node

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kvferry/proto"
)

// proxyMetrics are the proxy's metrics under vLLM's names, so that dashboards
// and bench clients made for vLLM read them, and under kvferry: what vLLM has
// no name for. All carry model_name; those of one node carry engine, its id.
// Units are in the names; a histogram's buckets are vLLM's.
type proxyMetrics struct {
	registry *prometheus.Registry

	counters   map[string]*prometheus.CounterVec
	histograms map[string]*prometheus.HistogramVec
	success    *prometheus.CounterVec
	failures   *prometheus.CounterVec
	stages     *prometheus.HistogramVec

	mu     sync.Mutex
	models map[string]*modelMetrics
}

// modelMetrics are one model's, resolved once: the serving path looks nothing
// up by label.
type modelMetrics struct {
	promptTokens, generationTokens                prometheus.Counter
	preemptions, prefixQueries, prefixHits        prometheus.Counter
	externalQueries, externalHits                 prometheus.Counter
	retries, kvBytes, blocksChecked, blocksBad    prometheus.Counter
	transfersFailed                               prometheus.Counter
	ttft, itl, tpot, e2e                          prometheus.Observer
	queue, prefill, decode, inference             prometheus.Observer
	promptLength, generationLength, maxTokens     prometheus.Observer
	iterationTokens                               prometheus.Observer
	nixlXfer, nixlPost, nixlBytes, nixlDescriptor prometheus.Observer
	stages                                        [stageCount]prometheus.Observer
	success                                       [2]prometheus.Counter // by finish reason
	abort                                         prometheus.Counter
	failures                                      *prometheus.CounterVec // {code}
}

// Stages of a request, as in proto.Breakdown.
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

// vLLM's buckets, in seconds and in tokens.
var (
	ttftBuckets   = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets    = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	latency       = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	lengths       = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000}
	iterations    = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	nixlXferTimes = []float64{.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5}
	nixlPostTimes = append([]float64{.001}, nixlXferTimes...)
	nixlBytes     = prometheus.ExponentialBuckets(1<<11, 4, 12)
	nixlCounts    = []float64{10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000}
	stageBuckets  = []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

func newProxyMetrics() *proxyMetrics {
	m := &proxyMetrics{
		registry:   prometheus.NewRegistry(),
		counters:   make(map[string]*prometheus.CounterVec),
		histograms: make(map[string]*prometheus.HistogramVec),
		models:     make(map[string]*modelMetrics),
	}
	model := []string{"model_name"}
	for name, help := range map[string]string{
		"vllm:prompt_tokens_total":                 "Prompt tokens of requests that ended well.",
		"vllm:generation_tokens_total":             "Tokens generated and delivered.",
		"vllm:num_preemptions_total":               "Sequences the engines preempted.",
		"vllm:prefix_cache_queries_total":          "Prompt tokens looked up in the engines' prefix caches.",
		"vllm:prefix_cache_hits_total":             "Prompt tokens found there.",
		"vllm:external_prefix_cache_queries_total": "Prompt tokens whose KV was asked of another node.",
		"vllm:external_prefix_cache_hits_total":    "Prompt tokens whose KV came from another node.",
		"vllm:nixl_num_failed_transfers":           "KV transfers that failed.",
		"kvferry:request_retries_total":            "Times a request was placed again after a node failed it.",
		"kvferry:kv_bytes_total":                   "KV bytes moved between nodes.",
		"kvferry:kv_blocks_checked_total":          "KV blocks whose content was checked at the consumer.",
		"kvferry:kv_blocks_bad_total":              "KV blocks that failed the check.",
	} {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, model)
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
		{"vllm:request_prompt_tokens", "Prompt length.", lengths},
		{"vllm:request_generation_tokens", "Output length.", lengths},
		{"vllm:request_params_max_tokens", "Output length asked for.", lengths},
		{"vllm:iteration_tokens_total", "Tokens emitted by one engine iteration.", iterations},
		{"vllm:nixl_xfer_time_seconds", "A request's KV from posted to delivered.", nixlXferTimes},
		{"vllm:nixl_post_time_seconds", "A request's KV from ready to posted.", nixlPostTimes},
		{"vllm:nixl_bytes_transferred", "KV bytes of a request.", nixlBytes},
		{"vllm:nixl_num_descriptors", "KV blocks of a request.", nixlCounts},
	} {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: h.name, Help: h.help, Buckets: h.buckets}, model)
		m.histograms[h.name] = v
		m.registry.MustRegister(v)
	}
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Requests ended, by finish reason.",
	}, []string{"model_name", "finished_reason"})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kvferry:request_failures_total", Help: "Requests answered with an error, by its code.",
	}, []string{"model_name", "code"})
	m.stages = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kvferry:request_stage_seconds", Help: "Where a request's time went.", Buckets: stageBuckets,
	}, []string{"model_name", "stage"})
	m.registry.MustRegister(m.success, m.failures, m.stages,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *proxyMetrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// model returns the handles of one model.
func (m *proxyMetrics) model(name string) *modelMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.models[name]; h != nil {
		return h
	}
	c := func(metric string) prometheus.Counter { return m.counters[metric].WithLabelValues(name) }
	o := func(metric string) prometheus.Observer { return m.histograms[metric].WithLabelValues(name) }
	h := &modelMetrics{
		promptTokens:     c("vllm:prompt_tokens_total"),
		generationTokens: c("vllm:generation_tokens_total"),
		preemptions:      c("vllm:num_preemptions_total"),
		prefixQueries:    c("vllm:prefix_cache_queries_total"),
		prefixHits:       c("vllm:prefix_cache_hits_total"),
		externalQueries:  c("vllm:external_prefix_cache_queries_total"),
		externalHits:     c("vllm:external_prefix_cache_hits_total"),
		retries:          c("kvferry:request_retries_total"),
		kvBytes:          c("kvferry:kv_bytes_total"),
		blocksChecked:    c("kvferry:kv_blocks_checked_total"),
		blocksBad:        c("kvferry:kv_blocks_bad_total"),
		transfersFailed:  c("vllm:nixl_num_failed_transfers"),
		ttft:             o("vllm:time_to_first_token_seconds"),
		itl:              o("vllm:inter_token_latency_seconds"),
		tpot:             o("vllm:request_time_per_output_token_seconds"),
		e2e:              o("vllm:e2e_request_latency_seconds"),
		queue:            o("vllm:request_queue_time_seconds"),
		prefill:          o("vllm:request_prefill_time_seconds"),
		decode:           o("vllm:request_decode_time_seconds"),
		inference:        o("vllm:request_inference_time_seconds"),
		promptLength:     o("vllm:request_prompt_tokens"),
		generationLength: o("vllm:request_generation_tokens"),
		maxTokens:        o("vllm:request_params_max_tokens"),
		iterationTokens:  o("vllm:iteration_tokens_total"),
		nixlXfer:         o("vllm:nixl_xfer_time_seconds"),
		nixlPost:         o("vllm:nixl_post_time_seconds"),
		nixlBytes:        o("vllm:nixl_bytes_transferred"),
		nixlDescriptor:   o("vllm:nixl_num_descriptors"),
		success:          [2]prometheus.Counter{m.success.WithLabelValues(name, "length"), m.success.WithLabelValues(name, "stop")},
		abort:            m.success.WithLabelValues(name, "abort"),
		failures:         m.failures.MustCurryWith(prometheus.Labels{"model_name": name}),
	}
	for i, stage := range stageNames {
		h.stages[i] = m.stages.WithLabelValues(name, stage)
	}
	m.models[name] = h
	return h
}

// addLoad counts what a node did between two of its reports.
func (h *modelMetrics) addLoad(old, l *proto.Load) {
	h.preemptions.Add(float64(l.Preemptions - old.Preemptions))
	h.prefixQueries.Add(float64(l.PrefixQueries - old.PrefixQueries))
	h.prefixHits.Add(float64(l.PrefixHits - old.PrefixHits))
	h.kvBytes.Add(float64(l.KvBytes - old.KvBytes))
	h.blocksChecked.Add(float64(l.KvBlocksChecked - old.KvBlocksChecked))
	h.blocksBad.Add(float64(l.KvBlocksBad - old.KvBlocksBad))
	h.transfersFailed.Add(float64(l.KvTransfersFailed - old.KvTransfersFailed))
}

// ended counts a request that has ended, well if err is nil.
func (h *modelMetrics) ended(f *flight, e2e time.Duration, err *apiError) {
	h.generationTokens.Add(float64(len(f.delivered)))
	switch {
	case err == nil && f.finish == "stop":
		h.success[1].Inc()
	case err == nil:
		h.success[0].Inc()
	case err.Status == statusClientClosed:
		h.abort.Inc()
		return
	default:
		code := err.Code
		if code == "" {
			code = err.Type
		}
		h.failures.WithLabelValues(code).Inc()
		return
	}
	h.promptTokens.Add(float64(len(f.req.Prompt)))
	h.e2e.Observe(e2e.Seconds())
	h.promptLength.Observe(float64(len(f.req.Prompt)))
	h.generationLength.Observe(float64(len(f.delivered)))
	h.maxTokens.Observe(float64(f.req.MaxTokens))
	decode := (f.last - f.first).Seconds()
	if n := len(f.delivered); n > 1 {
		h.tpot.Observe(decode / float64(n-1))
	}
	b := &f.breakdown
	prefill := float64(b.PrefillUs) / 1e6
	h.queue.Observe(float64(b.QueueUs) / 1e6)
	h.prefill.Observe(prefill)
	h.decode.Observe(decode)
	h.inference.Observe(prefill + decode)
	for i, us := range [stageCount]uint32{
		stageProxy: b.ProxyUs + microseconds(f.own), stageQueue: b.QueueUs, stagePrefill: b.PrefillUs, stagePost: b.PostUs,
		stageWire: b.WireUs, stageLand: b.LandUs, stageFirstDecode: b.FirstDecodeUs,
	} {
		h.stages[i].Observe(float64(us) / 1e6)
	}
	if b.KvBytes > 0 {
		h.externalQueries.Add(float64(len(f.req.Prompt)))
		h.externalHits.Add(float64(len(f.req.Prompt)))
		h.nixlXfer.Observe(float64(b.WireUs) / 1e6)
		h.nixlPost.Observe(float64(b.PostUs) / 1e6)
		h.nixlBytes.Observe(float64(b.KvBytes))
		h.nixlDescriptor.Observe(float64(b.KvBlocksChecked))
	}
}

// nodeCollector reads the nodes' state when it is asked for.
type nodeCollector struct{ registry *registry }

var (
	nodeLabels  = []string{"model_name", "engine"}
	runningDesc = prometheus.NewDesc("vllm:num_requests_running", "Sequences in the engine's batch.", nodeLabels, nil)
	waitingDesc = prometheus.NewDesc("vllm:num_requests_waiting", "Requests waiting for the engine's scheduler.", nodeLabels, nil)
	kvUsageDesc = prometheus.NewDesc("vllm:kv_cache_usage_perc", "Used part of the engine's KV blocks, 0 to 1.", nodeLabels, nil)
	cacheDesc   = prometheus.NewDesc("vllm:cache_config_info", "The engine's KV cache.", append(nodeLabels[:2:2], "block_size", "num_gpu_blocks"), nil)
	railLabels  = []string{"engine", "rail"}
	railBytes   = prometheus.NewDesc("kvferry:rail_bytes_total", "KV bytes that a node's transfers moved over a rail.", append(railLabels[:2:2], "op"), nil)
	railResent  = prometheus.NewDesc("kvferry:rail_resent_bytes_total", "Bytes queued again after their connection was lost.", railLabels, nil)
	railErrors  = prometheus.NewDesc("kvferry:rail_slice_errors_total", "Slices that a rail could not carry.", railLabels, nil)
	railDowns   = prometheus.NewDesc("kvferry:rail_downs_total", "Times that a path over a rail was lost or given up.", railLabels, nil)
	railPaths   = prometheus.NewDesc("kvferry:rail_paths", "Paths to other nodes over a rail, by state.", append(railLabels[:2:2], "state"), nil)
	railFlight  = prometheus.NewDesc("kvferry:rail_in_flight_bytes", "Bytes queued and posted on a rail.", railLabels, nil)
	railRate    = prometheus.NewDesc("kvferry:rail_rate_bytes_per_second", "What a rail's paths were last seen to deliver.", railLabels, nil)
	nodesDesc   = prometheus.NewDesc("kvferry:nodes", "Nodes that take requests.", []string{"role"}, nil)
)

func (c nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningDesc, waitingDesc, kvUsageDesc, cacheDesc, nodesDesc, railBytes, railResent, railErrors, railDowns, railPaths, railFlight, railRate} {
		ch <- d
	}
}

func (c nodeCollector) Collect(ch chan<- prometheus.Metric) {
	up := map[proto.Role]int{proto.Role_ROLE_PREFILL: 0, proto.Role_ROLE_DECODE: 0, proto.Role_ROLE_NONDISAGG: 0}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, m := range c.registry.snapshot() {
		if _, _, ok := m.usable(); ok {
			up[m.info.Role]++
		}
		m.mu.Lock()
		running, waiting, used, total := m.load.Running, m.load.Waiting, m.load.KvBlocksUsed, m.load.KvBlocksTotal
		rails := m.rails
		m.mu.Unlock()
		if total == 0 {
			total = m.info.KvBlocks
		}
		model, id := m.info.Model, m.info.Id
		gauge(runningDesc, float64(running), model, id)
		gauge(waitingDesc, float64(waiting), model, id)
		gauge(kvUsageDesc, float64(used)/float64(max(total, 1)), model, id)
		gauge(cacheDesc, 1, model, id, uintString(m.info.BlockTokens), uintString(total))
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
		}
		for _, r := range rails {
			counter(railBytes, r.BytesWritten, id, r.Rail, "write")
			counter(railBytes, r.BytesRead, id, r.Rail, "read")
			counter(railResent, r.BytesResent, id, r.Rail)
			counter(railErrors, r.Errors, id, r.Rail)
			counter(railDowns, r.Downs, id, r.Rail)
			gauge(railPaths, float64(r.PathsUp), id, r.Rail, "up")
			gauge(railPaths, float64(r.Paths-min(r.Paths, r.PathsUp)), id, r.Rail, "down")
			gauge(railFlight, float64(r.BytesInFlight), id, r.Rail)
			gauge(railRate, float64(r.Rate), id, r.Rail)
		}
	}
	for role, n := range up {
		gauge(nodesDesc, float64(n), roleName(role))
	}
}
