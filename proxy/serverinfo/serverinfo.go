// Package serverinfo is what a proxy's GET /server_info says.
package serverinfo

// Server is the answer. The first two fields are what SGLang's bench client
// reads: it asks at its end whether tokens were speculated.
type Server struct {
	ModelPath      string          `json:"model_path"`
	InternalStates []InternalState `json:"internal_states"`
	Kvferry        Proxy           `json:"kvferry"`
}

// An InternalState is one of SGLang's schedulers.
type InternalState struct {
	AvgSpecAcceptLength *float64 `json:"avg_spec_accept_length"` // always null
}

// Proxy says what measures of this server are measures of. What the nodes agree
// on is the last ones' when all are gone, and empty or 0 before the first.
type Proxy struct {
	Version     string `json:"version"`
	Mode        string `json:"mode"`
	Handoff     string `json:"handoff"`
	Placement   string `json:"placement"`
	Conditional int    `json:"conditional_disaggregation,omitempty"` // see --conditional-disaggregation
	Model       string `json:"model"`                                // as the nodes call it
	Vocab       uint32 `json:"vocab"`                                // token ids are in [0, vocab)
	BlockTokens uint32 `json:"block_tokens"`
	MaxModelLen uint32 `json:"max_model_len"`
	// Profile and its fingerprint are those of all nodes. Where they may differ and
	// do, these are all names, and no fingerprint.
	Profile            string   `json:"profile"`
	ProfileFingerprint string   `json:"profile_fingerprint"`
	KVGeometry         string   `json:"kv_geometry,omitempty"` // and if tokens are drawn from KV, or KV has no digests
	ServedNames        []string `json:"served_names"`          // that clients ask for: the model's, then the adapters'
	EOS                string   `json:"eos"`                   // where answers end that do not ignore it; see --eos
	Serving            string   `json:"serving"`               // disagg or nondisagg; empty if a request would not be served now
	Compute            string   `json:"compute"`               // modelled by nodes, measured of engines
	Nodes              []Node   `json:"nodes"`
}

// Node is one member of the cluster.
type Node struct {
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
	MaxLoRAs           int      `json:"max_loras"` // slots for LoRA adapters; 0: any number, or an engine that has not said
	Adapters           []string `json:"adapters"`  // in slots, or on their way there
	Version            string   `json:"version"`
}
