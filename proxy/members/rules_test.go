package members_test

import (
	"strings"
	"testing"

	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/members/memberstest"
)

// prefill is a node that computes for others.
func prefill(id string) *proto.NodeInfo {
	n := memberstest.Node(id, 1)
	n.Role, n.Handoffs, n.KvGeometry = proto.Role_ROLE_PREFILL, []string{"v0", "pull"}, "g"
	return n
}

// TestCheck: a node with a field that makes no sense is refused, with the field's name and
// what to write instead.
func TestCheck(t *testing.T) {
	rules := members.Rules{Handoff: "pull", MaxVocab: 400_000, Version: "v1.0"}
	for name, tc := range map[string]struct {
		change func(*proto.NodeInfo)
		want   string // in the refusal; empty if there is none
	}{
		"as it should be": {func(*proto.NodeInfo) {}, ""},
		"no id":           {func(n *proto.NodeInfo) { n.Id = "" }, "node.id: empty: want a name unique in the cluster"},
		"older":           {func(n *proto.NodeInfo) { n.Protocol, n.Version = 0, "v0.9" }, "node.protocol: node-1 has version v0.9 of kvferry, which speaks protocol 0, the proxy has version v1.0 and speaks 1: run the same version on both"},
		"newer":           {func(n *proto.NodeInfo) { n.Protocol, n.Version = 2, "" }, "node-1 has version unknown of kvferry, which speaks protocol 2, the proxy has version v1.0 and speaks 1"},
		"no model":        {func(n *proto.NodeInfo) { n.Model = "" }, "node.model: empty: node node-1 must name"},

		"no block size": {func(n *proto.NodeInfo) { n.BlockTokens = 0 }, "node.block_tokens: 0: want"},

		"no length":       {func(n *proto.NodeInfo) { n.MaxModelLen = 0 }, "node.max_model_len: 0: want at least 2"},
		"no answer":       {func(n *proto.NodeInfo) { n.MaxModelLen = 1 }, "node.max_model_len: 1: want at least 2"},
		"least length":    {func(n *proto.NodeInfo) { n.MaxModelLen = 2 }, ""},
		"greatest length": {func(n *proto.NodeInfo) { n.MaxModelLen = proto.MaxModelLen }, ""},
		"too long":        {func(n *proto.NodeInfo) { n.MaxModelLen = proto.MaxModelLen + 1 }, `at most: lower max_model_len in profile "p"`},

		"slow":            {func(n *proto.NodeInfo) { n.PromptTokenNs, n.MaxModelLen = 60_000_000, 10_000 }, ""},
		"slower than any": {func(n *proto.NodeInfo) { n.StepUs, n.PromptTokenNs, n.MaxModelLen = 1, 60_000_000, 10_000 }, "node.step_us, node.prompt_token_ns: a step of node-1 may take 10m0.000001s: the proxy waits for 10m0s at most"},

		"no vocabulary":       {func(n *proto.NodeInfo) { n.Vocab = 0 }, "node.vocab: 0: "},
		"least vocabulary":    {func(n *proto.NodeInfo) { n.Vocab = 1 }, ""},
		"greatest vocabulary": {func(n *proto.NodeInfo) { n.Vocab = 400_000 }, ""},
		"too many words":      {func(n *proto.NodeInfo) { n.Vocab = 400_001 }, `node.vocab: 400001: the proxy's tokenizer takes 1 to 400000 token ids: change vocab in profile "p"`},

		"prefill":      {func(n *proto.NodeInfo) { n.Role = proto.Role_ROLE_PREFILL }, ""},
		"decode":       {func(n *proto.NodeInfo) { n.Role = proto.Role_ROLE_DECODE }, ""},
		"nondisagg":    {func(n *proto.NodeInfo) { n.Role = proto.Role_ROLE_NONDISAGG }, ""},
		"no role":      {func(n *proto.NodeInfo) { n.Role = 0 }, "want prefill, decode or nondisagg"},
		"unknown role": {func(n *proto.NodeInfo) { n.Role = 9 }, "node.role: 9: want prefill, decode or nondisagg"},

		"no port":      {func(n *proto.NodeInfo) { n.GrpcAddr = "here" }, "node.grpc_addr: address here: missing port in address: want host:port"},
		"name":         {func(n *proto.NodeInfo) { n.GrpcAddr = "here:1" }, ""},
		"IPv6":         {func(n *proto.NodeInfo) { n.GrpcAddr = "[fd00::1]:1" }, ""},
		"any IPv4":     {func(n *proto.NodeInfo) { n.GrpcAddr = "0.0.0.0:1" }, `node.grpc_addr: "0.0.0.0:1" is not an address others can dial`},
		"any IPv6":     {func(n *proto.NodeInfo) { n.GrpcAddr = "[::]:1" }, `node.grpc_addr: "[::]:1" is not an address others can dial`},
		"no host":      {func(n *proto.NodeInfo) { n.GrpcAddr = ":1" }, `node.grpc_addr: ":1" is not an address others can dial`},
		"port unknown": {func(n *proto.NodeInfo) { n.GrpcAddr = "here:0" }, `node.grpc_addr: "here:0" is not an address others can dial`},
	} {
		n := prefill("node-1")
		tc.change(n)
		refused(t, name, rules.Check(n), tc.want)
	}
	refused(t, "nothing", rules.Check(nil), "node: missing")
}

// refused holds a refusal to what is to be in it; "" is for none.
func refused(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestFits: a node that would make measurements of two things at once, or whose KV and tokens
// the others could not use, is refused with the reason.
func TestFits(t *testing.T) {
	other := func(n *proto.NodeInfo) { n.Profile, n.ProfileFingerprint = "my-gpu", "f2" }
	for name, tc := range map[string]struct {
		change func(*proto.NodeInfo)
		pure   string // in the refusal where profiles must be the same; empty if there is none
		mixed  string // in that where they may differ
	}{
		"the same":     {func(*proto.NodeInfo) {}, "", ""},
		"may differ":   {func(n *proto.NodeInfo) { n.KvBlocks, n.MaxModelLen, n.Role = 7, 500, proto.Role_ROLE_DECODE }, "", ""},
		"another name": {func(n *proto.NodeInfo) { n.Profile = "my-gpu" }, "", ""}, // of the same
		"another profile": {
			other,
			`node.profile: node-3 has "my-gpu" (fingerprint f2), the cluster "p" (f): start all nodes with the same --profile, or the proxy with --allow-mixed-profiles`, "",
		},
		"another profile of that name": {func(n *proto.NodeInfo) { n.ProfileFingerprint = "f2" }, `node.profile: node-3 has "p" (fingerprint f2), the cluster "p" (f)`, ""},
		"no fingerprint":               {func(n *proto.NodeInfo) { n.ProfileFingerprint = "" }, `node.profile: node-3 has "p" (fingerprint none)`, ""},
		"model": {
			func(n *proto.NodeInfo) { n.Model = "other" },
			`node.model: node-3 serves "other", the cluster "m"`, `node.model: node-3 serves "other", the cluster "m"`,
		},
		"block size": {
			func(n *proto.NodeInfo) { other(n); n.BlockTokens = 32 },
			"node.block_tokens: node-3 has 32, the cluster 16", "node.block_tokens: node-3 has 32, the cluster 16",
		},
		"geometry": {
			func(n *proto.NodeInfo) { other(n); n.KvGeometry = "g2" },
			`node.kv_geometry: node-3 has "g2", the cluster "g"`, `node.kv_geometry: node-3 has "g2", the cluster "g"`,
		},
		"no geometry": {
			func(n *proto.NodeInfo) { n.KvGeometry = "" },
			`node.kv_geometry: node-3 has "", the cluster "g"`, `node.kv_geometry: node-3 has "", the cluster "g"`,
		},
		"vocabulary": {
			func(n *proto.NodeInfo) { other(n); n.Vocab = 999 },
			"node.vocab: node-3 has 999 token ids, the cluster 1000", "node.vocab: node-3 has 999 token ids, the cluster 1000",
		},
		"hand-off": {
			func(n *proto.NodeInfo) { n.Handoffs = []string{"v0", "push"} },
			`node.handoffs: node-3 knows [v0 push], the proxy runs "pull"`, `node.handoffs: node-3 knows [v0 push], the proxy runs "pull"`,
		},
		"hand-offs it does not tell": {func(n *proto.NodeInfo) { n.Handoffs = nil }, "", ""},
		"hand-off of one that needs none": {
			func(n *proto.NodeInfo) { n.Role, n.Handoffs = proto.Role_ROLE_NONDISAGG, []string{"v0"} }, "", "",
		},
	} {
		n := prefill("node-3")
		tc.change(n)
		there := []*proto.NodeInfo{prefill("node-1"), prefill("node-2")}
		refused(t, name, members.Rules{Handoff: "pull"}.Fits(n, there), tc.pure)
		refused(t, name+", mixed", members.Rules{Handoff: "pull", MixedProfiles: true}.Fits(n, there), tc.mixed)
	}
}

// TestFitsAlone: the first node of a cluster has nobody to be like, nor has one that takes
// the place of the only other. But it must know the proxy's hand-off.
func TestFitsAlone(t *testing.T) {
	rules := members.Rules{Handoff: "pull"}
	old, n := prefill("node-1"), prefill("node-1")
	n.Model, n.BlockTokens, n.KvGeometry, n.Vocab, n.ProfileFingerprint = "other", 32, "g2", 999, ""
	refused(t, "the first", rules.Fits(n, nil), "")
	there := []*proto.NodeInfo{old}
	refused(t, "a successor", rules.Fits(n, there), "")
	if there[0] != old {
		t.Errorf("the others are %v now", there)
	}
	refused(t, "a successor among others", rules.Fits(n, []*proto.NodeInfo{old, prefill("node-2")}), "node.model")
	n.Handoffs = []string{"v0"}
	refused(t, "the first, with another hand-off", rules.Fits(n, nil), "node.handoffs")
}

// TestAgree: the least of what nodes can do, and the names of all their profiles.
func TestAgree(t *testing.T) {
	if c, ok := members.Agree(nil); ok || c != (members.Cluster{}) {
		t.Errorf("nobody agrees on %+v", c)
	}
	first, second, third := prefill("node-1"), prefill("node-2"), prefill("node-3")
	second.MaxModelLen = 500
	want := members.Cluster{Model: "m", BlockTokens: 16, KVGeometry: "g", Vocab: 1000, MaxModelLen: 500, Profile: "p", ProfileFingerprint: "f"}
	if c, ok := members.Agree([]*proto.NodeInfo{first, second, third}); !ok || c != want || !c.SameProfile(first) {
		t.Errorf("of one profile: %+v, want %+v", c, want)
	}
	second.Profile, second.ProfileFingerprint = "a", "f2"
	want.Profile, want.ProfileFingerprint = "a, p", ""
	if c, ok := members.Agree([]*proto.NodeInfo{first, second, third}); !ok || c != want || c.SameProfile(first) || c.SameProfile(second) {
		t.Errorf("of two profiles: %+v, want %+v", c, want)
	}
	third.ProfileFingerprint = ""
	if c, _ := members.Agree([]*proto.NodeInfo{third}); c.SameProfile(third) {
		t.Error("who tells no fingerprint may have any profile")
	}
}
