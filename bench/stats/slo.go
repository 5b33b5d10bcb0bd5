package stats

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// An SLO lists the bounds that a good request keeps, at most one per metric. An empty SLO bounds nothing.
type SLO []Bound

// A Bound limits a metric of a request.
type Bound struct {
	Metric string  `json:"metric"` // ttft, tpot or e2el
	MS     float64 `json:"ms"`
}

// bounded are the metrics that an SLO may bound, in vLLM's client and in SGLang's.
var bounded = []string{"ttft", "tpot", "e2el"}

// ParseSLO reads bounds as --goodput has them: ttft:200 tpot:50. Each item may hold
// several, with a space or a comma between them.
func ParseSLO(items []string) (SLO, error) {
	var slo SLO
	for _, text := range strings.FieldsFunc(strings.Join(items, " "), func(r rune) bool { return r == ' ' || r == ',' }) {
		metric, value, _ := strings.Cut(text, ":")
		ms, err := strconv.ParseFloat(value, 64)
		switch {
		case !slices.Contains(bounded, metric):
			return nil, fmt.Errorf("%q: write METRIC:MS with the metric %s", text, strings.Join(bounded, ", "))
		case err != nil || !(ms >= 0) || math.IsInf(ms, 0):
			return nil, fmt.Errorf("%q: write %s:MS with milliseconds, 0 or more", text, metric)
		case slices.ContainsFunc(slo, func(b Bound) bool { return b.Metric == metric }):
			return nil, fmt.Errorf("%q: %s is given twice", text, metric)
		}
		slo = append(slo, Bound{metric, ms})
	}
	return slo, nil
}

// Limit returns the bound of a metric in milliseconds, 0 if it has none.
func (s SLO) Limit(metric string) float64 {
	for _, b := range s {
		if b.Metric == metric {
			return b.MS
		}
	}
	return 0
}

// Kept reports whether a request kept every bound. ms returns the request's value of a metric.
func (s SLO) Kept(ms func(metric string) float64) bool {
	return !slices.ContainsFunc(s, func(b Bound) bool { return !(ms(b.Metric) <= b.MS) })
}

// Text returns the bounds in words: "TTFT", relation, "200 ms", and so on, with join between them.
func (s SLO) Text(relation, join string) string {
	parts := make([]string, len(s))
	for i, b := range s {
		parts[i] = fmt.Sprintf("%s %s %g ms", strings.ToUpper(b.Metric), relation, b.MS)
	}
	return strings.Join(parts, join)
}
