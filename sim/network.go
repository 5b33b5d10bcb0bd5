package sim

import (
	"math"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/fabric"
	"kvferry/internal/config"
	"kvferry/kvcache"
)

// A NIC is one network interface of a node. It sends and receives at its rate at
// the same time.
type NIC struct {
	BytesPerSecond float64       `json:"bytes_per_second"`
	Latency        time.Duration `json:"latency_ns"` // last byte out to last byte in, once a transfer
}

func (n NIC) validate() error {
	var bad config.Faults
	bad.Refuse(!(n.BytesPerSecond > 0) || math.IsInf(n.BytesPerSecond, 0), "BytesPerSecond", n.BytesPerSecond, "use a rate above 0")
	config.Between(&bad, "Latency", n.Latency, 0, time.Hour)
	return bad.Err("sim.NIC")
}

// rateOf is what NICs carry together.
func rateOf(nics []NIC) float64 {
	sum := 0.0
	for _, n := range nics {
		sum += n.BytesPerSecond
	}
	return sum
}

// A port is one direction of a NIC or of a leaf's uplink.
type port = fabric.Port[*transfer]

// A transfer is one Move of a node, or a copy within it.
type transfer struct {
	left     int     // of it that is under way, one a NIC
	flight   *flight // nil of a copy, which is known by its ID
	copy     uint64
	node     *node
	from, to *node // one of them is node
	moved    connector.Moved
	migrates bool // it is of a request that goes on there
	imm      bool // to is told, with
	token    kvcache.Token
	since    time.Duration   // starts then, if that is to come
	after    []time.Duration // and the parts after it then
	took     time.Duration   // of a convoy: each part
	next     *transfer       // in the node's list of those to start, then in the flight's of those landed
}

// over ends a part of it, and reports whether that was the last.
func (t *transfer) over() bool {
	t.left--
	return t.left == 0
}

// A leaf is a switch with nodes of one role below it, and its uplinks to the other leaf. A leaf
// whose uplinks carry all that the NICs below it can has none here: it holds nobody back.
type leaf struct{ up, down *port }

// newLeaf returns the leaf of nodes whose NICs have a rate together, of which its uplinks have
// 1/oversubscription.
func newLeaf(rate, oversubscription float64) leaf {
	if oversubscription <= 1 {
		return leaf{}
	}
	rate /= oversubscription
	return leaf{up: fabric.NewPort[*transfer](rate), down: fabric.NewPort[*transfer](rate)}
}

// A bus is what joins a node's GPUs with its host memory and its NICs, and the disk. A node without
// tiers has none here: it holds nobody back.
type bus struct{ up, down, disk *port }

func newBus(t kvcache.TierConfig) bus {
	if !t.Asked() {
		return bus{}
	}
	pcie := t.PCIe * 1e9
	return bus{up: fabric.NewPort[*transfer](pcie), down: fabric.NewPort[*transfer](pcie), disk: fabric.NewPort[*transfer](t.Disk * 1e9)}
}

// cross adds to a path what a copy crosses, or what a NIC sends from the GPU or brings to it.
func (b bus) cross(path []*port, way engine.Way) []*port {
	if p := [...]*port{engine.ToHost: b.up, engine.ToGPU: b.down, engine.ToDisk: b.disk, engine.FromDisk: b.disk}[way]; p != nil {
		path = append(path, p)
	}
	return path
}

// copy begins a copy within a node.
func (c *cluster) copy(n *node, k engine.Copy) {
	c.path = n.bus.cross(c.path[:0], k.Way)
	c.network.Start(c.now, float64(k.Blocks*c.cfg.Profile.KVGeometry.BlockBytes()), c.path, &transfer{left: 1, node: n, copy: k.ID})
}

// start begins a transfer.
func (c *cluster) start(t *transfer) {
	t.left = len(c.cfg.NICs)
	c.spread(t.from, t.to, t.moved.Bytes, func(bytes float64, path []*port) { c.network.Start(c.now, bytes, path, t) })
}

// spread divides bytes over the NICs of two nodes, first to first, each with its rate's
// share. They go through both nodes' leaves, and between each GPU and its NICs over the bus.
func (c *cluster) spread(from, to *node, bytes int64, each func(bytes float64, path []*port)) {
	sum := rateOf(c.cfg.NICs)
	for i, n := range c.cfg.NICs {
		c.path = from.bus.cross(c.path[:0], engine.ToHost)
		c.path = append(c.path, from.tx[i])
		if up := from.leaf.up; up != nil && from.leaf != to.leaf {
			c.path = append(c.path, up, to.leaf.down)
		}
		c.path = append(c.path, to.rx[i])
		c.path = to.bus.cross(c.path, engine.ToGPU)
		each(float64(bytes)*(n.BytesPerSecond/sum), c.path)
	}
}
