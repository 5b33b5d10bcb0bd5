package observe

// This file reads what a server says of itself, and sets it beside what the client
// measured. Both are accounts of the same requests, so where they cannot both be true, one
// of them is wrong, or measures something else than its name says; the rules say which two
// figures are at odds, and why that cannot be.
//
//	/metrics before ─┐
//	      the run    ├─▶ ServerFigures: what the server counted in between ─┐
//	/metrics after  ─┘                                                ├─▶ Table, and the words of ServerRules
//	NICs before, after ─▶ bytes this machine carried ────────────────┤
//	records ─▶ ClientFigures ───────────────────────────────────────────────┘
//
// The names are those of vLLM, SGLang, llama.cpp, TGI and kvferry, in Prometheus' text
// format. All series of a name count together: those of several engines, ranks and finish
// reasons, on one page or on several of the same kind of server. A counter's figure is its
// growth in the run. A histogram gives the exact mean of what it saw in the run, its sum's
// growth by its count's; a percentile is between the bounds of one bucket, and the figure is
// where it lies if the bucket is filled evenly, as Prometheus' histogram_quantile has it.
//
// The server's account is of all its requests, and ours may not be alone there. What is
// counted of others makes counts larger and moves means, so means are compared only if the
// server counted about as many requests as the client sent. A server without /metrics, one
// that answers an error or nonsense, and one that was restarted in between are told, and
// fail nothing.
//
// Times are milliseconds where a name ends in MS, else seconds; amounts are bytes, tokens
// and requests.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxPage bounds a page of metrics. That of a kvferry proxy with two nodes has 79 kB.
const maxPage = 64 << 20

// timeout is for one page; a server that is busy with a run may take seconds.
const timeout = 10 * time.Second

// A Snapshot is what one page of metrics said.
type Snapshot struct {
	URL      string
	families map[string]*dto.MetricFamily
}

// ReadMetrics parses a page in Prometheus' text format. What could be read before a fault is
// lost: half a page would look like a server that counts less.
func ReadMetrics(r io.Reader) (*Snapshot, error) { return read(r, maxPage) }

// read parses a page of so many bytes at most.
func read(r io.Reader, limit int64) (*Snapshot, error) {
	limited := &io.LimitedReader{R: r, N: limit + 1}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(limited)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("a page of more than %d MiB", limit>>20)
	case err != nil:
		return nil, fmt.Errorf("not Prometheus' text format: %w", err)
	case len(families) == 0:
		return nil, errors.New("no metrics in it")
	}
	return &Snapshot{families: families}, nil
}

// FetchMetrics reads the page at a URL. The error names the URL.
func FetchMetrics(ctx context.Context, c *http.Client, url string, header http.Header) (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", "text/plain") // and not OpenMetrics or protobuf, which some prefer
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s answers %s", url, resp.Status)
	}
	s, err := ReadMetrics(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics: %s: %w", url, err)
	}
	s.URL = url
	return s, nil
}

// labels pick series of a family: those that have all of them, or lack the name.
type labels map[string]string

func (l labels) pick(m *dto.Metric) bool {
	for _, pair := range m.GetLabel() {
		if want, ok := l[pair.GetName()]; ok && want != pair.GetValue() {
			return false
		}
	}
	return true
}

// Counter is the sum of all series of a counter; ok says whether there are any.
func (s *Snapshot) Counter(name string) (sum float64, ok bool) { return s.counter(name, nil) }

// counter is the sum of a counter's series. A name that ends in _sum or _count may be a
// histogram's.
func (s *Snapshot) counter(name string, l labels) (sum float64, ok bool) {
	family := s.families[name]
	of := func(m *dto.Metric) float64 {
		switch {
		case m.Counter != nil:
			return m.GetCounter().GetValue()
		case m.Gauge != nil: // some declare a counter so
			return m.GetGauge().GetValue()
		}
		return m.GetUntyped().GetValue()
	}
	if base, is := strings.CutSuffix(name, "_sum"); family == nil && is {
		family = s.families[base]
		of = func(m *dto.Metric) float64 { return m.GetHistogram().GetSampleSum() + m.GetSummary().GetSampleSum() }
	}
	if base, is := strings.CutSuffix(name, "_count"); family == nil && is {
		family = s.families[base]
		of = func(m *dto.Metric) float64 {
			return float64(m.GetHistogram().GetSampleCount() + m.GetSummary().GetSampleCount())
		}
	}
	for _, m := range family.GetMetric() {
		if l.pick(m) {
			sum, ok = sum+of(m), true
		}
	}
	return sum, ok
}

// together is what several servers of one kind counted, each after its snapshot before.
func together(before, after []*Snapshot) ServerFigures {
	f := union(after).Since(union(before))
	f.Servers = len(after)
	// One that was restarted may be outdone by another that counted more.
	for i := range after {
		for _, name := range after[i].Since(before[i]).Back {
			f.leaveOut(name)
		}
	}
	return f
}

// union has the series of several pages.
func union(pages []*Snapshot) *Snapshot {
	all := &Snapshot{URL: fmt.Sprintf("%d servers together", len(pages)), families: map[string]*dto.MetricFamily{}}
	for _, p := range pages {
		for name, family := range p.families {
			sum := all.families[name]
			if sum == nil {
				sum = &dto.MetricFamily{Name: family.Name, Type: family.Type}
				all.families[name] = sum
			}
			sum.Metric = append(sum.Metric, family.Metric...)
		}
	}
	return all
}
