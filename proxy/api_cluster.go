package proxy

import (
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

// serveServerInfo is GET /server_info.
func (p *Proxy) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	c, _ := p.cluster()
	info := serverinfo.Proxy{
		Version: version.String(), Mode: p.cfg.Mode, Handoff: p.cfg.Handoff, Placement: p.cfg.Placement, Conditional: p.cfg.ConditionalDisaggregation,
		Model: c.Model, Vocab: c.Vocab, BlockTokens: c.BlockTokens, MaxModelLen: c.MaxModelLen,
		Profile: c.Profile, ProfileFingerprint: c.ProfileFingerprint, KVGeometry: c.KVGeometry, Nodes: []serverinfo.Node{}, ServedNames: []string{}, EOS: p.cfg.EOS.String(),
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
			Profile: n.Profile, ProfileFingerprint: n.ProfileFingerprint, Link: n.Link, Rails: append([]string{}, n.Rails...),
			KVBlocks: n.KvBlocks, Chunked: n.Chunked, Scheduler: n.Scheduler, MaxLoRAs: state.MaxLoRAs, Adapters: append([]string{}, state.Adapters...), Version: n.Version,
		})
	}
	wire.JSON(w, serverinfo.Server{ModelPath: info.Model, InternalStates: make([]serverinfo.InternalState, 1), Kvferry: info})
}
