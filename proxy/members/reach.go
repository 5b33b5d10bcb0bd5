package members

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/proto"
)

// Reach reports whether KV can move between two nodes: a rail of each can reach the other's. It is true where
// a node does not say what its rails reach.
func Reach(a, b *proto.NodeInfo) bool {
	return len(a.Reach) == 0 || len(b.Reach) == 0 || slices.ContainsFunc(a.Reach, func(r string) bool { return slices.Contains(b.Reach, r) })
}

// Room returns how many tokens of one request fit into a node's KV pool, 0 if the node does not say.
func Room(n *proto.NodeInfo) int { return int(n.KvBlocks) * int(n.BlockTokens) }

// Fits reports whether a node's KV pool holds a request, as far as the node says: prompt tokens of it on a prefill
// node, all on any other.
func Fits(n *proto.NodeInfo, prompt, all int) bool {
	if n.Role == proto.Role_ROLE_PREFILL {
		all = prompt
	}
	return Room(n) == 0 || all <= Room(n)
}

// Partner returns an error that names the rails of both sides if a prefill or decode node reaches none of the
// nodes that could have the other leg, and nil if it reaches one or there are none yet.
func Partner(info *proto.NodeInfo, others []*proto.NodeInfo) error {
	role := map[proto.Role]proto.Role{proto.Role_ROLE_PREFILL: proto.Role_ROLE_DECODE, proto.Role_ROLE_DECODE: proto.Role_ROLE_PREFILL}[info.Role]
	var there []string
	for _, o := range others {
		switch {
		case o.Role != role || o.Id == info.Id:
		case Reach(info, o):
			return nil
		default:
			there = append(there, o.Reach...)
		}
	}
	if len(there) == 0 {
		return nil
	}
	slices.Sort(there)
	return fmt.Errorf("node.rails: %s has %s, the %s nodes have %s: no KV can move between them: give both sides a --rail of the same kind (cma and shm reach only nodes of the same machine and user)",
		info.Id, strings.Join(info.Reach, ", "), proto.RoleName(role), strings.Join(slices.Compact(there), ", "))
}
