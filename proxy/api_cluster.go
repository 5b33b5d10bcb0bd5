package proxy

import (
	"fmt"
	"net/http"
	"slices"

	"kvferry/proto"
	"kvferry/proxy/wire"
	"kvferry/version"
)

// This file is what the API says of the cluster itself. Field names are those that clients of
// vLLM and SGLang read, also where they say nothing here.

// serveHealth is GET /health and /ping: 200 with no body if a request would be served now, or
// the error that it would get.
func (p *Proxy) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if err := p.Ready(); err != nil {
		wire.Error(w, toAPIError(err))
	}
}

// serveVersion is vLLM's GET /version.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	wire.JSON(w, map[string]string{"version": version.String()})
}

// serverInfo is GET /server_info. The first two fields are what SGLang's bench client
// reads: it asks at its end whether tokens were speculated.
type serverInfo struct {
	ModelPath      string          `json:"model_path"`
	InternalStates []internalState `json:"internal_states"`
	Kvferry        proxyInfo       `json:"kvferry"`
}

type internalState struct {
	AvgSpecAcceptLength *float64 `json:"avg_spec_accept_length"` // always null
}

// proxyInfo says what measures of this server are measures of. What the nodes agree
// on is the last ones' when all are gone, and empty or 0 before the first.
type proxyInfo struct {
	Version     string `json:"version"`
	Mode        string `json:"mode"`
	Handoff     string `json:"handoff"`
	Placement   string `json:"placement"`
	Conditional int    `json:"conditional_disaggregation,omitempty"` // see Config
	Model       string `json:"model"`                                // as the nodes call it
	Vocab       uint32 `json:"vocab"`                                // token ids are in [0, vocab)
	BlockTokens uint32 `json:"block_tokens"`
	MaxModelLen uint32 `json:"max_model_len"`
	// Profile and its fingerprint are those of all nodes. Where they may differ and
	// do, these are all names, and no fingerprint.
	Profile            string     `json:"profile"`
	ProfileFingerprint string     `json:"profile_fingerprint"`
	ServedNames        []string   `json:"served_names"` // that clients ask for: the model's, then the adapters'
	EOS                string     `json:"eos"`          // where answers end that do not ignore it; see --eos
	Serving            string     `json:"serving"`      // disagg or nondisagg; empty if a request would not be served now
	Compute            string     `json:"compute"`      // modelled by nodes, measured of engines
	Nodes              []nodeInfo `json:"nodes"`
}

// nodeInfo is one member of the cluster.
type nodeInfo struct {
	ID                 string   `json:"id"`
	Role               string   `json:"role"`
	Up                 bool     `json:"up"`       // takes requests
	Instance           string   `json:"instance"` // hex; another one after a restart
	GRPCAddr           string   `json:"grpc_addr"`
	URL                string   `json:"url,omitempty"` // of an engine
	Profile            string   `json:"profile"`
	ProfileFingerprint string   `json:"profile_fingerprint"`
	Link               string   `json:"link"` // "native" or the modelled NIC
	Rails              []string `json:"rails"`
	KVBlocks           uint32   `json:"kv_blocks"`
	Chunked            bool     `json:"chunked"`
	Scheduler          string   `json:"scheduler"` // vllm-v0, vllm-v1 or sglang; empty if it is none of these
	Version            string   `json:"version"`
}

func (p *Proxy) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	c, _ := p.cluster()
	info := proxyInfo{
		Version: version.String(), Mode: p.cfg.Mode, Handoff: p.cfg.Handoff, Placement: p.cfg.Placement, Conditional: p.cfg.ConditionalDisaggregation,
		Model: c.Model, Vocab: c.Vocab, BlockTokens: c.BlockTokens, MaxModelLen: c.MaxModelLen,
		Profile: c.Profile, ProfileFingerprint: c.ProfileFingerprint, Nodes: []nodeInfo{}, ServedNames: []string{}, EOS: p.cfg.EOS.String(),
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
		info.Nodes = append(info.Nodes, nodeInfo{
			ID: n.Id, Role: proto.RoleName(n.Role), Up: state.Up, Instance: fmt.Sprintf("%016x", n.Instance), GRPCAddr: n.GrpcAddr, URL: state.URL,
			Profile: n.Profile, ProfileFingerprint: n.ProfileFingerprint, Link: n.Link, Rails: append([]string{}, n.Rails...),
			KVBlocks: n.KvBlocks, Chunked: n.Chunked, Scheduler: n.Scheduler, Version: n.Version,
		})
	}
	wire.JSON(w, serverInfo{ModelPath: c.Model, InternalStates: make([]internalState, 1), Kvferry: info})
}
