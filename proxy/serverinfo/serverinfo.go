// Package serverinfo is what a proxy says of itself and its nodes, by GET /server_info, and how
// that is read and put into words. Rates are bytes a second, lengths tokens.
package serverinfo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Server is the answer. The first two fields are what SGLang's bench client
// reads: it asks at its end whether tokens were speculated.
type Server struct {
	ModelPath      string          `json:"model_path"`
	InternalStates []InternalState `json:"internal_states"`
	Kvferry        Info            `json:"kvferry"`
}

// An InternalState is one of SGLang's schedulers.
type InternalState struct {
	AvgSpecAcceptLength *float64 `json:"avg_spec_accept_length"` // always null
}

// Info says what measures of this server are measures of. What the nodes agree
// on is the last ones' when all are gone, and empty or 0 before the first.
type Info struct {
	Version     string `json:"version"`
	Mode        string `json:"mode"` // asked for: auto, Disagg or NonDisagg
	Handoff     string `json:"handoff"`
	Placement   string `json:"placement"`
	Model       string `json:"model"` // as the nodes call it
	Vocab       int    `json:"vocab"` // token ids are in [0, vocab)
	BlockTokens int    `json:"block_tokens"`
	MaxModelLen int    `json:"max_model_len"`
	// Profile and its fingerprint are those of all nodes. Where they may differ and
	// do, these are all names, and no fingerprint.
	Profile     string         `json:"profile"`
	Fingerprint string         `json:"profile_fingerprint"`
	KVGeometry  string         `json:"kv_geometry,omitempty"` // and if tokens are drawn from KV, or KV has no digests
	ServedNames []string       `json:"served_names"`          // that clients ask for: the model's, then the adapters'
	EOS         string         `json:"eos"`                   // where answers end that do not ignore it
	Serving     string         `json:"serving"`               // with the nodes of now: Disagg, NonDisagg or "" if a request would not be served
	Compute     string         `json:"compute"`               // Modelled by nodes, Measured of engines; empty, of an older proxy, is Modelled
	Settings    map[string]any `json:"settings,omitempty"`    // the proxy's knobs by their names
	Nodes       []Node         `json:"nodes"`
}

// A Node is one member of the cluster.
type Node struct {
	ID          string         `json:"id"`
	Role        string         `json:"role"`     // prefill, decode, nondisagg
	Up          bool           `json:"up"`       // takes requests
	Instance    string         `json:"instance"` // hex; another one after a restart
	GRPCAddr    string         `json:"grpc_addr"`
	URL         string         `json:"url,omitempty"` // of an engine
	Profile     string         `json:"profile"`
	Fingerprint string         `json:"profile_fingerprint"`
	Link        string         `json:"link"`  // "native", or the modelled NIC: a name, or name=tcp,rate=1.38GB/s
	Rails       []string       `json:"rails"` // names: "tcp/eth0"
	KVBlocks    int            `json:"kv_blocks"`
	Chunked     bool           `json:"chunked"`
	Scheduler   string         `json:"scheduler"`          // vllm-v0, vllm-v1 or sglang; empty of an engine, and of an older node
	MaxLoRAs    int            `json:"max_loras"`          // slots for LoRA adapters; 0: any number, or an engine that has not said
	Adapters    []string       `json:"adapters"`           // in slots, or on their way there
	Settings    map[string]any `json:"settings,omitempty"` // the node's knobs by their names
	Version     string         `json:"version"`
}

// Parse is nil for what is not an answer of kvferry's proxy.
func Parse(body []byte) (*Info, error) {
	var answer struct {
		KVFerry json.RawMessage `json:"kvferry"`
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.KVFerry) == 0 {
		return nil, nil
	}
	var info *Info
	if err := json.Unmarshal(answer.KVFerry, &info); err != nil {
		return nil, fmt.Errorf("kvferry: %w: use a kvferry of the proxy's version", err)
	}
	if info == nil {
		return nil, nil
	}
	numbers := []int{info.Vocab, info.BlockTokens, info.MaxModelLen}
	for i := range info.Nodes {
		numbers = append(numbers, info.Nodes[i].KVBlocks)
	}
	for _, n := range numbers {
		if n < 0 || n > mostOf {
			return nil, fmt.Errorf("kvferry: vocab, block_tokens, max_model_len or kv_blocks is %d, want 0 to %d", n, mostOf)
		}
	}
	return info, nil
}

// mostOf bounds what a proxy may say of its model and nodes. Token ids and lengths are drawn by it.
const mostOf = 1 << 30

// SafeVocabulary is what every tokenizer of today's language models has, from Llama
// 2 on: token ids below it are taken by a server that does not say how many it knows.
const SafeVocabulary = 32000

// Vocabulary bounds the token ids of prompts.
func (i *Info) Vocabulary() int {
	if i == nil || i.Vocab < 1 {
		return SafeVocabulary
	}
	return i.Vocab
}

// How a cluster serves, and the hand-off of one that moves no KV.
const (
	NonDisagg = "nondisagg" // each node computes prompts and tokens
	Disagg    = "disagg"    // prefill nodes and decode nodes
	NoHandoff = "none"
)

// Unknown is what a server does not say.
const Unknown = "unknown"

// Whose figures the computing is: of nodes, which model a GPU, or of real engines.
const (
	Modelled = "modelled"
	Measured = "measured"
)

// Engines reports whether real engines answer.
func (i *Info) Engines() bool { return i != nil && i.Compute == Measured }

// HandoffName is how KV gets from prefill to decode, as rows name it.
func (i *Info) HandoffName() string {
	switch {
	case i == nil:
		return Unknown
	case i.Serving == NonDisagg:
		return NoHandoff
	}
	return i.Handoff
}

// Working are the nodes that serve now.
func (i *Info) Working() []*Node {
	var nodes []*Node
	for k := range i.Nodes {
		if n := &i.Nodes[k]; n.Up && (n.Role == NonDisagg) == (i.Serving == NonDisagg) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Distinct are the different values that f has of nodes, in their order.
func Distinct(nodes []*Node, f func(*Node) string) []string {
	var values []string
	for _, n := range nodes {
		if v := f(n); v != "" && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// A Link is a node's --link, read.
type Link struct {
	Name           string  // of the modelled NIC, "" if it has none
	Native         bool    // the network as it is
	BytesPerSecond float64 // of the modelled NIC; 0 if it is not known
}

// Links are the different links of the nodes that serve, read by parse.
func (i *Info) Links(parse func(string) Link) []Link {
	var links []Link
	for _, text := range Distinct(i.Working(), func(n *Node) string { return n.Link }) {
		links = append(links, parse(text))
	}
	return links
}

func (l Link) String() string {
	switch {
	case l.Native:
		return "native"
	case l.Name != "":
		return l.Name
	case l.BytesPerSecond > 0:
		return fmt.Sprintf("%.4g GB/s", l.BytesPerSecond/1e9)
	}
	return Unknown
}

// LinkText names them.
func (i *Info) LinkText(parse func(string) Link) string {
	var names []string
	for _, l := range i.Links(parse) {
		names = append(names, l.String())
	}
	return strings.Join(names, " and ")
}

// RailNames are those of each node that differs in them: "tcp/eth0+tcp/eth1".
func (i *Info) RailNames() []string {
	return Distinct(i.Working(), func(n *Node) string { return strings.Join(n.Rails, "+") })
}

// Count is how many of the nodes that serve have a role.
func (i *Info) Count(role string) (n int) {
	for _, node := range i.Working() {
		if node.Role == role {
			n++
		}
	}
	return n
}

// Describe says what the cluster is, in the words of settings.
func (i *Info) Describe(parse func(string) Link) string {
	switch {
	case i.Engines() && i.Serving == NonDisagg:
		return fmt.Sprintf("real engines that serve alone: %d", i.Count(NonDisagg))
	case i.Engines() && i.Serving == Disagg:
		return fmt.Sprintf("real engines: %d prefill + %d decode, KV by their connector", i.Count("prefill"), i.Count("decode"))
	}
	switch i.Serving {
	case NonDisagg:
		text := fmt.Sprintf("%d non-disaggregated", i.Count(NonDisagg))
		if slices.ContainsFunc(i.Working(), func(n *Node) bool { return n.Chunked }) {
			text += ", chunked prefill"
		}
		return text
	case Disagg:
		return fmt.Sprintf("%d prefill + %d decode, hand-off %s, link %s on %s",
			i.Count("prefill"), i.Count("decode"), i.Handoff, i.LinkText(parse), strings.Join(i.RailNames(), ", "))
	}
	return "no nodes that can serve"
}
