package datasheet

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/internal/model"
)

func shape(t *testing.T, name string) model.Shape {
	t.Helper()
	c, err := model.Read("../../internal/model/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Shape()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func server(t *testing.T, model, gpu string, tp int) *Server {
	t.Helper()
	g, err := ReadGPU(gpu)
	if err != nil {
		t.Fatal(err)
	}
	return &Server{Name: model, Model: shape(t, model), GPU: g, TensorParallel: tp, MemoryUtilization: 0.9, KVElemBytes: 2, MaxModelLen: 8192, MaxNumSeqs: 256, BlockTokens: 16, Engine: "vllm-v0"}
}

// TestPair: MFU and MBU are the medians of the published measurements, by the formulas that they
// are used in.
func TestPair(t *testing.T) {
	var mfu, mbu []float64
	for _, p := range known.Prefills {
		mfu = append(mfu, (2*p.Params*p.Tokens+p.PairFlops*p.Tokens*(p.Tokens-1)/2)/((p.MS-p.Kernels*known.KernelUS/1e3)*p.TFLOPS*1e9))
	}
	for _, d := range known.Decodes {
		mbu = append(mbu, d.GB/((d.MS-d.Kernels*known.KernelUS/1e3)/1e3*d.GBS))
	}
	median := func(all []float64) float64 {
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	if got := median(mfu); math.Abs(got-known.MFU) > 0.005 {
		t.Errorf("the median MFU is %.4f of %.3f, data.json has %v", got, mfu, known.MFU)
	}
	if got := median(mbu); math.Abs(got-known.MBU) > 0.005 {
		t.Errorf("the median MBU is %.4f of %.3f, data.json has %v", got, mbu, known.MBU)
	}
	mbu = nil
	for _, d := range known.Experts {
		mbu = append(mbu, d.GB/((d.MS-d.Kernels*known.KernelUS/1e3)/1e3*d.GBS))
	}
	if got := median(mbu); math.Abs(got-known.ExpertMBU) > 0.005 {
		t.Errorf("the median MBU of experts is %.4f of %.3f, data.json has %v", got, mbu, known.ExpertMBU)
	}
	// On a ring of 8 each sends 2 x 7/8 of what is reduced.
	var rates []float64
	for _, r := range known.AllReduces[1:] {
		rates = append(rates, 1.75*r.Bytes/(r.US-known.AllReduces[0].US)/1e3)
	}
	h100, err := ReadGPU("H100-SXM")
	if err != nil {
		t.Fatal(err)
	}
	if got := median(rates); math.Abs(got-h100.SmallGBS) > 1 {
		t.Errorf("the median rate of small all-reduces is %.1f of %.1f, data.json has %v", got, rates, h100.SmallGBS)
	}
	for _, g := range known.GPUs { // by the rate of its links
		if want := h100.SmallGBS / h100.LinkGBS * g.LinkGBS; g.SmallGBS != 0 && math.Abs(g.SmallGBS/want-1) > 0.05 {
			t.Errorf("%s sends %v GB/s in small all-reduces, want %.1f or none", g.Name, g.SmallGBS, want)
		}
	}
}

// TestSustained: a card with little power slows down, one of those that MFU is of does not.
func TestSustained(t *testing.T) {
	for name, want := range map[string]float64{"A10": 1731.45/312/(522.64/125) - 1, "L4": 7799.84/1978.9/(630.64/242.5) - 1, "H100-SXM": 0} {
		g, err := ReadGPU(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := g.slowdown(); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %.3f, want %.3f", name, got, want)
		}
	}
}

// TestByHand: an A10 with Qwen2.5-7B in 4 bits.
func TestByHand(t *testing.T) {
	e, err := server(t, "qwen2.5-7b-gptq-int4", "A10", 1).Estimate()
	if err != nil {
		t.Fatal(err)
	}
	c := e.Profile.Costs
	// 28 layers of 233,046,016 weights (without norms), of 4.15625 bits; a head of 152,064 x 3584 of 16.
	weights := 28*233046016*4.15625/8 + 2*(152064*3584+57*3584)
	for _, f := range []struct {
		name      string
		got, want float64
	}{
		{"prefill_token_ms", c.PrefillTokenMS, 2 * (28*233046016 + 57*3584) / (125e12 * 0.5) * 1e3},
		{"prefill_attention_ns", c.PrefillAttentionNS, 28 * 4 * 28 * 128 / (125e3 * 0.5)},
		{"prefill_floor_ms", c.PrefillFloorMS, weights / (600e9 * 0.66) * 1e3},
		{"prefill_step_ms", c.PrefillStepMS, 28 * 11 * 0.003},
		{"decode_step_ms", c.DecodeStepMS, weights/(600e9*0.66)*1e3 + 28*11*0.003},
		{"decode_kv_token_ns", c.DecodeKVTokenNS, 57344 / (600 * 0.66)},
		{"decode_token_ms", c.DecodeTokenMS, 2 * (28*233046016 + 57*3584 + 152064*3584) / (125e12 * 0.5) * 1e3},
		{"output_delay_ms", c.OutputDelayMS, 28 * 0.79},
	} {
		if math.Abs(f.got/f.want-1) > 1e-4 {
			t.Errorf("%s is %v, want %v", f.name, f.got, f.want)
		}
	}
}

// TestMemory: what vLLM said of Llama-3-8B with 512 tokens a step on 22.07 GiB: 14.99 of weights,
// 0.22 of activations, 4.60 left for KV.
func TestMemory(t *testing.T) {
	s := server(t, "llama-3-8b", "A10", 1)
	s.MaxBatchedTokens = 512
	m := s.memory()
	if math.Abs(m.Weights/gib-14.99) > 0.1 || math.Abs(m.Activations/gib-0.22) > 0.05 || math.Abs(m.KV/gib-4.60) > 0.15 {
		t.Errorf("%+v", m)
	}
}

// TestBatch: the limits of a step are those that the engine has by itself, unless others are asked for.
func TestBatch(t *testing.T) {
	for _, c := range []struct {
		engine, gpu   string
		asked, tokens int // asked for, of a step
		want          [2]int
	}{
		{engine.VLLMV1, "A10", 0, 0, [2]int{256, 2048}},
		{engine.VLLMV1, "A100-80GB", 0, 0, [2]int{256, 2048}},
		{engine.VLLMV1, "H200", 0, 0, [2]int{1024, 8192}},
		{engine.VLLMV1, "B200", 0, 0, [2]int{1024, 16384}},
		{engine.VLLMV1, "H200", 64, 4096, [2]int{64, 4096}},
		{engine.VLLMV0, "H200", 0, 0, [2]int{256, 8192}}, // the longest prompt
		{engine.SGLang, "H200", 0, 0, [2]int{256, 16384}},
	} {
		s := server(t, "llama-3-8b", c.gpu, 1)
		s.Engine, s.MaxNumSeqs, s.MaxBatchedTokens = c.engine, c.asked, c.tokens
		e, err := s.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		if seqs, tokens := e.Profile.Batch(); [2]int{seqs, tokens} != c.want {
			t.Errorf("%+v: %d, %d", c, seqs, tokens)
		}
	}
	for gpu, want := range map[string]int{"A10": 2048, "L40S": 4096, "A100-80GB": 8192, "H200": 8192, "B200": 16384} {
		s := server(t, "qwen2.5-7b", gpu, 1)
		s.Engine = engine.SGLang
		e, err := s.Estimate()
		if err != nil || e.Profile.Engine.ChunkedPrefillSize != want {
			t.Errorf("SGLang on %s cuts prompts at %d tokens, want %d: %v", gpu, e.Profile.Engine.ChunkedPrefillSize, want, err)
		}
	}
}

// TestOutcome: what comes out is by the costs: a prompt that is longer than a step takes several, a batch that there is no room for is left out.
func TestOutcome(t *testing.T) {
	s := server(t, "qwen2.5-7b-gptq-int4", "A10", 1)
	s.Engine, s.MaxModelLen = engine.VLLMV1, 16384
	e, err := s.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	c := e.Profile.Costs
	want := 4 * c.PrefillStepMS // 8,192 tokens in steps of 2,048
	long := float64(ttft(&e.Profile, 8192, e.step)) / 1e6
	if least := want + 8192*c.PrefillTokenMS + c.PrefillAttentionNS/1e6*8192*8191/2; long < least-0.001 || long > least*(1+c.HotSlowdown) {
		t.Errorf("TTFT of 8,192 tokens is %.1f ms, want %.1f or %.2f times that", long, least, 1+c.HotSlowdown)
	}
	if got, want := float64(itl(&e.Profile, 32, contextTokens))/1e6, c.DecodeStepMS+32*1024*c.DecodeKVTokenNS/1e6; math.Abs(got-want) > 0.001 {
		t.Errorf("ITL of 32 sequences is %.3f ms, want %.3f", got, want)
	}
	for want, there := range map[string]bool{"(8192 tokens)": true, "(batch 32)": true, "(batch 256)": e.Profile.Blocks()*16 >= 256*1024, "room for ": true, "of one GPU that computes the whole model": true} {
		if strings.Contains(e.String(), want) != there {
			t.Errorf("%q is there: %v, in %s", want, !there, e)
		}
	}
}

// TestMonotone: more bandwidth, more peak or more GPUs never cost more, and leave no less for KV.
func TestMonotone(t *testing.T) {
	for _, model := range []string{"qwen2.5-7b", "mixtral-8x7b", "qwen2.5-0.5b"} {
		slow, err := server(t, model, "H200", 1).Estimate()
		if err != nil {
			t.Fatal(err)
		}
		fast := server(t, model, "H200", 1)
		fast.GPU.BandwidthGBS *= 2
		fast.GPU.TFLOPS = map[string]float64{"fp16": 4000}
		quick, err := fast.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		a, b := slow.Profile.Costs, quick.Profile.Costs
		if b.PrefillTokenMS >= a.PrefillTokenMS || b.DecodeStepMS >= a.DecodeStepMS || b.DecodeKVTokenNS >= a.DecodeKVTokenNS || b.PrefillAttentionNS >= a.PrefillAttentionNS {
			t.Errorf("%s: %+v on a faster GPU, %+v before", model, b, a)
		}
		two, err := server(t, model, "H200", 2).Estimate()
		if err != nil || two.Profile.KVBytes <= slow.Profile.KVBytes {
			t.Errorf("%s: %d bytes for KV on two GPUs, %d on one: %v", model, two.Profile.KVBytes, slow.Profile.KVBytes, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(s *Server){
		"a divisor of the model's 128 heads": func(s *Server) { s.TensorParallel = 3 },
		"use more GPUs":                      func(s *Server) { s.TensorParallel = 2 },
		"use a share above 0":                func(s *Server) { s.MemoryUtilization = math.NaN() },
		"use vllm-v0, vllm-v1, sglang":       func(s *Server) { s.Engine = "tgi" },
		"window of 4096":                     func(s *Server) { s.Model.Window = 4096 },
		"max_position_embeddings":            func(s *Server) { s.MaxModelLen = 1 << 20 },
	} {
		s := server(t, "deepseek-v3", "H200", 8)
		change(s)
		_, err := s.Estimate()
		var invalid *config.Invalid
		var fault *config.Fault
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &invalid) && !errors.As(err, &fault) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for text, want := range map[string]string{
		`{"name":"X","memory_gib":1}`: "bandwidth_gb_s is 0", `{"nam":"X"}`: "is it misspelt", `{`: "cut off",
	} {
		path := filepath.Join(t.TempDir(), "gpu.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadGPU(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	s := server(t, "qwen2.5-7b-gptq-int4", "../../examples/profile/rtx-4090.json", 1) // no link is asked for with one GPU
	if _, err := s.Estimate(); err != nil {
		t.Error(err)
	}
	s.TensorParallel = 2
	if _, err := s.Estimate(); err == nil || !strings.Contains(err.Error(), "the GPU's file needs link_gb_s and all_reduce_us") {
		t.Error(err)
	}
	if _, err := ReadGPU("A11"); err == nil || !strings.Contains(err.Error(), "A100-80GB") {
		t.Error(err)
	}
}
