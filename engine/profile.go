package engine

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
)

// DefaultProfile is the name of the profile that ships with the project: an A10
// serving Qwen2.5-7B-Instruct-GPTQ-Int4 with vLLM 0.6.2, fitted to the 25 cells
// that Mooncake published.
const DefaultProfile = "a10-qwen2.5-7b-int4"

// AttentionProfile is the same GPU and model with attention in, fitted to the same cells:
// what prompts and contexts cost that are longer than the published ones follows from the
// model's shape and the GPU's rates, and not from the published ones alone.
const AttentionProfile = "a10-qwen2.5-7b-int4-attention"

// profiles has a profile a file. zero and itl10 have no GPU in mind: they show what the serving
// path costs.
//
//go:embed profiles
var profiles embed.FS

// Profiles are the names of those that ship with the project.
func Profiles() []string {
	files, err := profiles.ReadDir("profiles")
	if err != nil {
		panic(fmt.Sprintf("engine: %v", err)) // it is part of the program
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	return names
}

// A Profile describes one GPU serving one model with one engine: what steps
// cost, what a token's KV weighs and what the published hand-off costs. It is
// read from JSON; durations are milliseconds, MB is 1e6 bytes.
//
// To write one for another GPU or model, copy a shipped file. kv_geometry is in
// the model's config.json, kv_bytes and the limits are in the engine's log when it
// starts. Then measure with one request at a time: the time to the first token
// over prompt lengths is a line through request_ms + prefill_step_ms with the
// slope prefill_token_ms; after a minute of load the slope is 1 + hot_slowdown
// times that (0, with heat_ms 0, if it is not). The time between tokens over the
// batch is a line through decode_step_ms with the slope decode_seq_ms, and on a node
// that only decodes a line through disagg.decode_step_ms. Leave
// output_delay_ms and disagg.v0 at 0 unless you reproduce an engine that has them. The
// costs that the shipped file leaves out matter where prompts are long, contexts long,
// batches large or GPUs several; see Costs.
type Profile struct {
	Name  string `json:"name"`  // in reports
	GPU   string `json:"gpu"`   // in reports; may be empty
	Model string `json:"model"` // what clients ask for
	Vocab int    `json:"vocab"` // token ids are in [0, vocab)

	KVGeometry  kvcache.Geometry `json:"kv_geometry"`
	KVBytes     int64            `json:"kv_bytes"`      // a GPU's memory left for KV beside the weights
	MaxModelLen int              `json:"max_model_len"` // tokens of prompt and output together

	MaxNumSeqs       int `json:"max_num_seqs"`                    // sequences in the batch
	MaxBatchedTokens int `json:"max_num_batched_tokens,omitzero"` // of vllm-v0 alone, prefill-first: prompt tokens in one step; at least max_model_len
	ChunkTokens      int `json:"chunk_tokens"`                    // chunked: tokens in one step, decodes included

	// Engine says which engine's scheduler forms the steps. These three limits are vllm-v0's.
	Engine Options `json:"engine,omitzero"`

	Costs Costs `json:"costs"`
	LoRA  LoRA  `json:"lora,omitzero"`
	// Disagg is what differs on a node of a prefill/decode pair.
	Disagg DisaggCosts `json:"disagg"`
	// Links are modelled NICs by name, for the paced transfer. The bench's settings
	// name tcp, rdma and rdma2.
	Links map[string]LinkCost `json:"links"`
}

// DisaggCosts replace or add to Costs on disaggregated nodes.
type DisaggCosts struct {
	DecodeStepMS float64 `json:"decode_step_ms"` // instead of Costs.DecodeStepMS
	// V0 is the published hand-off; see package connector.
	V0 V0Costs `json:"v0"`
}

// V0Costs are the couplings of the published system. One more has its figure in
// Costs.OutputDelayMS: where a prompt waits, the answer of the one before leaves only
// once that prompt is launched, also while copies hold its launch back, and the delay
// after it. If answers leave at once instead, their consumers ask for copies that
// wait for the whole of the next prefill, with the decode engine standing still: at
// 256/q4 over rdma the P99 TPOT is 81.8 ms then, where 41.0 was published and 39.1
// comes out with the rule.
//
// The shipped figures and links were fitted together to the 15 disaggregated cells
// (9 parameters), on the prompt lengths that package bench draws; hop_ms and the link
// rdma2 once more when answers began to wait (they were 16.77 and 0.16). Who goes
// first, a copy or a prefill, is decided by fractions of a millisecond, and one
// decision can move a mean by half; so the fit was held to the limits of bench's
// tests, the order of settings included, with control messages of 0.05 to 0.35 ms,
// every parameter moved by up to 0.1 %, and up to 0.04 ms a MB added to each receive,
// which is what real sockets were seen to add: 399 of 400 such draws keep them.
// Single figures carry +-15 %.
type V0Costs struct {
	HopMS           float64 `json:"hop_ms"`             // prefill's answer to the request's arrival at decode
	ReceiveMS       float64 `json:"receive_ms"`         // fixed cost of a receive
	ProducerMSPerMB float64 `json:"producer_ms_per_mb"` // device-to-host copy, pickle; holds back the next prefill
	ConsumerMSPerMB float64 `json:"consumer_ms_per_mb"` // unpickle, host-to-device copy, after the wire
	ExtractMSPerMB  float64 `json:"extract_ms_per_mb"`  // extraction inside the prefill step
	LaunchGapMS     float64 `json:"launch_gap_ms"`      // how long a pending copy may hold back the next prefill launch
}

// LinkCost is a modelled NIC: a transfer of n MB that has it to itself takes
// latency_us + n x ms_per_mb.
type LinkCost struct {
	MSPerMB   float64 `json:"ms_per_mb"`  // 0.724 is 1.38 GB/s
	LatencyUS float64 `json:"latency_us"` // microseconds, once a transfer
}

// LoadProfile reads the profile with that name if it ships with the project,
// and the file at that path otherwise.
func LoadProfile(nameOrPath string) (*Profile, error) {
	data, err := profiles.ReadFile("profiles/" + nameOrPath + ".json")
	if err != nil {
		if data, err = config.ReadFile(nameOrPath); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w, nor a shipped profile of that name: use %s or a JSON file", err, strings.Join(Profiles(), ", "))
		} else if err != nil {
			return nil, err
		}
	}
	p, err := ParseProfile(data)
	if err != nil {
		text := config.Named(err, nil).Error() // the file has fields, not a Go type
		return nil, fmt.Errorf("%q: %s", nameOrPath, strings.ReplaceAll(text, "\n", "; "))
	}
	return p, nil
}

// ParseProfile reads a profile from JSON and validates it. A field it does not
// know is an error: a misspelt cost would silently be zero. So would one that is left
// out, and for those that make up a step that is an error too.
func ParseProfile(data []byte) (*Profile, error) {
	var p Profile
	if err := config.Unmarshal(data, &p, true); err != nil {
		return nil, err
	}
	var bad config.Faults
	if err := missingCosts(data, &bad); err != nil {
		return nil, err
	}
	bad.Check("", p.Validate())
	if err := bad.Err("engine.Profile"); err != nil {
		return nil, err
	}
	return &p, nil
}

func missingCosts(data []byte, bad *config.Faults) error {
	var given struct {
		Costs  map[string]any `json:"costs"`
		Disagg map[string]any `json:"disagg"`
	}
	if err := config.Unmarshal(data, &given, false); err != nil {
		return err
	}
	for _, name := range []string{"request_ms", "prefill_step_ms", "prefill_token_ms", "decode_step_ms", "decode_seq_ms"} {
		if _, ok := given.Costs[name]; !ok {
			bad.Add("costs."+name, nil, "measure it, or write 0")
		}
	}
	if _, ok := given.Disagg["decode_step_ms"]; !ok {
		bad.Add("disagg.decode_step_ms", nil, "a decode node's steps are not those of one that computes prompts too: measure it, or write what costs.decode_step_ms is")
	}
	return nil
}

// Validate lists every fault by its field in the file, as a [config.Invalid].
func (p *Profile) Validate() error {
	var bad config.Faults
	positive := func(field string, v int) {
		if v < 1 {
			bad.Add(field, v, "use 1 or more")
		}
	}
	if p.Name == "" {
		bad.Add("name", nil, "give the profile a name for reports")
	}
	if p.Model == "" {
		bad.Add("model", nil, "give the name that clients ask for")
	}
	positive("vocab", p.Vocab)
	if err := p.KVGeometry.Validate(); err != nil {
		bad.Check("kv_geometry", err)
	} else if block := p.blockBytes(); p.KVBytes < int64(block) {
		bad.Add("kv_bytes", p.KVBytes, "use %d or more, which one block takes", block)
	} else if p.KVBytes/int64(block) > math.MaxUint32 {
		bad.Add("kv_bytes", p.KVBytes, "use less than %d blocks of %d bytes", uint32(math.MaxUint32), block)
	}
	positive("max_model_len", p.MaxModelLen)
	positive("max_num_seqs", p.MaxNumSeqs)
	few := p.MaxBatchedTokens < p.MaxModelLen
	switch o := p.Scheduler(); {
	case o == VLLMV0:
		positive("max_num_batched_tokens", p.MaxBatchedTokens)
		if few {
			bad.Add("max_num_batched_tokens", p.MaxBatchedTokens, "use max_model_len (%d) or more, or a long prompt never fits a step", p.MaxModelLen)
		}
	case few && p.MaxBatchedTokens != 0:
		counts := map[string]string{VLLMV1: "max_num_batched_tokens", SGLang: "max_prefill_tokens"}[o]
		bad.Add("max_num_batched_tokens", p.MaxBatchedTokens, "this one is of %s: leave it out; what counts with %s is engine.%s", VLLMV0, o, counts)
	}
	positive("chunk_tokens", p.ChunkTokens)
	p.checkEngine(&bad)
	bad.Check("costs", p.Costs.validate())
	bad.Check("lora", p.LoRA.validate())
	if p.Costs.TensorParallel.Size > 1 && p.KVGeometry.HiddenSize == 0 {
		bad.Add("kv_geometry.hidden_size", 0, "costs.tensor_parallel reduces so many elements a token: take it from the model's config.json")
	}
	d := p.Disagg
	checkMS(&bad, "disagg.decode_step_ms", d.DecodeStepMS)
	checkMS(&bad, "disagg.v0.hop_ms", d.V0.HopMS)
	checkMS(&bad, "disagg.v0.receive_ms", d.V0.ReceiveMS)
	checkMS(&bad, "disagg.v0.producer_ms_per_mb", d.V0.ProducerMSPerMB)
	checkMS(&bad, "disagg.v0.consumer_ms_per_mb", d.V0.ConsumerMSPerMB)
	checkMS(&bad, "disagg.v0.extract_ms_per_mb", d.V0.ExtractMSPerMB)
	checkMS(&bad, "disagg.v0.launch_gap_ms", d.V0.LaunchGapMS)
	for _, name := range slices.Sorted(maps.Keys(p.Links)) {
		l := p.Links[name]
		if !(l.MSPerMB > 0 && l.MSPerMB < 1e6) {
			bad.Add("links."+name+".ms_per_mb", l.MSPerMB, "use more than 0; 0.724 is 1.38 GB/s")
		}
		if !(l.LatencyUS >= 0 && l.LatencyUS < 1e6) {
			bad.Add("links."+name+".latency_us", l.LatencyUS, "use a number of microseconds from 0 to 1e6")
		}
	}
	return bad.Err("engine.Profile")
}

// Fingerprint is equal for profiles that model the same GPU, model and engine: all of
// the profile but the limits that nodes of one cluster may set differently.
func (p *Profile) Fingerprint() string {
	q := *p
	q.KVBytes, q.MaxModelLen, q.MaxNumSeqs, q.MaxBatchedTokens, q.ChunkTokens, q.Engine = 0, 0, 0, 0, 0, Options{}
	q.LoRA.MaxLoRAs, q.LoRA.MaxCPULoRAs, q.LoRA.Merged = 0, 0, ""
	b, err := json.Marshal(&q) // maps in the order of their keys
	if err != nil {
		panic(fmt.Sprintf("engine: profile %s: %v", p.Name, err)) // NaN or Inf, which Validate refuses
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Slowest bounds what a step takes on a hot GPU: step for one without prompts, with a
// full batch of the longest contexts and the front end's part, and token more for each
// token in it.
func (p *Profile) Slowest() (step, token time.Duration) {
	c := p.Costs
	c.DecodeStepMS = max(c.DecodeStepMS, p.Disagg.DecodeStepMS)
	seqs, _ := p.Batch()
	most, each := NewCostModel(c, p.KVGeometry).slowest(seqs, p.MaxModelLen)
	return duration(c.RequestMS + c.FrontEndInMS + most + c.FrontEndOutMS*float64(seqs) + c.OutputDelayMS), duration(each)
}

// SequenceTime is what a sequence more adds to a decode step, whatever its context.
func (p *Profile) SequenceTime() time.Duration { return duration(p.Costs.DecodeSeqMS) }

// OutputDelay is Costs.OutputDelayMS.
func (p *Profile) OutputDelay() time.Duration { return duration(p.Costs.OutputDelayMS) }

// Blocks is the capacity of the KV pool in blocks.
func (p *Profile) Blocks() int { return int(p.KVBytes / int64(p.blockBytes())) }

// blockBytes is what a block takes of a GPU's memory.
func (p *Profile) blockBytes() int {
	g := p.KVGeometry
	return g.BlockBytes() / g.KVHeads * p.Costs.TensorParallel.heads(g)
}

// DisaggEngine returns the costs of an engine in a prefill/decode pair: the
// decode step is that of a decode-only node.
func (p *Profile) DisaggEngine() Costs {
	c := p.Costs
	c.DecodeStepMS = p.Disagg.DecodeStepMS
	return c
}
