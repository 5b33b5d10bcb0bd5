package node

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/version"
	"kvferry/proxy"
	"kvferry/proxy/openai"
)

// TestServerInfoOfRealNodes: what a node says of itself is what the proxy shows.
func TestServerInfoOfRealNodes(t *testing.T) {
	s := startNodes(t, handoff.V0.Name, func(c *Config) { c.Rails = []string{DefaultRail + "?conns=2"} }, "prefill-0", "decode-0")
	defer s.end()
	resp, err := s.client.Get("http://" + s.proxy.daemon.HTTPAddr() + "/server_info")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Kvferry struct {
			Handoff, Profile, Serving string
			ProfileFingerprint        string `json:"profile_fingerprint"`
			Vocab                     uint32
			Nodes                     []struct {
				ID, Instance, Link, Scheduler, Version string
				GRPCAddr                               string `json:"grpc_addr"`
				ProfileFingerprint                     string `json:"profile_fingerprint"`
				KVBlocks                               uint32 `json:"kv_blocks"`
				Rails                                  []string
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	p := smallProfile(t)
	info := got.Kvferry
	if info.Handoff != handoff.V0.Name || info.Vocab != uint32(p.Vocab) || info.Profile != p.Name || info.ProfileFingerprint != p.Fingerprint() || info.Serving != proxy.ModeDisagg || len(info.Nodes) != 2 {
		t.Fatalf("%+v", info)
	}
	for i, id := range []string{"prefill-0", "decode-0"} {
		n := info.Nodes[i]
		w := s.nodes[id].daemon
		if n.ID != id || n.Instance != fmt.Sprintf("%016x", w.w.instance) || n.GRPCAddr != w.GRPCAddr() || n.Link != "native" || n.Scheduler != engine.VLLMV0 || strings.Join(n.Rails, "+") != "tcp/0?conns=2" || n.KVBlocks != 256 || n.Version != version.String() || n.ProfileFingerprint != p.Fingerprint() {
			t.Errorf("%+v", n)
		}
	}
}

// TestGeometryName: nodes whose blocks differ in bytes, or in what tokens are drawn from, have different
// names.
func TestGeometryName(t *testing.T) {
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{(&Config{Profile: p, TokensFromKV: true}).geometryName(): true, (&Config{Profile: p, KVChecks: "none"}).geometryName(): true}
	g := &p.KVGeometry
	for _, change := range []*int{nil, &g.Layers, &g.KVHeads, &g.HeadDim, &g.ElemBytes, &g.HiddenSize} {
		if change != nil {
			*change++
		}
		if name := (&Config{Profile: p}).geometryName(); seen[name] {
			t.Errorf("%s twice", name)
		} else {
			seen[name] = true
		}
	}
}

// TestVocabularyIsTheClusters runs every endpoint that has to do with tokens on
// clusters of other vocabularies than the A10's, with real nodes: they refuse a
// token that is not in theirs.
func TestVocabularyIsTheClusters(t *testing.T) {
	for _, vocab := range []uint32{openai.MinVocab, 32000, openai.MaxVocab} {
		t.Run(fmt.Sprint(vocab), func(t *testing.T) {
			s := startNodes(t, handoff.Layerwise.Name, func(c *Config) { c.Profile.Vocab = int(vocab) }, "prefill-0", "decode-0")
			defer s.end()
			tok, text := openai.NewTokenizer(vocab), "Tell me about ferries, please"
			chat, err := tok.EncodeChat([]openai.ChatMessage{{Role: "user", Content: text}})
			if err != nil {
				t.Fatal(err)
			}
			last := vocab - 1
			for _, tc := range []struct{ path, body, want string }{
				{"/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":3}`, text), fmt.Sprintf(`"prompt_tokens":%d,`, len(tok.Encode(text)))},
				{"/v1/completions", fmt.Sprintf(`{"prompt":[0,%d],"max_tokens":3}`, last), `"completion_tokens":3`},
				{"/v1/completions", fmt.Sprintf(`{"prompt":[0,%d]}`, vocab), fmt.Sprintf("prompt[1]: %d: want a token id, 0 to %d", vocab, last)},
				{"/v1/completions", fmt.Sprintf(`{"prompt":[[%d]]}`, vocab), fmt.Sprintf("want a token id, 0 to %d", last)},
				{"/v1/completions", `{"prompt":[1.5]}`, fmt.Sprintf("want a token id, 0 to %d", last)},
				{"/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":3}`, text), `"completion_tokens":3`},
				{"/tokenize", fmt.Sprintf(`{"prompt":%q}`, text), strings.ReplaceAll(fmt.Sprint(tok.Encode(text)), " ", ",")},
				{"/tokenize", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}]}`, text), strings.ReplaceAll(fmt.Sprint(chat), " ", ",")},
				{"/detokenize", fmt.Sprintf(`{"tokens":[%d]}`, last), tok.Decode([]uint32{last})},
				{"/detokenize", fmt.Sprintf(`{"tokens":[%d]}`, vocab), fmt.Sprintf("want a token id, 0 to %d", last)},
			} {
				resp, err := s.client.Post("http://"+s.proxy.daemon.HTTPAddr()+tc.path, "application/json", strings.NewReader(tc.body))
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if body := string(b); err != nil || !strings.Contains(body, tc.want) {
					t.Errorf("%s %s: %s, want %s", tc.path, tc.body, body, tc.want)
				}
			}
			// What is generated is as many tokens for a client that encodes it.
			resp, err := s.client.Post("http://"+s.proxy.daemon.HTTPAddr()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"Once","max_tokens":50,"ignore_eos":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var answer struct{ Choices []struct{ Text string } }
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Choices) != 1 || len(tok.Encode(answer.Choices[0].Text)) != 50 {
				t.Errorf("%+v, %v: want 50 tokens", answer, err)
			}
		})
	}
}
