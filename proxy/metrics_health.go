package proxy

import "github.com/prometheus/client_golang/prometheus"

// healthCollector reads which nodes the proxy avoids, and how often it has given up on
// one. A label peer that is empty is of a node by itself.
type healthCollector struct{ nodes *nodes }

var (
	pairLabels      = []string{"engine", "peer"}
	stallsDesc      = prometheus.NewDesc("kvferry:node_stalls_total", "Times that a node was left because it held its lease and did not get on.", []string{"engine"}, nil)
	quarantinedDesc = prometheus.NewDesc("kvferry:quarantined", "1 for a node, or a pair of nodes, that has failed requests and is not chosen while others are there.", pairLabels, nil)
	quarantinesDesc = prometheus.NewDesc("kvferry:quarantines_total", "Times that a node, or a pair of nodes, was put into quarantine.", pairLabels, nil)
)

func (c healthCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{stallsDesc, quarantinedDesc, quarantinesDesc} {
		ch <- d
	}
}

func (c healthCollector) Collect(ch chan<- prometheus.Metric) {
	all := c.nodes
	for _, n := range all.states() {
		ch <- prometheus.MustNewConstMetric(stallsDesc, prometheus.CounterValue, float64(n.Stalls), n.Info.Id)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	now := all.clock.Now()
	for s, total := range all.quarantine.Rests() {
		rests := 0.0
		if all.quarantine.Resting(now, s) {
			rests = 1
		}
		ch <- prometheus.MustNewConstMetric(quarantinedDesc, prometheus.GaugeValue, rests, s.Node, s.Peer)
		ch <- prometheus.MustNewConstMetric(quarantinesDesc, prometheus.CounterValue, float64(total), s.Node, s.Peer)
	}
}
