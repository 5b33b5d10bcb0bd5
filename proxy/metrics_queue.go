package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"kvferry/proxy/metrics"
)

// clusterMetrics reads the nodes, and which of them the proxy avoids.
func (p *Proxy) clusterMetrics() metrics.Cluster {
	return metrics.Cluster{
		Nodes: func() (all []metrics.Node) {
			for _, n := range p.Nodes() {
				all = append(all, metrics.Node{Info: n.Info, Model: p.nodes.labelOf(n.Info.Model), Up: n.Up, Stalls: n.Stalls, Load: n.Load, Rails: n.Rails})
			}
			return all
		},
		Avoided: func(each func(node, peer string, resting bool, total uint64)) {
			if p.engines != nil {
				p.engines.Rests(p.clock.Now(), each)
				return
			}
			n := p.nodes
			n.mu.Lock()
			defer n.mu.Unlock()
			now := n.clock.Now()
			for s, total := range n.quarantine.Rests() {
				each(s.Node, s.Peer, n.quarantine.Resting(now, s), total)
			}
		},
	}
}

// queueCollector reads how many clients and requests the proxy has, when it is asked.
type queueCollector struct{ proxy *Proxy }

var (
	expectedDesc    = prometheus.NewDesc("kvferry:expected_queue_seconds", "How long a request that arrived now would wait for others before its prompt is computed.", nil, nil)
	requestsDesc    = prometheus.NewDesc("kvferry:requests", "Requests taken on: waiting for their turn, or running.", []string{"state"}, nil)
	connectionsDesc = prometheus.NewDesc("kvferry:connections", "Clients' connections: running a request, or pending.", []string{"state"}, nil)
	droppedDesc     = prometheus.NewDesc("kvferry:connections_dropped_total", "Pending connections that made room for new ones, and new ones beyond their client's share.", nil, nil)
)

func (c queueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{expectedDesc, requestsDesc, connectionsDesc, droppedDesc} {
		ch <- d
	}
}

func (c queueCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	p := c.proxy
	p.mu.Lock()
	wait, waiting, running := p.expectedWait(), p.waiting, p.inFlight-p.waiting
	p.mu.Unlock()
	gauge(expectedDesc, wait.Seconds())
	gauge(requestsDesc, float64(waiting), "waiting")
	gauge(requestsDesc, float64(running), "running")
	busy, pending, dropped := p.connections.Counts()
	gauge(connectionsDesc, float64(busy), "running")
	gauge(connectionsDesc, float64(pending), "pending")
	ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(dropped))
}
