package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Queue reads how many clients and requests a proxy has, when it is asked.
type Queue func() Queued

// Queued is that.
type Queued struct {
	Wait             time.Duration // expected of a request that arrived now
	Waiting, Running int           // requests
	Busy, Pending    int           // connections
	Dropped          uint64        // of these
}

var (
	expectedDesc    = prometheus.NewDesc("kvferry:expected_queue_seconds", "How long a request that arrived now would wait for others before its prompt is computed.", nil, nil)
	requestsDesc    = prometheus.NewDesc("kvferry:requests", "Requests taken on: waiting for their turn, or running.", []string{"state"}, nil)
	connectionsDesc = prometheus.NewDesc("kvferry:connections", "Clients' connections: running a request, or pending.", []string{"state"}, nil)
	droppedDesc     = prometheus.NewDesc("kvferry:connections_dropped_total", "Pending connections that made room for new ones, and new ones beyond their client's share.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (Queue) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{expectedDesc, requestsDesc, connectionsDesc, droppedDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (read Queue) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	q := read()
	gauge(expectedDesc, q.Wait.Seconds())
	gauge(requestsDesc, float64(q.Waiting), "waiting")
	gauge(requestsDesc, float64(q.Running), "running")
	gauge(connectionsDesc, float64(q.Busy), "running")
	gauge(connectionsDesc, float64(q.Pending), "pending")
	ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(q.Dropped))
}

// Spans counts those of traces, read when somebody asks.
func Spans(read func() (exported, dropped int64)) []prometheus.Collector {
	counter := func(name, help string, of func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(of()) })
	}
	return []prometheus.Collector{
		counter("kvferry:spans_exported_total", "Spans that the collector of traces took.", func() int64 { n, _ := read(); return n }),
		counter("kvferry:spans_dropped_total", "Spans that came faster than the collector of traces took them, or that it refused.", func() int64 { _, n := read(); return n }),
	}
}
