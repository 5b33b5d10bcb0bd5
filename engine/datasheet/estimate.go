package datasheet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/internal/model"
	"kvferry/kvcache"
)

// A Server is what a profile is wanted of. All fields are set but those that say otherwise.
type Server struct {
	Name              string // that clients ask for
	Model             model.Shape
	GPU               GPU
	TensorParallel    int     // GPUs that compute each layer together
	MemoryUtilization float64 // of the GPU's memory, as vLLM has it
	KVElemBytes       int
	MaxModelLen       int // 0: the model's, at most 32,768
	MaxNumSeqs        int // 0: the engine's
	MaxBatchedTokens  int // tokens of a step; 0: the engine's
	BlockTokens       int
	Engine            string // whose scheduler it has: one of engine.Schedulers
	Known             Known  // what it is known to take, if anything
}

// A Parameter is one of a profile's, and where it comes from.
type Parameter struct{ Name, Value, From string }

// An Estimate is a profile that nothing was fitted to.
type Estimate struct {
	Profile    engine.Profile
	Parameters []Parameter
	Memory     Memory

	step  int    // tokens of a step, at most
	known string // what was given
}

// Memory is a GPU's, in bytes. The engine's own is 0.1 GiB: vLLM's logs call it non_torch_memory.
type Memory struct{ Total, Usable, Weights, Activations, Engine, KV float64 }

const (
	gib         = 1 << 30
	engineBytes = 0.1 * gib
	maxLen      = 32768
)

// Kernels of a layer of attention and of a feed-forward layer, counted in the model code of vLLM
// and SGLang. Attention: norm, queries keys and values, positions, writing KV, attention, merging
// its parts, output. Latent attention has projections down and up, two norms more, and copies.
// Experts: norm, router, choice, two that sort tokens, two products, activation, sum. Weights and
// activations of 8 bits have a kernel more for each product, which quantises its input.
const (
	attentionKernels, attentionProducts = 7, 2
	latentKernels, latentProducts       = 13, 5
	denseKernels, denseProducts         = 4, 2
	expertKernels, expertProducts       = 9, 2
	sharedKernels, sharedProducts       = 4, 2
	qkNormKernels                       = 2
)

// kernels is how many a step has.
func kernels(m *model.Shape) float64 {
	each := func(layers, kernels, products int) float64 {
		if m.Quantization.Compute != "fp16" {
			kernels += products
		}
		return float64(layers * kernels)
	}
	n := each(m.Layers-m.ExpertLayers, denseKernels, denseProducts) + each(m.ExpertLayers, expertKernels, expertProducts)
	if m.Latent {
		n += each(m.Layers, latentKernels, latentProducts)
	} else {
		n += each(m.Layers, attentionKernels, attentionProducts)
	}
	if m.QKNorm {
		n += float64(m.Layers * qkNormKernels)
	}
	if m.SharedExperts {
		n += each(m.ExpertLayers, sharedKernels, sharedProducts)
	}
	return n
}

// Validate lists what cannot be, by field, as a [config.Invalid].
func (s *Server) Validate() error {
	var bad config.Faults
	if n := s.TensorParallel; n < 1 || n > 64 || s.Model.Heads%n != 0 {
		bad.Add("TensorParallel", n, "use 1 to 64 GPUs, a divisor of the model's %d heads", s.Model.Heads)
	}
	if s.TensorParallel > 1 && !(s.GPU.LinkGBS > 0 && s.GPU.LinkGBS < 1e7 && s.GPU.AllReduceUS > 0 && s.GPU.AllReduceUS < 1e7) {
		bad.Add("TensorParallel", s.TensorParallel, "the GPU's file needs link_gb_s and all_reduce_us for that: GB/s in one direction, and the microseconds of an all-reduce of next to nothing; a PCIe 4.0 x16 card has 32, and 42 was measured")
	}
	if !(s.MemoryUtilization > 0 && s.MemoryUtilization <= 1) {
		bad.Add("MemoryUtilization", s.MemoryUtilization, "use a share above 0, up to 1; vLLM has 0.9")
	}
	if s.MaxModelLen < 0 || s.Model.MaxLen > 0 && s.MaxModelLen > s.Model.MaxLen {
		bad.Add("MaxModelLen", s.MaxModelLen, "use up to max_position_embeddings (%d)", s.Model.MaxLen)
	}
	if w := s.Model.Window; w > 0 && s.maxLen() > w {
		bad.Add("MaxModelLen", s.maxLen(), "the model has layers with a window of %d tokens, and longer contexts than that are not modelled: use %d or less", w, w)
	}
	if !slices.Contains(engine.Schedulers(), s.Engine) {
		bad.Add("Engine", s.Engine, "use %s", strings.Join(engine.Schedulers(), ", "))
	}
	config.Between(&bad, "MaxNumSeqs", s.MaxNumSeqs, 0, 1<<20)
	config.Between(&bad, "MaxBatchedTokens", s.MaxBatchedTokens, 0, 1<<20)
	config.Between(&bad, "BlockTokens", s.BlockTokens, 1, 1<<20)
	config.Between(&bad, "KVElemBytes", s.KVElemBytes, 1, 1<<20)
	s.validateKnown(&bad)
	return bad.Err("datasheet.Server")
}

func (s *Server) maxLen() int {
	switch {
	case s.MaxModelLen > 0:
		return s.MaxModelLen
	case s.Model.MaxLen > 0:
		return min(s.Model.MaxLen, maxLen)
	}
	return maxLen
}

// chunk is the chunked_prefill_size that SGLang takes by itself: by the memory of a GPU (ServerArgs, _handle_gpu_memory_settings).
func (s *Server) chunk() int {
	switch memory := s.GPU.MemoryGiB; {
	case memory < 35:
		return 2048
	case memory < 60:
		return 4096
	case memory < 160:
		return 8192
	}
	return 16384
}

// Batch is how many sequences a batch has at most, and how many tokens a step: as asked, or by the engine's defaults.
// Those of vLLM 0.32's server go by the memory of the GPU (EngineArgs), with an exception for A100s.
func (s *Server) Batch() (seqs, tokens int) {
	seqs = 256
	switch s.Engine {
	case engine.VLLMV0:
		tokens = s.maxLen()
	case engine.SGLang:
		tokens = s.chunk()
	default:
		switch memory := s.GPU.MemoryGiB; {
		case memory >= 160:
			seqs, tokens = 1024, 16384
		case memory >= 70 && !strings.HasPrefix(s.GPU.Name, "A100"):
			seqs, tokens = 1024, 8192
		default:
			tokens = 2048
		}
	}
	return cmp.Or(s.MaxNumSeqs, seqs), cmp.Or(s.MaxBatchedTokens, tokens)
}

// memory is what a GPU's is used for. Activations are those of vLLM's profiling run, of as many
// tokens as a step has: two hidden states, and the widest that a layer makes; and the logits of a
// full batch, in 16 and in 32 bits.
func (s *Server) memory() Memory {
	m, n := &s.Model, float64(s.TensorParallel)
	seqs, tokens := s.Batch()
	widest := float64(max(3*m.Width, m.Attention)) / n
	if m.Experts > 0 {
		widest = max(widest, float64(m.PerToken)*(3*float64(m.ExpertWidth)/n+float64(m.Hidden)))
	}
	u := Memory{
		Total: s.GPU.MemoryGiB * gib, Engine: engineBytes,
		Weights:     (m.WeightBytes() + (n-1)*m.CopiedBytes()) / n,
		Activations: float64(tokens)*2*(2*float64(m.Hidden)+widest) + float64(seqs)*float64(m.Vocab)*6,
	}
	u.Usable = u.Total * s.MemoryUtilization
	u.KV = u.Usable - u.Weights - u.Activations - u.Engine
	return u
}

// Estimate says what the server costs.
func (s *Server) Estimate() (*Estimate, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	m, length := &s.Model, s.maxLen()
	e := &Estimate{Memory: s.memory()}
	g := kvcache.Geometry{Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.KVElem / 2, ElemBytes: s.KVElemBytes, BlockTokens: s.BlockTokens, HiddenSize: m.Hidden}
	if need := e.Memory.Weights + e.Memory.Activations + e.Memory.Engine; e.Memory.KV <= 0 {
		return nil, config.NewFault("TensorParallel", s.TensorParallel, "weights (%.1f GiB), activations and the engine take %.1f GiB of a GPU, which may use %.1f: use more GPUs, fewer bits a weight, or a shorter model length", e.Memory.Weights/gib, need/gib, e.Memory.Usable/gib)
	}
	tp := float64(s.TensorParallel)
	peak, as := s.GPU.peak(m.Quantization.Compute)
	half, _ := s.GPU.peak("fp16")
	rate := s.GPU.BandwidthGBS * known.MBU              // bytes a ns
	arithmetic := func(flops, tflops float64) float64 { // ns
		return flops / (tflops * 1e3 * known.MFU)
	}
	launch := kernels(m) * known.KernelUS / 1e3 // ms
	// Costs are those of a GPU that does all by itself; what each of several has whole counts once
	// for each, and so does launching, which several do at the same time.
	dense := (m.DenseBytes() + (tp-1)*m.CopiedBytes()) / rate / 1e6
	through := 2 * (m.Active() - m.Head)
	c := engine.Costs{
		PrefillStepMS: launch, PrefillFloorMS: dense,
		PrefillTokenMS:     arithmetic(through, peak) / 1e6,
		PrefillAttentionNS: arithmetic(m.PairFlops, half),
		DecodeStepMS:       dense + tp*launch,
		DecodeKVTokenNS:    float64(g.TokenBytes()) / rate,
		DecodeTokenMS:      (arithmetic(through, peak) + arithmetic(2*m.Head, half)) / 1e6,
	}
	if m.Experts > 0 {
		c.Experts = engine.Experts{Count: m.Experts, PerToken: m.PerToken, ReadMS: m.ExpertBytes() / (s.GPU.BandwidthGBS * known.ExpertMBU) / 1e6}
	}
	if s.TensorParallel > 1 {
		c.TensorParallel = engine.TensorParallel{Size: s.TensorParallel, AllReduceLatencyUS: s.GPU.AllReduceUS, BusGBS: s.GPU.LinkGBS * known.BusShare}
		if s.GPU.SmallGBS > 0 {
			c.TensorParallel.SmallBusGBS, c.TensorParallel.SmallBytes = s.GPU.SmallGBS, known.SmallBytes
		}
	}
	if c.HotSlowdown, _ = s.GPU.slowdown(); c.HotSlowdown > 0 {
		c.HeatMS = known.HeatMS
	}
	if s.Engine == engine.VLLMV0 {
		c.OutputDelayMS = float64(m.Layers) * known.EagerLayerMS
	}
	round(&c.PrefillStepMS, &c.PrefillFloorMS, &c.PrefillTokenMS, &c.PrefillAttentionNS, &c.DecodeStepMS, &c.DecodeKVTokenNS, &c.DecodeTokenMS,
		&c.Experts.ReadMS, &c.TensorParallel.BusGBS, &c.HotSlowdown, &c.OutputDelayMS)
	seqs, tokens := s.Batch()
	name := fmt.Sprintf("%s on %d x %s%s", s.Name, s.TensorParallel, s.GPU.Name, Mark)
	if e.known = s.Known.String(); e.known != "" {
		name += " and a known " + e.known
	}
	e.Profile = engine.Profile{
		Name: name, GPU: s.GPU.Name, Model: s.Name, Vocab: m.Vocab,
		KVGeometry: g, KVBytes: int64(e.Memory.KV), MaxModelLen: length, MaxNumSeqs: seqs, ChunkTokens: 512, Costs: c,
		Engine: engine.Options{Scheduler: s.Engine},
		Disagg: engine.DisaggCosts{DecodeStepMS: c.DecodeStepMS},
	}
	e.step = tokens
	if s.Engine == engine.SGLang { // whose limit is its own default, unless asked for
		e.Profile.Engine.ChunkedPrefillSize = s.chunk()
		e.step, tokens = min(tokens, s.chunk()), s.MaxBatchedTokens
	}
	e.Profile.SetBatch(0, tokens)
	if e.known != "" {
		if err := s.anchor(e); err != nil {
			return nil, err
		}
	}
	e.Parameters = parameters(s, &e.Profile.Costs, peak, as, half)
	return e, e.Profile.Validate()
}

// Mark is in the names of profiles that were made of a datasheet, and KnownError is what reports
// say of such a profile: how far it was from what was published (docs/validation.md).
const (
	Mark       = ", from datasheet"
	KnownError = "a datasheet's costs, fitted to nothing: where figures are published, median errors are 10 to 38 % of TPOT and ITL, and 72 to 84 % of TTFT"
)

// round leaves six digits: more say nothing.
func round(all ...*float64) {
	for _, v := range all {
		if *v != 0 {
			scale := math.Pow(10, 6-math.Ceil(math.Log10(math.Abs(*v))))
			*v = math.Round(*v*scale) / scale
		}
	}
}

// parameters says where each comes from.
func parameters(s *Server, c *engine.Costs, peak float64, as string, half float64) []Parameter {
	m := &s.Model
	read := fmt.Sprintf("(%.0f GB/s x MBU %.2f)", s.GPU.BandwidthGBS, known.MBU)
	formula := fmt.Sprintf("2 x %.2f G weights / (%.0f TFLOPS %s x MFU %.2f)", (m.Active()-m.Head)/1e9, peak, as, known.MFU)
	token, arithmetic := formula, "the same"
	if s.Known.TTFT > 0 {
		token, arithmetic = s.Known.ttft(), formula
	}
	launch := fmt.Sprintf("%.0f kernels x %.0f us (%s)", kernels(m), known.KernelUS, known.KernelSource)
	if s.Known.ITL > 0 {
		launch = fmt.Sprintf("%s; %.0f kernels x %.0f us would be %.3f", s.Known.itl(), kernels(m), known.KernelUS, kernels(m)*known.KernelUS/1e3)
	}
	decode := "the floor, and launching the kernels of prefill_step_ms"
	if s.TensorParallel > 1 {
		decode += fmt.Sprintf(", %d times: a step takes 1/%d of this, and launching is not shared", s.TensorParallel, s.TensorParallel)
	}
	all := []Parameter{
		{"prefill_token_ms", fmt.Sprintf("%.4f", c.PrefillTokenMS), token},
		{"prefill_attention_ns", fmt.Sprintf("%.4f", c.PrefillAttentionNS), fmt.Sprintf("%.3f M operations a pair / (%.0f TFLOPS fp16 x MFU %.2f)", m.PairFlops/1e6, half, known.MFU)},
		{"prefill_floor_ms", fmt.Sprintf("%.3f", c.PrefillFloorMS), fmt.Sprintf("%.2f GB of weights without experts / %s", m.DenseBytes()/1e9, read)},
		{"prefill_step_ms", fmt.Sprintf("%.3f", c.PrefillStepMS), launch},
		{"decode_step_ms", fmt.Sprintf("%.3f", c.DecodeStepMS), decode},
		{"decode_token_ms", fmt.Sprintf("%.4f", c.DecodeTokenMS), fmt.Sprintf("%s with the output head, %.2f G weights of 16 bits: what large batches take at least", arithmetic, m.Head/1e9)},
		{"decode_kv_token_ns", fmt.Sprintf("%.3f", c.DecodeKVTokenNS), fmt.Sprintf("%d bytes of KV a token / %s", m.Layers*m.KVHeads*m.KVElem*s.KVElemBytes, read)},
	}
	if m.Experts > 0 {
		all = append(all, Parameter{"experts.read_ms", fmt.Sprintf("%.4f", c.Experts.ReadMS), fmt.Sprintf("%.2f GB of one of %d experts / (%.0f GB/s x %.2f, which their kernels reach); a token goes through %d", m.ExpertBytes()/1e9, m.Experts, s.GPU.BandwidthGBS, known.ExpertMBU, m.PerToken)})
	}
	if s.TensorParallel > 1 {
		all = append(all,
			Parameter{"tensor_parallel.bus_gb_s", fmt.Sprintf("%.0f", c.TensorParallel.BusGBS), fmt.Sprintf("%.0f GB/s of %s x %.2f (%s)", s.GPU.LinkGBS, s.GPU.Interconnect, known.BusShare, known.BusSource)},
			Parameter{"tensor_parallel.all_reduce_latency_us", fmt.Sprint(c.TensorParallel.AllReduceLatencyUS), known.AllReduceSource})
	}
	if tp := c.TensorParallel; tp.SmallBytes > 0 {
		all = append(all, Parameter{"tensor_parallel.small_bus_gb_s", fmt.Sprint(tp.SmallBusGBS), fmt.Sprintf("the first %d KiB of an all-reduce (%s)", tp.SmallBytes>>10, known.SmallSource)})
	}
	if c.HotSlowdown > 0 {
		_, source := s.GPU.slowdown()
		all = append(all,
			Parameter{"hot_slowdown", fmt.Sprintf("%.3f", c.HotSlowdown), source},
			Parameter{"heat_ms", fmt.Sprint(c.HeatMS), known.HeatSource})
	}
	if c.OutputDelayMS > 0 {
		all = append(all, Parameter{"output_delay_ms", fmt.Sprintf("%.1f", c.OutputDelayMS), fmt.Sprintf("%d layers x %.2f ms, launched one kernel after the other while tokens wait (%s)", m.Layers, known.EagerLayerMS, known.EagerSource)})
	}
	return append(all, Parameter{"request_ms, decode_seq_ms", "0", "no datasheet says: measure them"})
}
