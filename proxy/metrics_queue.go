package proxy

import "kvferry/proxy/metrics"

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
			n.quarantine.Rests(n.clock.Now(), each)
		},
	}
}

// queueMetrics reads how many clients and requests the proxy has.
func (p *Proxy) queueMetrics() metrics.Queue {
	return func() (q metrics.Queued) {
		p.mu.Lock()
		q.Wait, q.Waiting, q.Running = p.expectedWait(), p.waiting+p.early, p.inFlight-p.waiting
		p.mu.Unlock()
		q.Busy, q.Pending, q.Dropped = p.connections.Counts()
		return q
	}
}
