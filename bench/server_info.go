package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kvferry/bench/client"
)

// A ServerInfo is what kvferry's proxy says of itself and of its nodes: the object
// "kvferry" of GET /server_info.
type ServerInfo struct {
	Version     string       `json:"version"`
	Mode        string       `json:"mode"`    // asked for: auto, ModeDisagg or ModeNonDisagg
	Serving     string       `json:"serving"` // with the nodes of now: ModeDisagg, ModeNonDisagg or ""
	Handoff     string       `json:"handoff"`
	Placement   string       `json:"placement"`
	Model       string       `json:"model"`
	Vocab       int          `json:"vocab"` // token ids are below it
	BlockTokens int          `json:"block_tokens"`
	MaxModelLen int          `json:"max_model_len"`
	Profile     string       `json:"profile"`
	Fingerprint string       `json:"profile_fingerprint"`
	Nodes       []ServerNode `json:"nodes"`
}

// A ServerNode is one node of a ServerInfo.
type ServerNode struct {
	ID          string   `json:"id"`
	Role        string   `json:"role"` // prefill, decode, nondisagg
	Up          bool     `json:"up"`
	Instance    string   `json:"instance"`
	GRPCAddr    string   `json:"grpc_addr"`
	Profile     string   `json:"profile"`
	Fingerprint string   `json:"profile_fingerprint"`
	Link        string   `json:"link"`  // "native", or the modelled NIC: a name, or name=tcp,rate=1.38GB/s
	Rails       []string `json:"rails"` // names: "tcp/eth0"
	KVBlocks    int      `json:"kv_blocks"`
	Chunked     bool     `json:"chunked"`
	Version     string   `json:"version"`
}

// askServer asks the server what it is. One that does not say, because it is not
// kvferry's, yields nil without an error.
func askServer(ctx context.Context, c *client.Client) (*ServerInfo, error) {
	const path = "/server_info"
	body, err := c.Get(ctx, path)
	if status := (*client.StatusError)(nil); errors.As(err, &status) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	info, err := parseServerInfo(body)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return info, nil
}

// parseServerInfo is nil for what is not an answer of kvferry's proxy.
func parseServerInfo(body []byte) (*ServerInfo, error) {
	var answer struct {
		KVFerry json.RawMessage `json:"kvferry"`
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.KVFerry) == 0 {
		return nil, nil
	}
	var info *ServerInfo
	if err := json.Unmarshal(answer.KVFerry, &info); err != nil {
		return nil, fmt.Errorf("kvferry: %w: use a kvbench of the proxy's version", err)
	}
	return info, nil
}

// safeVocabulary is what every tokenizer of today's language models has, from Llama
// 2 on: token ids below it are taken by a server that does not say how many it knows.
const safeVocabulary = 32000

// vocabulary bounds the token ids of prompts.
func (i *ServerInfo) vocabulary() int {
	if i == nil || i.Vocab < 1 {
		return safeVocabulary
	}
	return i.Vocab
}

const unknown = "unknown"

// handoff is how KV gets from prefill to decode, as rows name it.
func (i *ServerInfo) handoff() string {
	switch {
	case i == nil:
		return unknown
	case i.Serving == ModeNonDisagg:
		return noHandoff
	}
	return i.Handoff
}

// working are the nodes that serve now.
func (i *ServerInfo) working() []*ServerNode {
	var nodes []*ServerNode
	for k := range i.Nodes {
		if n := &i.Nodes[k]; n.Up && (n.Role == ModeNonDisagg) == (i.Serving == ModeNonDisagg) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// distinct are the different values that f has of nodes, in their order.
func distinct(nodes []*ServerNode, f func(*ServerNode) string) []string {
	var values []string
	for _, n := range nodes {
		if v := f(n); v != "" && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// A NodeLink is a node's --link, read.
type NodeLink struct {
	Name           string  // of the modelled NIC, "" if it has none
	Native         bool    // the network as it is
	BytesPerSecond float64 // of the modelled NIC; 0 if it is not known
}

// links are the different links of the nodes that serve, read by parse.
func (i *ServerInfo) links(parse func(string) NodeLink) []NodeLink {
	var links []NodeLink
	for _, text := range distinct(i.working(), func(n *ServerNode) string { return n.Link }) {
		links = append(links, parse(text))
	}
	return links
}

func (l NodeLink) String() string {
	switch {
	case l.Native:
		return "native"
	case l.Name != "":
		return l.Name
	case l.BytesPerSecond > 0:
		return fmt.Sprintf("%.4g GB/s", l.BytesPerSecond/1e9)
	}
	return unknown
}

func (i *ServerInfo) linkText(parse func(string) NodeLink) string {
	var names []string
	for _, l := range i.links(parse) {
		names = append(names, l.String())
	}
	return strings.Join(names, " and ")
}

// rails are those of each node that differs in them: "tcp/eth0+tcp/eth1".
func (i *ServerInfo) rails() []string {
	return distinct(i.working(), func(n *ServerNode) string { return strings.Join(n.Rails, "+") })
}

// link is what carries the KV, in a row's words.
func (i *ServerInfo) link(parse func(string) NodeLink) Link {
	l := Link{Clock: ClockReal, Compute: unknown, Transfer: unknown, Label: "compute and transfer unknown: the server does not say what it is"}
	if i == nil {
		return l
	}
	l.Compute = "modelled"
	modelled := "compute modelled (" + strings.Join(distinct(i.working(), func(n *ServerNode) string { return n.Profile }), ", ") + ")"
	if i.Serving == ModeNonDisagg {
		l.Transfer, l.Label = "none", modelled+", no KV transfer"
		return l
	}
	l.Rail = strings.Join(i.rails(), ", ")
	links := i.links(parse)
	switch {
	case len(links) != 1:
		l.Label = fmt.Sprintf("%s, transfer on %s, nodes with different links: %s", modelled, l.Rail, i.linkText(parse))
	case links[0].Native:
		l.Transfer, l.Label = "measured", modelled+", transfer measured on "+l.Rail
	default:
		l.Transfer, l.PacedTo = "paced", links[0].BytesPerSecond
		l.Label = modelled + ", transfer on " + l.Rail + " paced to " + links[0].String()
		if links[0].Name != "" && l.PacedTo > 0 {
			l.Label = fmt.Sprintf("%s, transfer on %s paced to %.2f GB/s (%s)", modelled, l.Rail, l.PacedTo/1e9, links[0].Name)
		}
	}
	return l
}

// count is how many of the nodes that serve have a role.
func (i *ServerInfo) count(role string) (n int) {
	for _, node := range i.working() {
		if node.Role == role {
			n++
		}
	}
	return n
}

// describe says what the cluster is, in the words of settings.
func (i *ServerInfo) describe(parse func(string) NodeLink) string {
	switch i.Serving {
	case ModeNonDisagg:
		text := fmt.Sprintf("%d non-disaggregated", i.count(ModeNonDisagg))
		if slices.ContainsFunc(i.working(), func(n *ServerNode) bool { return n.Chunked }) {
			text += ", chunked prefill"
		}
		return text
	case ModeDisagg:
		return fmt.Sprintf("%d prefill + %d decode, hand-off %s, link %s on %s",
			i.count("prefill"), i.count("decode"), i.Handoff, i.linkText(parse), strings.Join(i.rails(), ", "))
	}
	return "no nodes that can serve"
}

// lacks says what would make the cluster one of the setting; nothing if it is.
func (i *ServerInfo) lacks(s Setting, parse func(string) NodeLink) []string {
	if i.Serving != s.Mode {
		if s.Mode == ModeNonDisagg {
			return []string{"start decode --nondisagg nodes alone"}
		}
		return []string{"start a prefill and a decode node, and the proxy with --handoff " + s.Handoff}
	}
	var todo []string
	if s.Mode == ModeNonDisagg {
		if slices.ContainsFunc(i.working(), func(n *ServerNode) bool { return n.Chunked != s.Chunked }) {
			todo = append(todo, "start the nodes "+map[bool]string{true: "with", false: "without"}[s.Chunked]+" --enable-chunked-prefill")
		}
		return todo
	}
	if i.Handoff != s.Handoff {
		todo = append(todo, "start the proxy with --handoff "+s.Handoff)
	}
	if slices.ContainsFunc(i.links(parse), func(l NodeLink) bool { return !s.over(l, i.rails()) }) {
		todo = append(todo, "start the nodes with --link "+s.Link)
	}
	return todo
}

// over says whether a link may carry the setting's KV. A modelled NIC that the
// published settings have stands for its own setting, another one for any. The
// network as it is stands for the settings of its kind: sockets for tcp, RDMA and
// copies between processes for rdma and rdma2. Hand-offs of ours take any link.
func (s Setting) over(l NodeLink, rails []string) bool {
	switch {
	case s.Handoff != "v0":
		return true
	case l.Native:
		sockets := slices.ContainsFunc(rails, func(r string) bool { return strings.HasPrefix(r, "tcp/") })
		return sockets == (s.Link == "tcp")
	case slices.ContainsFunc(Settings(), func(o Setting) bool { return o.Link == l.Name && l.Name != "" }):
		return l.Name == s.Link
	}
	return true
}

// A MismatchError is a server that is not what the setting stands for.
type MismatchError struct {
	URL     string
	Setting string
	Is      string   // what it is
	Fits    []string // names of settings that it is
	Todo    []string // what would make it the setting
}

func (e *MismatchError) Error() string {
	advice := strings.Join(e.Todo, ", ")
	if len(e.Fits) > 0 {
		advice = "name " + strings.Join(e.Fits, " or ") + ", or " + advice
	}
	return fmt.Sprintf("%s is not what serves at %s: that is %s: %s", e.Setting, e.URL, e.Is, advice)
}

// check is a MismatchError if the cluster is none of the setting.
func (i *ServerInfo) check(url string, s Setting, parse func(string) NodeLink) error {
	todo := i.lacks(s, parse)
	if len(todo) == 0 {
		return nil
	}
	e := &MismatchError{URL: url, Setting: s.Name, Is: i.describe(parse), Todo: todo}
	for _, o := range Settings() {
		if len(i.lacks(o, parse)) == 0 {
			e.Fits = append(e.Fits, o.Name)
		}
	}
	return e
}

// remarks are what makes the figures those of another cluster than the published
// one, or of several kinds of node.
func (i *ServerInfo) remarks() []string {
	var notes []string
	nodes := i.working()
	for _, p := range []struct {
		what string
		of   func(*ServerNode) string
	}{
		{"profile", func(n *ServerNode) string { return strings.TrimSpace(n.Profile + " " + n.Fingerprint) }},
		{"version", func(n *ServerNode) string { return n.Version }},
		{"link", func(n *ServerNode) string { return n.Link }},
	} {
		if len(distinct(nodes, p.of)) < 2 {
			continue
		}
		var each []string
		for _, n := range nodes {
			each = append(each, n.ID+" "+p.of(n))
		}
		notes = append(notes, fmt.Sprintf("the nodes differ in %s: %s", p.what, strings.Join(each, ", ")))
	}
	return notes
}

// published says whether the cluster has as many nodes as the published ones.
func (i *ServerInfo) published() bool {
	for _, n := range i.working() {
		if n.Fingerprint != publishedGPU() {
			return false
		}
	}
	return i.Serving == ModeNonDisagg && i.count(ModeNonDisagg) == 1 || i.Serving == ModeDisagg && i.count("prefill") == 1 && i.count("decode") == 1
}
