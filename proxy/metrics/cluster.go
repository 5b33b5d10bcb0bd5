package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kvferry/proto"
)

// A Node is what a proxy knows of one of its nodes.
type Node struct {
	Info   *proto.NodeInfo
	Model  string      // as metrics call it
	Up     bool        // it takes requests
	Stalls uint64      // times that it was left
	Load   *proto.Load // nil: it does not say
	Rails  []*proto.RailLoad
}

// Cluster reads the nodes' state when it is asked for, instead of keeping gauges: the series of a
// node that has gone are gone with it, and nothing is done for a token. Counters of rails are the
// nodes' own, and begin anew with a node's process.
type Cluster struct {
	Nodes func() []Node
	// Avoided goes through the nodes, and pairs of them, that have failed of late: a peer that is
	// empty is of a node by itself. total is how often it was put into quarantine.
	Avoided func(each func(node, peer string, resting bool, total uint64))
}

// Labels are appended to a slice without room, so that no two descriptions share its memory.
// "perc" is vLLM's word for a share of 0 to 1; cache_config_info is 1, and says what it says in
// its labels. So does lora_requests_info, whose value is the time: with vLLM each thing that it has ever
// said is a series, and the latest counts. Here there is one for each node.
var (
	nodeLabels      = []string{"model_name", "engine"}
	runningDesc     = prometheus.NewDesc("vllm:num_requests_running", "Sequences in the engine's batch.", nodeLabels, nil)
	waitingDesc     = prometheus.NewDesc("vllm:num_requests_waiting", "Requests waiting for the engine's scheduler.", nodeLabels, nil)
	kvUsageDesc     = prometheus.NewDesc("vllm:kv_cache_usage_perc", "Used part of the engine's KV blocks, 0 to 1.", nodeLabels, nil)
	awakeDesc       = prometheus.NewDesc("vllm:engine_sleep_state", "1 of awake if the engine takes requests.", append(nodeLabels[:2:2], "sleep_state"), nil)
	cacheDesc       = prometheus.NewDesc("vllm:cache_config_info", "The engine's KV cache.", append(nodeLabels[:2:2], "block_size", "num_gpu_blocks"), nil)
	loraDesc        = prometheus.NewDesc("vllm:lora_requests_info", "LoRA adapters of the engine's requests, and how many slots it has for them (0: any number).", append(nodeLabels[:2:2], "max_lora", "waiting_lora_adapters", "running_lora_adapters"), nil)
	railLabels      = []string{"engine", "rail"}
	railBytes       = prometheus.NewDesc("kvferry:rail_bytes_total", "KV bytes that a node's transfers moved over a rail.", append(railLabels[:2:2], "op"), nil)
	railResent      = prometheus.NewDesc("kvferry:rail_resent_bytes_total", "Bytes queued again after their connection was lost.", railLabels, nil)
	railErrors      = prometheus.NewDesc("kvferry:rail_slice_errors_total", "Slices that a rail could not carry.", railLabels, nil)
	railDowns       = prometheus.NewDesc("kvferry:rail_downs_total", "Times that a path over a rail was lost or given up.", railLabels, nil)
	railStrikes     = prometheus.NewDesc("kvferry:rail_strikes_total", "Transfers with wrong bytes that a rail carried a part of.", railLabels, nil)
	railRests       = prometheus.NewDesc("kvferry:rail_rests_total", "Times that a path over a rail was put to rest because of wrong bytes.", railLabels, nil)
	railResting     = prometheus.NewDesc("kvferry:rail_paths_resting", "Paths over a rail that rest because of wrong bytes, and are not chosen while others are there.", railLabels, nil)
	railPaths       = prometheus.NewDesc("kvferry:rail_paths", "Paths to other nodes over a rail, by state.", append(railLabels[:2:2], "state"), nil)
	railFlight      = prometheus.NewDesc("kvferry:rail_in_flight_bytes", "Bytes queued and posted on a rail.", railLabels, nil)
	railConns       = prometheus.NewDesc("kvferry:rail_connections", "Connections of a TCP rail, made and served, by their congestion control. A path has several with ?conns=.", append(railLabels[:2:2], "congestion"), nil)
	railChanges     = prometheus.NewDesc("kvferry:rail_congestion_changes_total", "Times that a rail gave a connection another congestion control.", railLabels, nil)
	railRate        = prometheus.NewDesc("kvferry:rail_rate_bytes_per_second", "What a rail's paths were last seen to deliver.", railLabels, nil)
	nodesDesc       = prometheus.NewDesc("kvferry:nodes", "Nodes that take requests.", []string{"role"}, nil)
	pairLabels      = []string{"engine", "peer"}
	stallsDesc      = prometheus.NewDesc("kvferry:node_stalls_total", "Times that a node was left because it held its lease and did not get on.", []string{"engine"}, nil)
	quarantinedDesc = prometheus.NewDesc("kvferry:quarantined", "1 for a node, or a pair of nodes, that has failed requests and is not chosen while others are there.", pairLabels, nil)
	quarantinesDesc = prometheus.NewDesc("kvferry:quarantines_total", "Times that a node, or a pair of nodes, was put into quarantine.", pairLabels, nil)
)

// Describe implements [prometheus.Collector].
func (c Cluster) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		runningDesc, waitingDesc, kvUsageDesc, awakeDesc, cacheDesc, loraDesc, nodesDesc, railBytes, railResent, railErrors, railDowns, railStrikes, railRests, railResting, railPaths, railFlight, railConns, railChanges, railRate,
		stallsDesc, quarantinedDesc, quarantinesDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c Cluster) Collect(ch chan<- prometheus.Metric) {
	up := map[proto.Role]int{proto.Role_ROLE_PREFILL: 0, proto.Role_ROLE_DECODE: 0, proto.Role_ROLE_NONDISAGG: 0}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, n := range c.Nodes() {
		awake := 0
		if n.Up {
			awake = 1
			up[n.Info.Role]++
		}
		model, id := n.Model, n.Info.Id
		gauge(awakeDesc, float64(awake), model, id, "awake")
		if n.Load == nil {
			continue // a server that says none of this here
		}
		// A node's first load may not be here yet; it has said what it has when it registered.
		total := n.Load.KvBlocksTotal
		if total == 0 {
			total = n.Info.KvBlocks
		}
		gauge(runningDesc, float64(n.Load.Running), model, id)
		gauge(waitingDesc, float64(n.Load.Waiting), model, id)
		gauge(kvUsageDesc, float64(n.Load.KvBlocksUsed)/float64(max(total, 1)), model, id)
		gauge(cacheDesc, 1, model, id, strconv.FormatUint(uint64(n.Info.BlockTokens), 10), strconv.FormatUint(uint64(total), 10))
		if n.Load.AdapterSlots > 0 || len(n.Load.Adapters) > 0 {
			gauge(loraDesc, float64(time.Now().Unix()), model, id, strconv.FormatUint(uint64(n.Load.AdapterSlots), 10), strings.Join(n.Load.WaitingAdapters, ","), strings.Join(n.Load.RunningAdapters, ","))
		}
		counter(stallsDesc, n.Stalls, id)
		for _, r := range n.Rails {
			counter(railBytes, r.BytesWritten, id, r.Rail, "write")
			counter(railBytes, r.BytesRead, id, r.Rail, "read")
			counter(railResent, r.BytesResent, id, r.Rail)
			counter(railErrors, r.Errors, id, r.Rail)
			counter(railDowns, r.Downs, id, r.Rail)
			counter(railStrikes, r.Strikes, id, r.Rail)
			counter(railRests, r.Rests, id, r.Rail)
			gauge(railPaths, float64(r.PathsUp), id, r.Rail, "up")
			gauge(railResting, float64(r.PathsResting), id, r.Rail)
			gauge(railPaths, float64(r.Paths-min(r.Paths, r.PathsUp)), id, r.Rail, "down")
			gauge(railFlight, float64(r.BytesInFlight), id, r.Rail)
			for algorithm, conns := range r.Congestion {
				gauge(railConns, float64(conns), id, r.Rail, algorithm)
			}
			counter(railChanges, r.CongestionChanges, id, r.Rail)
			gauge(railRate, float64(r.Rate), id, r.Rail)
		}
	}
	for role, n := range up {
		gauge(nodesDesc, float64(n), proto.RoleName(role))
	}
	c.Avoided(func(node, peer string, resting bool, total uint64) {
		rests := 0.0
		if resting {
			rests = 1
		}
		gauge(quarantinedDesc, rests, node, peer)
		counter(quarantinesDesc, total, node, peer)
	})
}
