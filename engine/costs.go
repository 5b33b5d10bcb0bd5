package engine

import (
	"kvferry/internal/config"
	"kvferry/kvcache"
)

// Costs are the parameters of CostModel and of the front end around it. Those that a
// file may leave out are 0 then, and cost nothing. docs/profiles.md has the formulas in
// one place, and how to get each figure.
type Costs struct {
	// RequestMS: HTTP, tokenise, IPC and detokenise, once a request.
	RequestMS float64 `json:"request_ms"`
	// FrontEndInMS: what the process before the scheduler does of each request: HTTP, tokenise
	// and hand over. RequestMS, which requests wait beside each other, comes on top.
	FrontEndInMS float64 `json:"front_end_in_ms,omitzero"`
	// FrontEndOutMS: what the same process does of each token that leaves: detokenise and
	// hand over. The tokens of a step leave together. Requests and tokens go through it one
	// after the other, in the order in which they come, so a burst of requests holds
	// tokens back.
	FrontEndOutMS float64 `json:"front_end_out_ms,omitzero"`
	// PrefillStepMS: launching a step that computes prompt tokens.
	PrefillStepMS float64 `json:"prefill_step_ms"`
	// PrefillTokenMS: one prompt token on a cold GPU, without its attention to those before
	// it: 2 operations for each weight that it goes through, over the rate of the GPU.
	PrefillTokenMS float64 `json:"prefill_token_ms"`
	// PrefillAttentionNS: a pair of a prompt token and one before it, on a cold GPU. Scores
	// and sums are a multiplication and an addition each for every element of every head:
	// 4 x layers x heads x head_dim operations (FlashAttention-2, Dao 2023, counts so), over
	// the rate of the GPU. heads are those of the queries.
	PrefillAttentionNS float64 `json:"prefill_attention_ns,omitzero"`
	// PrefillFloorMS: what a step that computes prompts takes at least, however few tokens
	// it has: all weights but experts are read once, their bytes over the memory's rate.
	PrefillFloorMS float64 `json:"prefill_floor_ms,omitzero"`
	// HotSlowdown: how much longer a prompt token takes on a GPU that has been busy
	// for much longer than HeatMS (0.4: 40 % longer).
	HotSlowdown float64 `json:"hot_slowdown"`
	// HeatMS: the time constant of heating up and of cooling down; see CostModel.
	HeatMS float64 `json:"heat_ms"`
	// ColdMS: once, on the first step with prompts that has several sequences: kernels for as many
	// tokens are compiled and tuned when they are first needed. One prompt alone is what
	// servers and clients warm up with.
	ColdMS float64 `json:"cold_ms,omitzero"`
	// DecodeStepMS + DecodeSeqMS x batch: one decode step. The step reads all weights but
	// experts, their bytes over the memory's rate; a sequence is sampled.
	DecodeStepMS float64 `json:"decode_step_ms"`
	DecodeSeqMS  float64 `json:"decode_seq_ms"`
	// DecodeKVTokenNS: a token of the context that a sequence's decode reads: its KV's
	// bytes over the memory's rate. A batch reads the sum of its contexts.
	DecodeKVTokenNS float64 `json:"decode_kv_token_ns,omitzero"`
	// DecodeTokenMS: the arithmetic of one sequence's decode: 2 operations for each weight
	// that it goes through, the output head's too, over the rate of the GPU. It is done while
	// weights are read: a decode step takes at least PrefillStepMS, which is its launch too,
	// and this for each sequence.
	DecodeTokenMS  float64        `json:"decode_token_ms,omitzero"`
	Experts        Experts        `json:"experts,omitzero"`
	TensorParallel TensorParallel `json:"tensor_parallel,omitzero"`
	// OutputDelayMS: the tokens of a step leave only once the next step has been
	// launched, if anything is there to launch; launching a prefill or mixed step takes
	// this long, a decode step (a captured graph) nothing. On the nodes of a
	// prefill/decode pair only v0's prefill side is like that; see V0Costs.
	OutputDelayMS float64 `json:"output_delay_ms"`
}

// Experts are those of a mixture of experts. A step reads the weights of those that its
// tokens are routed to. A router that is trained to balance sends a token to any PerToken
// of Count alike, so n tokens leave one unread with probability (1 - PerToken/Count)^n, and
//
//	Count x (1 - (1 - PerToken/Count)^n) + Shared
//
// are read. Count 0 is a model without experts.
type Experts struct {
	Count    int     `json:"count"`     // routed experts of a layer
	PerToken int     `json:"per_token"` // of them, that a token goes through
	Shared   int     `json:"shared"`    // experts that every token goes through besides
	ReadMS   float64 `json:"read_ms"`   // reading one expert's weights, in all layers
}

func (e Experts) validate() error {
	var bad config.Faults
	if e == (Experts{}) {
		return nil
	}
	config.Between(&bad, "count", e.Count, 1, 1<<20)
	if e.PerToken < 1 || e.PerToken > max(e.Count, 1) {
		bad.Add("per_token", e.PerToken, "use 1 to count (%d)", e.Count)
	}
	config.Between(&bad, "shared", e.Shared, 0, 1<<20)
	checkMS(&bad, "read_ms", e.ReadMS)
	return bad.Err("engine.Experts")
}

// TensorParallel is a model cut over several GPUs that compute each layer together. The
// costs of a profile are those of one such GPU that does all by itself; with Size of them
// each has 1/Size of the weights and of the heads. So these are divided by Size:
// prefill_token_ms, prefill_attention_ns, prefill_floor_ms, decode_step_ms (disagg's too),
// decode_token_ms and experts.read_ms. A head of the KV is not cut, and where there are fewer than GPUs
// several have the same one: of decode_kv_token_ns, and of a token's KV, a GPU has
// ceil(kv_heads/Size) / kv_heads. What is launched, sampled and said to clients is not
// divided.
//
// Each layer ends its attention and its feed-forward part with an all-reduce of the
// step's hidden states (Megatron-LM, Shoeybi et al. 2019), of 2 bytes an element. On a
// ring a GPU sends and receives 2 (Size-1)/Size times what is reduced:
//
//	2 x layers x (latency + 2 (Size-1)/Size x tokens x hidden_size x 2 B / rate)
//
// Small ones do not reach the rate of large ones: too few blocks of threads have bytes under
// way. So the first SmallBytes of each go at SmallBusGBS, if that is given.
//
// Size 0 is the same as 1.
type TensorParallel struct {
	Size int `json:"size"`
	// AllReduceLatencyUS: an all-reduce of next to nothing, in microseconds.
	AllReduceLatencyUS float64 `json:"all_reduce_latency_us"`
	// BusGBS: GB/s that a GPU sends, and receives, in a large one; NCCL's tests call it
	// busbw.
	BusGBS float64 `json:"bus_gb_s"`
	// SmallBusGBS and SmallBytes: the rate of small ones, and up to how many bytes of what is
	// reduced.
	SmallBusGBS float64 `json:"small_bus_gb_s,omitzero"`
	SmallBytes  int     `json:"small_bytes,omitzero"`
}

func (t TensorParallel) validate() error {
	var bad config.Faults
	if t == (TensorParallel{}) {
		return nil
	}
	config.Between(&bad, "size", t.Size, 1, 1024)
	if !(t.AllReduceLatencyUS >= 0 && t.AllReduceLatencyUS < 1e6) {
		bad.Add("all_reduce_latency_us", t.AllReduceLatencyUS, "use a number of microseconds from 0 to 1e6")
	}
	if t.Size > 1 && !(t.BusGBS >= 1e-3 && t.BusGBS < 1e6) || !(t.BusGBS >= 0) {
		bad.Add("bus_gb_s", t.BusGBS, "say how many GB/s a GPU sends in an all-reduce: busbw of all_reduce_perf, of NCCL's tests")
	}
	if !(t.SmallBusGBS == 0 || t.SmallBusGBS >= 1e-3 && t.SmallBusGBS <= t.BusGBS) {
		bad.Add("small_bus_gb_s", t.SmallBusGBS, "use at most bus_gb_s (%v), or leave it out", t.BusGBS)
	}
	config.Between(&bad, "small_bytes", t.SmallBytes, 0, 1<<40)
	return bad.Err("engine.TensorParallel")
}

// share of a token's KV is what one GPU has.
func (t TensorParallel) share(g kvcache.Geometry) float64 {
	if g.KVHeads < 1 || t.Size < 2 {
		return 1
	}
	return float64(t.heads(g)) / float64(g.KVHeads)
}

// heads of the KV are on one GPU.
func (t TensorParallel) heads(g kvcache.Geometry) int {
	size := max(t.Size, 1)
	return (g.KVHeads + size - 1) / size
}

// validate lists every fault by its field, as a [config.Invalid].
func (c Costs) validate() error {
	var bad config.Faults
	checkMS(&bad, "request_ms", c.RequestMS)
	checkMS(&bad, "front_end_in_ms", c.FrontEndInMS)
	checkMS(&bad, "front_end_out_ms", c.FrontEndOutMS)
	checkMS(&bad, "prefill_step_ms", c.PrefillStepMS)
	checkMS(&bad, "prefill_token_ms", c.PrefillTokenMS)
	checkNS(&bad, "prefill_attention_ns", c.PrefillAttentionNS)
	checkMS(&bad, "prefill_floor_ms", c.PrefillFloorMS)
	if !(c.HotSlowdown >= 0 && c.HotSlowdown < 1e3) {
		bad.Add("hot_slowdown", c.HotSlowdown, "use a share from 0 to 1000; 0.4: a hot GPU takes 40 %% longer")
	}
	checkMS(&bad, "heat_ms", c.HeatMS)
	if c.HotSlowdown > 0 && c.HeatMS == 0 {
		bad.Add("heat_ms", c.HeatMS, "with hot_slowdown %v, say over how many milliseconds the GPU heats up", c.HotSlowdown)
	}
	checkMS(&bad, "cold_ms", c.ColdMS)
	checkMS(&bad, "decode_step_ms", c.DecodeStepMS)
	checkMS(&bad, "decode_seq_ms", c.DecodeSeqMS)
	checkNS(&bad, "decode_kv_token_ns", c.DecodeKVTokenNS)
	checkMS(&bad, "decode_token_ms", c.DecodeTokenMS)
	bad.Check("experts", c.Experts.validate())
	bad.Check("tensor_parallel", c.TensorParallel.validate())
	checkMS(&bad, "output_delay_ms", c.OutputDelayMS)
	return bad.Err("engine.Costs")
}

func checkMS(bad *config.Faults, field string, v float64) {
	if !(v >= 0 && v < 1e6) { // also refuses NaN
		bad.Add(field, v, "use a number of milliseconds from 0 to 1e6")
	}
}

func checkNS(bad *config.Faults, field string, v float64) {
	if !(v >= 0 && v < 1e6) {
		bad.Add(field, v, "use a number of nanoseconds from 0 to 1e6")
	}
}
