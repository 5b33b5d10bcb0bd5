package batching

import (
	"os"
	"testing"

	"kvferry/engine"
	"kvferry/kvcache"
)

// FuzzProfile: a profile that is accepted can be served with.
func FuzzProfile(f *testing.F) {
	for _, name := range []string{"a10-qwen2.5-7b-int4", "zero"} {
		data, err := os.ReadFile("../profiles/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"name":"x","model":"y","vocab":1,"kv_geometry":{"layers":1,"kv_heads":1,"head_dim":1,"elem_bytes":1,"block_tokens":1},` +
		`"kv_bytes":9e18,"max_model_len":1,"max_num_seqs":1,"max_num_batched_tokens":1,"chunk_tokens":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := engine.ParseProfile(data)
		if err != nil {
			return
		}
		s, err := NewScheduler(ConfigOf(p, false, kvcache.NewPool(p.Blocks(), p.KVGeometry.BlockTokens, false)))
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		m := engine.NewCostModel(p.Costs, p.KVGeometry)
		rd := s.Step(0, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: make([]kvcache.Token, 1), MaxTokens: 1}})
		if rd.Launch == nil {
			if len(rd.Refused) == 0 { // a model or a pool of one token
				t.Fatalf("%s: a request is neither refused nor run", data)
			}
			return
		}
		if d := m.Run(rd.Launch); d < 0 {
			t.Fatalf("%s: a step takes %v", data, d)
		}
	})
}
