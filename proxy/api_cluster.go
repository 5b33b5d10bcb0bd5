package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"kvferry/internal/version"
	"kvferry/proto"
	"kvferry/proxy/serverinfo"
	"kvferry/proxy/wire"
)

// This file is what the API says of the cluster itself. Field names are those that clients of
// vLLM and SGLang read, also where they say nothing here.

// serveVersion is vLLM's GET /version.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	wire.JSON(w, map[string]string{"version": version.String()})
}

// settings are what a node says of its configuration; nil if that is nothing that is understood.
func settings(n *proto.NodeInfo) (all map[string]any) {
	_ = json.Unmarshal([]byte(n.Settings), &all)
	return all
}

// serveServerInfo is GET /server_info.
func (p *Proxy) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	c, _ := p.cluster()
	info := serverinfo.Info{
		Version: version.String(), Mode: p.cfg.Mode, Handoff: p.cfg.Handoff, Placement: p.cfg.Placement,
		Model: c.Model, Vocab: int(c.Vocab), BlockTokens: int(c.BlockTokens), MaxModelLen: int(c.MaxModelLen),
		Profile: c.Profile, Fingerprint: c.ProfileFingerprint, KVGeometry: c.KVGeometry, Nodes: []serverinfo.Node{}, ServedNames: []string{}, EOS: p.cfg.EOS.String(), Settings: p.cfg.Settings,
	}
	if m := p.model(c); m.Name != "" {
		info.ServedNames = slices.Concat([]string{m.Name}, m.Aliases, m.Adapters)
	}
	serving := p.nodes.serving
	if info.Compute = "modelled"; p.engines != nil {
		info.Compute, serving = "measured", p.engines.Serving
		info.EOS = "" // the model's own
	}
	switch disagg, err := serving(); {
	case err != nil:
	case disagg:
		info.Serving = ModeDisagg
	default:
		info.Serving = ModeNondisagg
	}
	for _, state := range p.Nodes() {
		n := state.Info
		info.Nodes = append(info.Nodes, serverinfo.Node{
			ID: n.Id, Role: proto.RoleName(n.Role), Up: state.Up, Instance: fmt.Sprintf("%016x", n.Instance), GRPCAddr: n.GrpcAddr, URL: state.URL,
			Profile: n.Profile, Fingerprint: n.ProfileFingerprint, Link: n.Link, Rails: append([]string{}, n.Rails...),
			KVBlocks: int(n.KvBlocks), Chunked: n.Chunked, Scheduler: n.Scheduler, MaxLoRAs: state.MaxLoRAs, Adapters: append([]string{}, state.Adapters...), Version: n.Version, Settings: settings(n),
		})
	}
	wire.JSON(w, serverinfo.Server{ModelPath: info.Model, InternalStates: make([]serverinfo.InternalState, 1), Kvferry: info})
}
