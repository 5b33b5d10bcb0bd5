package proxy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/internal/version"
	"kvferry/proto"
	"kvferry/proxy/serverinfo"
)

// TestProfilesThatDiffer: whether a node of another profile may join is the proxy's
// configuration to say.
func TestProfilesThatDiffer(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		t.Run(fmt.Sprintf("may differ: %v", mixed), func(t *testing.T) {
			c := newTestCluster(t, Config{AllowMixedProfiles: mixed})
			_, d := c.addPair()
			other := d.like("decode-2", func(n *proto.NodeInfo) { n.Profile, n.ProfileFingerprint = "my-gpu", "fedcba9876543210" })
			_, err := c.reg.Register(t.Context(), &proto.RegisterRequest{Node: other})
			if mixed && err != nil || !mixed && (status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "or the proxy with --allow-mixed-profiles")) {
				t.Error(err)
			}
			// The node may come back as it was, whatever else was refused.
			c.register(d)
		})
	}
}

// TestMixedProfilesAreNamed: in the log and in /server_info.
func TestMixedProfilesAreNamed(t *testing.T) {
	var log clocktest.Log
	c := newTestCluster(t, Config{AllowMixedProfiles: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	_, d := c.addPair()
	if log := log.String(); strings.Contains(log, "different profiles") {
		t.Error(log)
	}
	if _, err := c.reg.Register(t.Context(), &proto.RegisterRequest{Node: d.like("decode-2", func(n *proto.NodeInfo) {
		n.Profile, n.ProfileFingerprint = "my-gpu", "fedcba9876543210"
	})}); err != nil {
		t.Fatal(err)
	}
	c.poll("decode-2 to join", func() bool { return len(c.proxy.Nodes()) == 3 })
	if log := log.String(); !strings.Contains(log, "nodes of different profiles") || !strings.Contains(log, "decode-1: fake (0123456789abcdef)") {
		t.Error(log)
	}
	if info := c.serverInfo(); info.Profile != "fake, my-gpu" || info.Fingerprint != "" || info.Nodes[2].Profile != "my-gpu" || info.Nodes[2].Fingerprint != "fedcba9876543210" {
		t.Errorf("%+v", info)
	}
}

func (c *testCluster) serverInfo() serverinfo.Info {
	c.t.Helper()
	_, body := c.get("/server_info")
	var info serverinfo.Server
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&info); err != nil {
		c.t.Fatalf("%s: %v", body, err)
	}
	return info.Kvferry
}

func TestServerInfo(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	want := fmt.Sprintf(`{"model_path":"","internal_states":[{"avg_spec_accept_length":null}],"kvferry":{"version":%q,"mode":"auto","handoff":"pull","placement":"least-loaded",`+
		`"model":"","vocab":0,"block_tokens":0,"max_model_len":0,"profile":"","profile_fingerprint":"","served_names":[],"eos":"none","serving":"","compute":"modelled","nodes":[]}}`+"\n", version.String())
	for _, path := range []string{"/server_info", "/get_server_info"} {
		if status, body := c.get(path); status != 200 || body != want {
			t.Errorf("%d %s, want %s", status, body, want)
		}
	}

	p := c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
	if info := c.serverInfo(); info.Serving != "" || len(info.Nodes) != 1 || !info.Nodes[0].Up {
		t.Errorf("without a decode node: %+v", info)
	}
	d := c.addNode("decode-1", proto.Role_ROLE_DECODE, nil)
	d.info.Instance, d.info.Link, d.info.Rails, d.info.Chunked, d.info.Scheduler, d.info.Version = 0xab, "rdma", []string{"tcp/eth0", "tcp/eth1"}, true, "sglang", "v1"
	c.register(d)
	if _, err := c.reg.KeepAlive(t.Context(), &proto.KeepAliveRequest{Lease: d.lease, Load: &proto.Load{Seq: 1, AdapterSlots: 2, Adapters: []string{"sql", "chat"}}}); err != nil {
		t.Fatal(err)
	}
	c.poll("the load", func() bool { return len(c.proxy.Nodes()[1].Adapters) == 2 })
	_, body := c.get("/server_info")
	want = fmt.Sprintf(`{"model_path":"test-model","internal_states":[{"avg_spec_accept_length":null}],"kvferry":{"version":%q,"mode":"auto","handoff":"pull","placement":"least-loaded",`+
		`"model":"test-model","vocab":151936,"block_tokens":16,"max_model_len":1000,"profile":"fake","profile_fingerprint":"0123456789abcdef","kv_geometry":"as the others","served_names":["test-model"],"eos":"none","serving":"disagg","compute":"modelled","nodes":[`+
		`{"id":"prefill-1","role":"prefill","up":true,"instance":"%016x","grpc_addr":%q,"profile":"fake","profile_fingerprint":"0123456789abcdef","link":"","rails":[],"kv_blocks":1000,"chunked":false,"scheduler":"","max_loras":0,"adapters":[],"version":""},`+
		`{"id":"decode-1","role":"decode","up":true,"instance":"00000000000000ab","grpc_addr":%q,"profile":"fake","profile_fingerprint":"0123456789abcdef","link":"rdma","rails":["tcp/eth0","tcp/eth1"],"kv_blocks":1000,"chunked":true,"scheduler":"sglang","max_loras":2,"adapters":["sql","chat"],"version":"v1"}]}}`+"\n",
		version.String(), p.info.Instance, p.info.GrpcAddr, d.info.GrpcAddr)
	if body != want {
		t.Errorf("%s, want %s", body, want)
	}

	for _, n := range []*fakeNode{p, d} {
		c.deregister(n)
	}
	if info := c.serverInfo(); info.Serving != "" || len(info.Nodes) != 0 || info.Model != testModel || info.Vocab != testVocab {
		t.Errorf("after the last node has left: %+v", info)
	}
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	if info := c.serverInfo(); info.Serving != ModeNondisagg {
		t.Errorf("%+v", info)
	}
}
