package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestShippedProfiles(t *testing.T) {
	for _, name := range Profiles() {
		p, err := LoadProfile(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p.Name != name {
			t.Errorf("profile %s calls itself %s", name, p.Name)
		}
		if strings.HasPrefix(name, "sglang-") {
			continue // of one server, which moves no KV
		}
		for _, link := range []string{"tcp", "rdma", "rdma2"} {
			if _, ok := p.Links[link]; !ok {
				t.Errorf("profile %s has no link %s, which the bench's settings name", name, link)
			}
		}
	}
	p := shipped(t)
	if got := p.KVGeometry.TokenBytes(); got != 57344 {
		t.Errorf("KV of a token of Qwen2.5-7B has %d bytes, want 57344", got)
	}
	if got := p.Blocks(); got != 14_000_000_000/917_504 {
		t.Errorf("%d blocks in 14 GB", got)
	}
}

// shippedText is the text of a shipped profile.
func shippedText(t testing.TB, name string) []byte {
	t.Helper()
	text, err := profiles.ReadFile("profiles/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestLoadProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.json")
	if _, err := LoadProfile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	} else if want := "use a10-qwen2.5-7b-int4-attention, a10-qwen2.5-7b-int4, itl10, sglang-deepseek-v3-flashinfer, "; !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not name the shipped profiles %s", err, want)
	}
	if err := os.WriteFile(path, shippedText(t, "zero"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := LoadProfile(path); err != nil || p.Name != "zero" {
		t.Errorf("%v, %v", p, err)
	}
	if err := os.WriteFile(path, shippedText(t, DefaultProfile)[:100], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadProfile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

// TestProfileFaults: each field that is wrong is named with what it must be.
func TestProfileFaults(t *testing.T) {
	for _, c := range []struct {
		spoil func(p *Profile)
		want  string
	}{
		{func(p *Profile) { p.Name = "" }, "name: none given: give the profile a name"},
		{func(p *Profile) { p.Model = "" }, "model: none given: give the name that clients ask for"},
		{func(p *Profile) { p.Vocab = 0 }, "vocab: 0: use"},
		{func(p *Profile) { p.KVGeometry.Layers = 0 }, "kv_geometry.layers: 0: use 1 or more"},
		{func(p *Profile) { p.KVBytes = 917_503 }, "kv_bytes: 917503: use 917504 or more, which one block takes"},
		{func(p *Profile) { p.KVBytes = math.MaxInt64 }, "use less than 4294967295 blocks"},
		{func(p *Profile) { p.MaxModelLen = -1 }, "max_model_len: -1: use 1 or more"},
		{func(p *Profile) { p.MaxNumSeqs = 0 }, "max_num_seqs: 0: use"},
		{func(p *Profile) { p.MaxBatchedTokens = 9999 }, "max_num_batched_tokens: 9999: use max_model_len (10000) or more"},
		{func(p *Profile) { p.ChunkTokens = 0 }, "chunk_tokens: 0: use"},
		{func(p *Profile) { p.Costs.RequestMS = -1 }, "costs.request_ms: -1: use a number of milliseconds from 0 to 1e6"},
		{func(p *Profile) { p.Costs.PrefillStepMS = -1 }, "costs.prefill_step_ms: -1: use"},
		{func(p *Profile) { p.Costs.PrefillTokenMS = math.NaN() }, "costs.prefill_token_ms: NaN: use"},
		{func(p *Profile) { p.Costs.HotSlowdown = -0.1 }, "costs.hot_slowdown: -0.1: use a share"},
		{func(p *Profile) { p.Costs.HeatMS = 1e6 }, "costs.heat_ms: 1e+06: use"},
		{func(p *Profile) { p.Costs.HeatMS = 0 }, "costs.heat_ms: 0: with hot_slowdown 0.397, say over how many milliseconds"},
		{func(p *Profile) { p.Costs.DecodeStepMS = -1 }, "costs.decode_step_ms: -1: use"},
		{func(p *Profile) { p.Costs.DecodeSeqMS = -1 }, "costs.decode_seq_ms: -1: use"},
		{func(p *Profile) { p.Costs.PrefillAttentionNS = -1 }, "costs.prefill_attention_ns: -1: use a number of nanoseconds from 0 to 1e6"},
		{func(p *Profile) { p.Costs.PrefillFloorMS = -1 }, "costs.prefill_floor_ms: -1: use a number of milliseconds"},
		{func(p *Profile) { p.Costs.ColdMS = math.Inf(1) }, "costs.cold_ms: +Inf: use"},
		{func(p *Profile) { p.Costs.DecodeKVTokenNS = 1e6 }, "costs.decode_kv_token_ns: 1e+06: use"},
		{func(p *Profile) { p.Costs.Experts = Experts{Count: -8, PerToken: 1} }, "costs.experts.count: -8: use 1 to"},
		{func(p *Profile) { p.Costs.Experts = Experts{Count: 8} }, "costs.experts.per_token: 0: use 1 to count (8)"},
		{func(p *Profile) { p.Costs.Experts = Experts{Count: 8, PerToken: 9} }, "costs.experts.per_token: 9: use 1 to count (8)"},
		{func(p *Profile) { p.Costs.Experts = Experts{Count: 8, PerToken: 2, Shared: -1} }, "costs.experts.shared: -1: use 0 to"},
		{func(p *Profile) { p.Costs.Experts = Experts{Count: 8, PerToken: 2, ReadMS: -1} }, "costs.experts.read_ms: -1: use"},
		{func(p *Profile) { p.Costs.TensorParallel = TensorParallel{BusGBS: 100} }, "costs.tensor_parallel.size: 0: use 1 to"},
		{func(p *Profile) { p.Costs.TensorParallel = TensorParallel{Size: 2} }, "costs.tensor_parallel.bus_gb_s: 0: say how many GB/s a GPU sends"},
		{func(p *Profile) { p.Costs.TensorParallel = TensorParallel{Size: 2, BusGBS: 9, SmallBusGBS: 10} }, "costs.tensor_parallel.small_bus_gb_s: 10: use at most bus_gb_s (9)"},
		{func(p *Profile) { p.Costs.TensorParallel = TensorParallel{Size: 1, BusGBS: -1} }, "costs.tensor_parallel.bus_gb_s: -1: say"},
		{func(p *Profile) {
			p.Costs.TensorParallel = TensorParallel{Size: 2, BusGBS: 100, AllReduceLatencyUS: -1}
		}, "costs.tensor_parallel.all_reduce_latency_us: -1: use a number of microseconds"},
		{func(p *Profile) {
			p.Costs.TensorParallel, p.KVGeometry.HiddenSize = TensorParallel{Size: 2, BusGBS: 100}, 0
		}, "kv_geometry.hidden_size: 0: costs.tensor_parallel reduces so many elements a token: take it from the model's config.json"},
		{func(p *Profile) { p.Costs.OutputDelayMS = -1 }, "costs.output_delay_ms: -1: use"},
		{func(p *Profile) { p.Disagg.DecodeStepMS = -1 }, "disagg.decode_step_ms: -1: use"},
		{func(p *Profile) { p.Disagg.V0.HopMS = -1 }, "disagg.v0.hop_ms: -1: use"},
		{func(p *Profile) { p.Disagg.V0.ReceiveMS = -1 }, "disagg.v0.receive_ms: -1: use"},
		{func(p *Profile) { p.Disagg.V0.ProducerMSPerMB = -1 }, "disagg.v0.producer_ms_per_mb: -1: use"},
		{func(p *Profile) { p.Disagg.V0.ConsumerMSPerMB = -1 }, "disagg.v0.consumer_ms_per_mb: -1: use"},
		{func(p *Profile) { p.Disagg.V0.ExtractMSPerMB = -1 }, "disagg.v0.extract_ms_per_mb: -1: use"},
		{func(p *Profile) { p.Disagg.V0.LaunchGapMS = -1 }, "disagg.v0.launch_gap_ms: -1: use"},
		{func(p *Profile) { p.Links["tcp"] = LinkCost{} }, "links.tcp.ms_per_mb: 0: use more than 0"},
		{func(p *Profile) { p.Links["tcp"] = LinkCost{MSPerMB: 1, LatencyUS: -5} }, "links.tcp.latency_us: -5: use a number of microseconds"},
	} {
		p := *shipped(t)
		p.Links = maps.Clone(p.Links)
		c.spoil(&p)
		err := p.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
			continue
		}
		if lines := strings.Count(err.Error(), "\n"); lines > 0 {
			t.Errorf("one fault, several complaints: %v", err)
		}
	}
	err := (&Profile{}).Validate()
	if err == nil || strings.Count(err.Error(), "\n") < 5 || !strings.Contains(err.Error(), "max_num_batched_tokens: 0: use 1 or more") {
		t.Errorf("an empty profile has more faults than %v", err)
	}
}

// TestProfileBounds: the least and the most that a profile may say.
func TestProfileBounds(t *testing.T) {
	for _, c := range []struct {
		set  func(p *Profile)
		want string // nothing: it may
	}{
		{func(p *Profile) {
			p.Vocab, p.MaxModelLen, p.MaxNumSeqs, p.MaxBatchedTokens, p.ChunkTokens = 1, 1, 1, 1, 1
			p.KVBytes = int64(p.KVGeometry.BlockBytes())
		}, ""},
		{func(p *Profile) { p.KVBytes = math.MaxUint32 * int64(p.KVGeometry.BlockBytes()) }, ""},
		{func(p *Profile) { p.KVBytes = (math.MaxUint32 + 1) * int64(p.KVGeometry.BlockBytes()) }, "kv_bytes"},
		{func(p *Profile) { p.Costs.HotSlowdown = 999 }, ""},
		{func(p *Profile) { p.Costs.HotSlowdown = 1000 }, "costs.hot_slowdown"},
		{func(p *Profile) { p.Links["tcp"] = LinkCost{MSPerMB: 999_999, LatencyUS: 999_999} }, ""},
		{func(p *Profile) { p.Costs.TensorParallel = TensorParallel{Size: 1} }, ""},
		{func(p *Profile) { // half of the block's 4 heads
			p.Costs.TensorParallel, p.KVBytes = TensorParallel{Size: 2, BusGBS: 1}, int64(p.KVGeometry.BlockBytes()/2)
		}, ""},
		{func(p *Profile) {
			p.Costs.TensorParallel, p.KVBytes = TensorParallel{Size: 8, BusGBS: 1}, int64(p.KVGeometry.BlockBytes()/4)
		}, ""},
		{func(p *Profile) {
			p.Costs.TensorParallel, p.KVBytes = TensorParallel{Size: 8, BusGBS: 1}, int64(p.KVGeometry.BlockBytes()/4-1)
		}, "kv_bytes: 229375: use 229376 or more"},
		{func(p *Profile) { p.Links["tcp"] = LinkCost{MSPerMB: 1e6} }, "links.tcp.ms_per_mb"},
		{func(p *Profile) { p.Links["tcp"] = LinkCost{MSPerMB: 1, LatencyUS: 1e6} }, "links.tcp.latency_us"},
	} {
		p := *shipped(t)
		p.Links = maps.Clone(p.Links)
		c.set(&p)
		if err := p.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestParseProfile(t *testing.T) {
	text := string(shippedText(t, DefaultProfile))
	for _, c := range []struct{ name, json, want string }{
		{"nothing", "", "it is empty"},
		{"misspelt", strings.Replace(text, `"prefill_token_ms"`, `"prefil_token_ms"`, 1), `line 15: there is no field "prefil_token_ms"`},
		{"comma", strings.Replace(text, "\n  \"vocab\"", "\n  , \"vocab\"", 1), "line 5: this is no JSON"},
		{"type", strings.Replace(text, `"vocab": 151936`, `"vocab": "many"`, 1), "line 5: vocab: string: want a whole number"},
		{"trailing", text + "{}", "something follows the closing brace"},
		{"truncated", text[:len(text)/2], "it ends in the middle"},
		{"fault", strings.Replace(text, `"vocab": 151936`, `"vocab": 0`, 1), "vocab: 0: use"},
	} {
		if _, err := ParseProfile([]byte(c.json)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestProfileFields: every field of a shipped profile's file is one of Profile,
// and the other way round, so a user can start from the file.
func TestProfileFields(t *testing.T) {
	var file, again map[string]any
	if err := json.Unmarshal(shippedText(t, DefaultProfile), &file); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(shipped(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &again); err != nil {
		t.Fatal(err)
	}
	if a, b := fields("", file), fields("", again); !slices.Equal(a, b) {
		t.Errorf("file has %v\nProfile has %v", a, b)
	}
}

func fields(prefix string, m map[string]any) (names []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if sub, ok := m[k].(map[string]any); ok {
			names = append(names, fields(prefix+k+".", sub)...)
			continue
		}
		names = append(names, prefix+k)
	}
	return names
}

// TestFingerprint: what is modelled makes profiles differ, what a node may set for
// itself does not.
func TestFingerprint(t *testing.T) {
	load := func() *Profile {
		p, err := LoadProfile(DefaultProfile)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	want := load().Fingerprint()
	own := load()
	own.KVBytes, own.MaxNumSeqs, own.MaxBatchedTokens, own.MaxModelLen, own.ChunkTokens = 1<<30, 8, 20_000, 5000, 256
	if got := own.Fingerprint(); got != want {
		t.Errorf("a node's own limits changed the fingerprint from %s to %s", want, got)
	}
	zero, err := ParseProfile([]byte(strings.Replace(string(shippedText(t, DefaultProfile)), `"hot_slowdown"`, `"cold_ms": 0, "experts": {"count": 0}, "hot_slowdown"`, 1)))
	if err != nil || zero.Fingerprint() != want {
		t.Errorf("a cost that is 0 makes another profile than one that is left out: %v", err)
	}
	for name, change := range map[string]func(*Profile){
		"vocab":    func(p *Profile) { p.Vocab = 32_000 },
		"geometry": func(p *Profile) { p.KVGeometry.Layers++ },
		"cost":     func(p *Profile) { p.Costs.PrefillTokenMS *= 1.01 },
		"term":     func(p *Profile) { p.Costs.PrefillAttentionNS = 5 },
		"experts":  func(p *Profile) { p.Costs.Experts = Experts{Count: 8, PerToken: 2} },
		"v0":       func(p *Profile) { p.Disagg.V0.HopMS++ },
		"model":    func(p *Profile) { p.Model = "another" },
	} {
		p := load()
		change(p)
		if p.Fingerprint() == want {
			t.Errorf("another %s has the same fingerprint", name)
		}
	}
}

// TestSlowest: no step of a hot GPU takes longer than the bound.
func TestSlowest(t *testing.T) {
	p, err := LoadProfile(DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	p.Disagg.DecodeStepMS = 2 * p.Costs.DecodeStepMS
	disagg, _ := p.Slowest()
	if took := NewCostModel(p.DisaggEngine(), p.KVGeometry).Run(&Step{Kind: Decode, Works: make([]Work, p.MaxNumSeqs)}); took > disagg {
		t.Errorf("a decode step of a pair took %v, the bound is %v", took, disagg)
	}
	p.Disagg.DecodeStepMS = 0
	step, token := p.Slowest()
	m := NewCostModel(p.Costs, p.KVGeometry)
	at := time.Duration(0)
	for range 5 { // it heats up
		took := m.Run(&Step{Kind: Prefill, At: at, Tokens: p.MaxBatchedTokens})
		if most := step + time.Duration(p.MaxBatchedTokens)*token; took > most {
			t.Fatalf("a step of %d tokens took %v, the bound is %v", p.MaxBatchedTokens, took, most)
		}
		at += took
	}
	seqs := make([]Work, p.MaxNumSeqs)
	if took := m.Run(&Step{Kind: Decode, At: at, Works: seqs}); took > step {
		t.Errorf("a decode step of %d sequences took %v, the bound is %v", len(seqs), took, step)
	}
}

// TestMissingCosts: a cost that is left out is not 0.
func TestMissingCosts(t *testing.T) {
	for _, field := range []string{"costs.request_ms", "costs.prefill_step_ms", "costs.prefill_token_ms", "costs.decode_step_ms", "costs.decode_seq_ms", "disagg.decode_step_ms"} {
		section, name, _ := strings.Cut(field, ".")
		var all map[string]any
		if err := json.Unmarshal(shippedText(t, DefaultProfile), &all); err != nil {
			t.Fatal(err)
		}
		delete(all[section].(map[string]any), name)
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseProfile(text); err == nil || !strings.Contains(err.Error(), field+": none given") {
			t.Errorf("%v, want %s", err, field)
		}
	}
}
