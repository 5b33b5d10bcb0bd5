package members

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"kvferry/proto"
)

// Rules say which nodes may be in one cluster.
type Rules struct {
	Handoff       string // the proxy's
	MinVocab      uint32 // token ids that its tokenizer needs
	MaxVocab      uint32 // and that it can name
	MixedProfiles bool   // nodes of different profiles may be together
	Version       string // of the proxy's program
}

// maxStep bounds the longest step of a node. The proxy waits for a step half as long again.
const maxStep = 10 * time.Minute

// Check says which field of a node makes no sense.
func (r Rules) Check(info *proto.NodeInfo) error {
	switch {
	case info == nil:
		return errors.New("node: missing")
	case info.Id == "":
		return errors.New("node.id: empty: want a name unique in the cluster, such as decode-1")
	case info.Protocol != proto.Protocol:
		return fmt.Errorf("node.protocol: %s has version %s of kvferry, which speaks protocol %d, the proxy has version %s and speaks %d: run the same version on both",
			info.Id, cmp.Or(info.Version, "unknown"), info.Protocol, cmp.Or(r.Version, "unknown"), proto.Protocol)
	case info.Model == "":
		return fmt.Errorf("node.model: empty: node %s must name the model it serves", info.Id)
	case info.BlockTokens == 0:
		return errors.New("node.block_tokens: 0: want the tokens in a KV block, such as 16")
	case info.MaxModelLen < 2:
		return fmt.Errorf("node.max_model_len: %d: want at least 2 tokens", info.MaxModelLen)
	case info.MaxModelLen > proto.MaxModelLen:
		return fmt.Errorf("node.max_model_len: %d: the proxy takes %d at most: lower max_model_len in profile %q", info.MaxModelLen, proto.MaxModelLen, info.Profile)
	case info.Vocab < max(r.MinVocab, 1) || info.Vocab > r.MaxVocab:
		return fmt.Errorf("node.vocab: %d: the proxy's tokenizer takes %d to %d token ids: change vocab in profile %q (0 is from a node of an older version)", info.Vocab, max(r.MinVocab, 1), r.MaxVocab, info.Profile)
	case info.LongestStep() > maxStep:
		return fmt.Errorf("node.step_us, node.prompt_token_ns: a step of %s may take %v: the proxy waits for %v at most", info.Id, info.LongestStep(), maxStep)
	case info.Role != proto.Role_ROLE_PREFILL && info.Role != proto.Role_ROLE_DECODE && info.Role != proto.Role_ROLE_NONDISAGG:
		return fmt.Errorf("node.role: %v: want prefill, decode or nondisagg", info.Role)
	}
	host, port, err := net.SplitHostPort(info.GrpcAddr)
	if err != nil {
		return fmt.Errorf("node.grpc_addr: %w: want host:port", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || port == "0" {
		return fmt.Errorf("node.grpc_addr: %q is not an address others can dial: have the node advertise one", info.GrpcAddr)
	}
	return nil
}

// Fits says why a node that Check takes cannot join others. One with its id is not asked:
// it will be replaced, or the node is refused.
func (r Rules) Fits(info *proto.NodeInfo, others []*proto.NodeInfo) error {
	if info.Role != proto.Role_ROLE_NONDISAGG && len(info.Handoffs) > 0 && !slices.Contains(info.Handoffs, r.Handoff) {
		return fmt.Errorf("node.handoffs: %s knows %v, the proxy runs %q: start both with the same hand-off", info.Id, info.Handoffs, r.Handoff)
	}
	c, ok := Agree(slices.DeleteFunc(slices.Clone(others), func(o *proto.NodeInfo) bool { return o.Id == info.Id }))
	switch {
	case !ok:
	case info.Model != c.Model:
		return fmt.Errorf("node.model: %s serves %q, the cluster %q: use another proxy for another model", info.Id, info.Model, c.Model)
	case info.BlockTokens != c.BlockTokens:
		return fmt.Errorf("node.block_tokens: %s has %d, the cluster %d: all nodes need the same", info.Id, info.BlockTokens, c.BlockTokens)
	case info.KvGeometry != c.KVGeometry:
		return fmt.Errorf("node.kv_geometry: %s has %q, the cluster %q: start all nodes with the same --profile and --tokens-from-kv, and with --kv-checks none or none of them", info.Id, info.KvGeometry, c.KVGeometry)
	case info.Vocab != c.Vocab:
		return fmt.Errorf("node.vocab: %s has %d token ids, the cluster %d: start all nodes with the same --profile", info.Id, info.Vocab, c.Vocab)
	case !r.MixedProfiles && !c.SameProfile(info):
		return fmt.Errorf("node.profile: %s has %q (fingerprint %s), the cluster %q (%s): start all nodes with the same --profile, or the proxy with --allow-mixed-profiles",
			info.Id, info.Profile, cmp.Or(info.ProfileFingerprint, "none"), c.Profile, cmp.Or(c.ProfileFingerprint, "none"))
	}
	return nil
}

// A Cluster is what all nodes of a cluster agree on.
type Cluster struct {
	Model       string
	BlockTokens uint32
	KVGeometry  string
	Vocab       uint32 // token ids are in [0, Vocab)
	MaxModelLen uint32 // the least of the nodes'

	// The nodes' profile. With [Rules].MixedProfiles they may differ: then all names,
	// and no fingerprint.
	Profile            string
	ProfileFingerprint string
}

// Agree is what nodes that fit each other agree on; false if there are none.
func Agree(nodes []*proto.NodeInfo) (c Cluster, ok bool) {
	var profiles []string
	for i, n := range nodes {
		if i == 0 {
			c = Cluster{
				Model: n.Model, BlockTokens: n.BlockTokens, KVGeometry: n.KvGeometry, Vocab: n.Vocab,
				MaxModelLen: n.MaxModelLen, ProfileFingerprint: n.ProfileFingerprint,
			}
		}
		c.MaxModelLen = min(c.MaxModelLen, n.MaxModelLen)
		if c.ProfileFingerprint != n.ProfileFingerprint {
			c.ProfileFingerprint = ""
		}
		profiles = append(profiles, n.Profile)
	}
	slices.Sort(profiles)
	c.Profile = strings.Join(slices.Compact(profiles), ", ")
	return c, len(nodes) > 0
}

// SameProfile reports whether a node has the profile of them all. Of one without a
// fingerprint that is not known.
func (c Cluster) SameProfile(info *proto.NodeInfo) bool {
	return info.ProfileFingerprint == c.ProfileFingerprint && info.ProfileFingerprint != ""
}
