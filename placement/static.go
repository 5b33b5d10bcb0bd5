package placement

import (
	"hash/fnv"
	"strconv"
	"strings"
)

// Static has each LoRA adapter on one node for ever.
const Static = "static"

var staticKind = kind[placer]{Static, "LoRA adapters by number, modulo the nodes; without one, least-loaded", func(int, bool) Policy { return &static{} }}

// static is the placement that dLoRA was published against: adapter i is on node i modulo the
// nodes. Requests for the base model go to the node with the least load.
type static struct{ base leastLoaded }

func (p *static) Place(r Request, candidates []Candidate) int {
	if r.Adapter == "" {
		return p.base.Place(r, candidates)
	}
	return int(number(r.Adapter) % uint64(len(candidates)))
}

func (p *static) WantsPrefix() bool { return false }

// number is the one that an adapter's name ends with, "lora-7"; of another name a hash.
func number(adapter string) uint64 {
	digits := adapter[len(strings.TrimRight(adapter, "0123456789")):]
	if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
		return n
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(adapter)) // a hash takes all
	return h.Sum64()
}
