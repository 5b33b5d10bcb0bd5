package topology

import (
	"cmp"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/jaypipes/ghw"
)

const nodeFolder = "sys/devices/system/node"

// readNodes is the NUMA nodes that have CPUs or memory, one at least. ghw leaves out a node,
// and those after it, when it misses a file; those are read here.
func readNodes(t *tree) []Node {
	known := map[int]*ghw.TopologyNode{}
	if info, err := ghw.Topology(ghwOptions(t)...); err == nil {
		for _, n := range info.Nodes {
			known[n.ID] = n
		}
	}
	var nodes []Node
	var distances [][]int
	for _, name := range t.list(nodeFolder) {
		text, isNode := strings.CutPrefix(name, "node")
		id, err := strconv.Atoi(text)
		if !isNode || err != nil {
			continue
		}
		n := Node{ID: id, Socket: -1, CPUs: t.read(nodeFolder, name, "cpulist"), Memory: memoryOf(t.read(nodeFolder, name, "meminfo"))}
		far := parseDistances(t.read(nodeFolder, name, "distance"))
		if g := known[id]; g != nil {
			far = g.Distances
			if g.Memory != nil {
				n.Memory = g.Memory.TotalUsableBytes
			}
		}
		if n.CPUs == "" && n.Memory == 0 {
			far = nil // a place for memory that is not there
		}
		n.Socket = socketOf(t, n.CPUs)
		nodes, distances = append(nodes, n), append(distances, far)
	}
	// Kernels without NUMA have no folder. All memory is then at cpu:0.
	if len(nodes) == 0 {
		cpus := t.read("sys/devices/system/cpu/online")
		return []Node{{CPUs: cpus, Socket: socketOf(t, cpus), Memory: memoryOf(t.read("proc/meminfo"))}}
	}
	return present(nodes, distances)
}

// present leaves out nodes with neither CPUs nor memory, and the distances to them: firmware
// lists a node for each socket and each slot of memory that the board has room for. A row of
// distances has an entry for each node that the kernel lists; of one with another length
// nobody knows what is meant, and it is dropped.
func present(nodes []Node, distances [][]int) []Node {
	var out []Node
	for i, n := range nodes {
		if n.CPUs == "" && n.Memory == 0 {
			continue
		}
		for j, other := range nodes {
			if (other.CPUs != "" || other.Memory != 0) && len(distances[i]) == len(nodes) {
				n.Distances = append(n.Distances, distances[i][j])
			}
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// parseDistances reads a line of the table of distances, "10 21"; nil if it is none.
func parseDistances(text string) []int {
	var all []int
	for _, field := range strings.Fields(text) {
		d, err := strconv.Atoi(field)
		if err != nil {
			return nil
		}
		all = append(all, d)
	}
	return all
}

// memoryOf is the MemTotal of a meminfo, which is in KiB, in bytes.
func memoryOf(meminfo string) int64 {
	_, rest, _ := strings.Cut(meminfo, "MemTotal:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(fields[0], 10, 54)
	if err != nil || kib < 0 {
		return 0
	}
	return kib << 10
}

// socketOf is the socket of the first CPU in a list like "0-7,16-23": a node is on one socket.
// -1 is unknown, as of memory without CPUs.
func socketOf(t *tree, cpus string) int {
	if first := digits(cpus); first > 0 {
		if socket, ok := t.number("sys/devices/system/cpu", "cpu"+cpus[:first], "topology/physical_package_id"); ok {
			return socket
		}
	}
	return -1
}

// ghwOptions point ghw at a tree. It warns of what is filled in here.
func ghwOptions(t *tree) []any {
	return []any{ghw.WithChroot(t.dir), ghw.WithDisableTools(), ghw.WithLogger(slog.New(slog.DiscardHandler))}
}
