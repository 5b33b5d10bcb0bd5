package result

// This file sets results of serving benchmarks side by side, whoever measured them:
// kvferry, vLLM or SGLang (package result reads their files). The first result is what the
// others are compared with.
//
//	files ──result.Read──▶ []result.Run ──▶ comparison ──▶ text, compare.json, table.md, report.html
//
// # What a difference is worth
//
// A figure of a run is one draw: other requests at other moments give another. Where a file
// lists its requests, each latency's difference has an interval by the bootstrap (Efron 1979):
// the requests of both runs are drawn again, with replacement, some thousand times, the figure
// is computed each time, and the interval holds the middle 95 % of the differences (the
// percentile method). What is drawn is the request, with all gaps between its tokens: gaps of
// one request are no independent values. Where two runs had the same lengths, request by
// request, the same requests are drawn of both, so that what they have in common drops out.
//
// The interval is that of these runs' requests. It does not hold what two runs of one server
// have of their own (a cold cache, another neighbour, another order of batches), because
// requests of one run wait in one queue: repeat a run before a small difference is believed.
//
// A percentile has no interval where fewer than five values lie above it, nor has any figure of
// fewer than twenty requests: the bootstrap cannot draw what was not seen. Rates and counts are
// one value a run, and have none. A file without lists has no intervals at all. Each place
// says so.
//
// Units: latencies in milliseconds, rates a second, differences in percent of the first
// result's figure. The same files, seed and number of draws give the same digits.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"kvferry/bench/document"
)

// A comparison is compare.json: groups of results that are compared with one another.
type comparison struct {
	Confidence float64 `json:"confidence"` // of the intervals: 0.95
	Draws      int     `json:"draws"`      // of requests, at most
	Seed       uint64  `json:"seed"`
	Groups     []group `json:"groups"`
	// Alone are results that have no counterpart in another file, and are not compared.
	Alone []string `json:"alone,omitempty"`
}

// A group holds results of one kind of run. The others are compared with the first.
type group struct {
	Name    string   `json:"name,omitempty"` // where there are several groups
	Results []side   `json:"results"`
	Differs []string `json:"differs"` // what was run is not the same, or not measured alike
	Rows    []row    `json:"rows"`

	distributions []latencyDistribution
}

// A side is one of the results.
type side struct {
	Name     string            `json:"name"` // A, B, ..
	Source   string            `json:"source"`
	Tool     string            `json:"tool"` // whose definitions its figures have
	Requests int               `json:"requests_listed"`
	Setup    map[string]string `json:"setup"`
	Doubts   []string          `json:"doubts,omitempty"`
}

// A row is a figure of all results.
type row struct {
	Figure  string       `json:"figure"` // as in report.Metrics
	Label   string       `json:"label"`
	Values  []*float64   `json:"values"`      // nil where a file does not say
	Against []difference `json:"differences"` // of each result after the first
}

// Verdicts of a difference.
const (
	noDifference = "no difference shown" // the interval has 0 in it
	slower       = "slower"
	faster       = "faster"
)

// A difference is of a result from the first, in percent of the first's figure.
type difference struct {
	Percent *float64 `json:"percent"` // nil where one is missing, or the first is 0
	Low     *float64 `json:"low"`     // the interval; nil where there is none
	High    *float64 `json:"high"`
	Paired  bool     `json:"paired,omitempty"` // the same requests were drawn of both
	Verdict string   `json:"verdict,omitempty"`
	Why     string   `json:"no_interval,omitempty"` // why there is none
}

// A figureRow is a figure that is compared. latency is the list of values that it is taken
// over, and statistic which of them; both are empty of a rate or a count.
type figureRow struct {
	key, label, latency string
	statistic           int
}

// figureRows are all figures, in the order of the table.
func figureRows() []figureRow {
	rows := []figureRow{
		{"successful_requests", "successful requests", "", 0},
		{"failed_requests", "failed requests", "", 0},
		{"duration_s", "duration (s)", "", 0},
		{"request_throughput", "requests/s", "", 0},
		{"output_token_throughput", "output tokens/s", "", 0},
		{"total_token_throughput", "all tokens/s", "", 0},
		{"request_goodput", "goodput (requests/s)", "", 0},
		{"concurrency", "in flight, mean", "", 0},
		{"input_tokens_per_request", "input tokens a request", "", 0},
		{"output_tokens_per_request", "output tokens a request", "", 0},
	}
	for _, l := range latencies {
		for i, s := range bootstrapped {
			word := cmp.Or(map[string]string{"mean": "mean", "median": "median"}[s.key], "P"+s.key[1:])
			rows = append(rows, figureRow{s.key + "_" + l.name + "_ms", word + " " + l.label + " (ms)", l.name, i})
		}
	}
	return rows
}

// latencies are those that requests have.
var latencies = []struct{ name, label string }{{"ttft", "TTFT"}, {"tpot", "TPOT"}, {"itl", "ITL"}, {"e2el", "E2EL"}}

// Limits below which there is no interval; the package comment says why.
const (
	leastRequests = 20
	leastAbove    = 5
)

// A latencyDistribution is a latency's values in each result.
type latencyDistribution struct {
	label  string
	curves []document.Distribution
}

// compare compares results with their first. Values are sorted once for each result and latency,
// and drawn from for each pair.
func (c *comparison) compare(name string, results []Run) group {
	g := group{Name: name, Differs: differs(results)}
	pools := make([]map[string]*pool, len(results))
	for i := range results {
		r := &results[i]
		pools[i] = map[string]*pool{}
		for _, l := range latencies {
			if values := r.Values(l.name); values != nil {
				pools[i][l.name] = newPool(values)
			}
		}
		g.Results = append(g.Results, side{letter(i), r.Source, r.Tool, len(r.Requests), r.Setup, r.Doubts})
	}
	found := map[string][][][]float64{} // intervals by latency, of each result, of each statistic
	for _, l := range latencies {
		found[l.name] = make([][][]float64, len(results))
		d := latencyDistribution{label: l.label}
		for i := range results {
			a, b := pools[0][l.name], pools[i][l.name]
			if b != nil {
				d.curves = append(d.curves, document.Distribution{Name: letter(i), Values: b.sorted})
			}
			if i > 0 && a != nil && b != nil {
				found[l.name][i] = intervals(a, b, paired(&results[0], &results[i]), c.Confidence, draws(c.Draws, a, b), c.Seed)
			}
		}
		if len(d.curves) > 0 {
			g.distributions = append(g.distributions, d)
		}
	}
	for _, f := range figureRows() {
		row := row{Figure: f.key, Label: f.label}
		some := false
		for i := range results {
			v, ok := results[i].Figures[f.key]
			if !ok {
				row.Values = append(row.Values, nil)
				continue
			}
			some = true
			row.Values = append(row.Values, &v)
		}
		if !some {
			continue
		}
		for i := 1; i < len(results); i++ {
			d := difference{}
			if a, b := row.Values[0], row.Values[i]; a != nil && b != nil && *a != 0 {
				percent := 100 * (*b / *a - 1)
				d.Percent = &percent
				d.judge(f, pools[0][f.latency], pools[i][f.latency], *a, *b, found[f.latency], i)
				d.Paired = d.Low != nil && paired(&results[0], &results[i])
			}
			row.Against = append(row.Against, d)
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}

// oneValue is why a rate or a count has no interval.
const oneValue = "one value a run"

// judge gives a difference its interval, or says why it has none. The figure itself is the
// file's, as its tool computed it; the interval is of the requests that the file lists, and is
// shown only where these give the figure again. They do not where a tool's figure is of other
// requests than its lists.
func (d *difference) judge(f figureRow, a, b *pool, of, against float64, found [][][]float64, i int) {
	switch {
	case f.latency == "":
		d.Why = oneValue
		return
	case a == nil || b == nil:
		switch {
		case b != nil:
			d.Why = letter(0) + " lists no values by request"
		case a != nil:
			d.Why = letter(i) + " lists no values by request"
		default:
			d.Why = "neither lists values by request"
		}
		return
	}
	for _, p := range []*pool{a, b} {
		n := p.requests()
		above := float64(len(p.sorted)) * (1 - bootstrapped[f.statistic].p/100)
		if n < leastRequests || f.statistic > 0 && above < leastAbove {
			if d.Why = fmt.Sprintf("%d requests are too few", n); n == 1 {
				d.Why = "1 request is too few"
			}
			return
		}
	}
	for _, s := range []struct {
		p *pool
		v float64
	}{{a, of}, {b, against}} {
		if own := s.p.whole()[f.statistic]; math.Abs(own-s.v) > agree*s.v+1e-3 {
			d.Why = "the requests listed do not give the figure"
			return
		}
	}
	interval := found[i][f.statistic]
	if interval == nil {
		d.Why = "the first is 0 in some draws"
		return
	}
	d.Low, d.High = &interval[0], &interval[1]
	switch {
	case *d.Low > 0:
		d.Verdict = slower
	case *d.High < 0:
		d.Verdict = faster
	default:
		d.Verdict = noDifference
	}
}

// agree is how well the requests of a file must give its figure: to a thousandth, which
// allows for another kind of percentile (a histogram's) and for rounding.
const agree = 1e-3

// letter names a result in tables.
func letter(i int) string {
	if i < 26 {
		return string(rune('A' + i))
	}
	return fmt.Sprintf("R%d", i+1)
}

// paired is whether two runs had the same lengths, request by request.
func paired(a, b *Run) bool {
	promptA, outputA, okA := a.Lengths()
	promptB, outputB, okB := b.Lengths()
	return okA && okB && slices.Equal(promptA, promptB) && slices.Equal(outputA, outputB)
}

// NewComparison compares results: those of each file or folder, in the order in which they were given.
// Where every one has several, such as the rows of a table, those of one key are compared with
// one another, as far as all have them; else all are compared with the first.
func NewComparison(sources [][]Run, confidence float64, draws int, seed uint64) (*comparison, error) {
	c := &comparison{Confidence: confidence, Draws: draws, Seed: seed}
	if keys := common(sources); len(keys) > 0 {
		for _, key := range keys {
			var group []Run
			for _, s := range sources {
				group = append(group, s[find(s, key)])
			}
			c.Groups = append(c.Groups, c.compare(key, group))
		}
		for _, s := range sources {
			for _, r := range s {
				if !slices.Contains(keys, r.Key) {
					c.Alone = append(c.Alone, r.Source)
				}
			}
		}
		return c, nil
	}
	results := slices.Concat(sources...)
	if len(results) < 2 {
		return nil, fmt.Errorf("%d result: name two or more to compare", len(results))
	}
	c.Groups = []group{c.compare("", results)}
	return c, nil
}

// find is where a list has the only result of a key; -1 if it has none, or several.
func find(results []Run, key string) int {
	is := func(r Run) bool { return r.Key == key }
	first := slices.IndexFunc(results, is)
	if first < 0 || slices.ContainsFunc(results[first+1:], is) {
		return -1
	}
	return first
}

// common are the keys that all sources have once, in the first's order, if there are several
// sources and each has several results.
func common(sources [][]Run) (keys []string) {
	if len(sources) < 2 || slices.ContainsFunc(sources, func(s []Run) bool { return len(s) < 2 }) {
		return nil
	}
	for _, r := range sources[0] {
		lacks := func(s []Run) bool { return find(s, r.Key) < 0 }
		if r.Key != "" && !slices.ContainsFunc(sources, lacks) {
			keys = append(keys, r.Key)
		}
	}
	return keys
}
