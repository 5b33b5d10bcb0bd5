package observe

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"kvferry/bench/document"
)

// A Scrape reads pages before a run and after it.
type Scrape struct {
	pages  []MetricsPage
	http   *http.Client
	before []*Snapshot // nil of one that could not be read
	faults []error     // of these
	nics   nicTraffic
}

// A MetricsPage of metrics is asked for with a header, for servers that want a key; it may be nil.
type MetricsPage struct {
	URL    string
	Header http.Header
}

// StartScrape reads the pages, of which none need be there, and this machine's NICs.
func StartScrape(ctx context.Context, c *http.Client, pages []MetricsPage) *Scrape {
	r := &Scrape{pages: pages, http: c, nics: ReadNICs()}
	for _, p := range pages {
		s, err := FetchMetrics(ctx, c, p.URL, p.Header)
		r.before, r.faults = append(r.before, s), append(r.faults, err)
	}
	return r
}

// patience is how long After waits for a server to count the last answers, and pause is
// between two looks at it. SGLang counts a request up to a second after its end.
const (
	patience = 2 * time.Second
	pause    = 100 * time.Millisecond
)

// After reads the pages again. Where they count fewer requests than were answered, it looks
// again for two seconds. ctx must not be that of a run which was interrupted: its report is
// wanted too.
func (r *Scrape) After(ctx context.Context, c ClientFigures) ServerReport {
	c.NICs = ReadNICs().Since(r.nics)
	report := ServerReport{Client: c}
	report.Server, report.Missing = r.since(ctx)
	for deadline := time.Now().Add(patience); len(report.Server) > 0 && fewerRequests(report.Server[0], c) != "" && ctx.Err() == nil && time.Now().Before(deadline); {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		report.Server, report.Missing = r.since(ctx)
	}
	var all ServerFigures
	if len(report.Server) > 0 {
		all = report.Server[0]
	}
	report.Words = JudgeServer(all, c) // answers say something without a page too
	return report
}

// since returns what the servers counted after StartScrape, page by page. If several pages are of one kind of server,
// the figures of all together come first.
func (r *Scrape) since(ctx context.Context) (list []ServerFigures, missing []string) {
	var before, after []*Snapshot
	for i, p := range r.pages {
		if r.before[i] == nil {
			missing = append(missing, r.faults[i].Error())
			continue
		}
		s, err := FetchMetrics(ctx, r.http, p.URL, p.Header)
		if err != nil {
			missing = append(missing, err.Error())
			continue
		}
		f := s.Since(r.before[i])
		if f.Server == "" {
			missing = append(missing, fmt.Sprintf("metrics: %s has none of a server that is known here", p.URL))
			continue
		}
		if list = append(list, f); f.Server == list[0].Server {
			before, after = append(before, r.before[i]), append(after, s)
		}
	}
	if len(after) > 1 {
		list = append([]ServerFigures{together(before, after)}, list...)
	}
	return list, missing
}

// A ServerReport is the two accounts of a run.
type ServerReport struct {
	Client ClientFigures `json:"client"`
	// Server has the figures of each page. If several pages are of one kind of engine, the first are the
	// figures of all together, which are compared with the client's.
	Server  []ServerFigures `json:"server"`
	Missing []string        `json:"missing,omitempty"` // why there is no page
	Words   []word          `json:"words,omitempty"`   // what cannot be true of both
}

// latencyRows are the table's latencies, with the client's mean where it has one.
var latencyRows = []struct {
	key, name string
	client    func(ClientFigures) float64
}{
	{ttft, "TTFT", func(c ClientFigures) float64 { return c.TTFTMS }},
	{itl, "ITL", func(c ClientFigures) float64 { return c.ITLMS }},
	{tpot, "TPOT", func(c ClientFigures) float64 { return c.TPOTMS }},
	{e2EL, "E2EL", func(c ClientFigures) float64 { return c.E2ELMS }},
	{queue, "Queue", nil},
	{prefill, "Prefill", nil},
	{decode, "Decode", nil},
}

// countRows are its counts.
var countRows = []struct {
	key, name string
	client    func(ClientFigures) float64
}{
	{requests, "Requests", func(c ClientFigures) float64 { return float64(c.Sent) }},
	{inputTokens, "Input tokens", func(c ClientFigures) float64 { return float64(c.InputTokens) }},
	{computedTokens, "Prompt tokens computed", nil},
	{outputTokens, "Output tokens", func(c ClientFigures) float64 { return float64(c.OutputTokens) }},
	{preemptions, "Preemptions", nil},
	{prefixQueries, "Prefix cache: tokens asked", nil},
	{prefixHits, "Prefix cache: tokens found", nil},
	{remoteQueries, "Other nodes' KV: tokens asked", nil},
	{remoteHits, "Other nodes' KV: tokens found", nil},
	{kvTransfers, "KV transfers", nil},
	{kvFailures, "KV transfers failed", nil},
	{kvSeconds, "KV transfer time (s)", nil},
	{computeSeconds, "Prefill time (s)", nil},
	{generateSeconds, "Decode time (s)", nil},
}

// timed are the rows of what answers say of their time.
func (r *ServerReport) timed() (t document.Table, ok bool) {
	c := &r.Client
	t = document.Table{Title: fmt.Sprintf("Timings in %d answers", c.Timed.Answers), Head: []string{"", "client", "server"}, Left: 1}
	for _, row := range []struct {
		name         string
		ours, theirs float64
	}{
		{"Mean time of a request (ms)", c.WholeMS, c.Timed.BusyMS},
		{"Mean Prefill (ms)", 0, c.Timed.PrefillMS},
		{"Mean Decode (ms)", 0, c.Timed.DecodeMS},
	} {
		if row.theirs > 0 {
			ours := ""
			if row.ours > 0 {
				ours = fmt.Sprintf("%.2f", row.ours)
			}
			t.Rows = append(t.Rows, []string{row.name, ours, fmt.Sprintf("%.2f", row.theirs)})
		}
	}
	return t, len(t.Rows) > 0
}

// Tables are a table a page, the server's figures beside the client's, and one of what
// answers say of their time.
func (r *ServerReport) Tables() (tables []document.Table) {
	if t, ok := r.timed(); ok {
		tables = append(tables, t)
	}
	for i, f := range r.Server {
		t := document.Table{Title: fmt.Sprintf("%s's own figures (%s)", f.Server, f.URL), Head: []string{"", "client", "server"}, Left: 1}
		row := func(name, ours, theirs string) { t.Rows = append(t.Rows, []string{name, ours, theirs}) }
		ours := func(of func(ClientFigures) float64, format string) string {
			if of == nil || i > 0 {
				return ""
			}
			return fmt.Sprintf(format, of(r.Client))
		}
		for _, c := range countRows {
			if v, ok := f.Counts[c.key]; ok {
				row(c.name, ours(c.client, "%.0f"), fmt.Sprintf("%.6g", v))
			}
		}
		if rate, ok := f.HitRate(); ok {
			wanted := ""
			if w := r.Client.WantedHitRate; w > 0 {
				wanted = fmt.Sprintf("%.1f wanted", 100*w)
			}
			row("Prefix cache: hit rate (%)", wanted, fmt.Sprintf("%.1f", 100*rate))
		}
		if kv, ok := f.Counts[kvBytes]; ok {
			mine := ""
			if r.Client.KVBytes > 0 {
				mine = size(float64(r.Client.KVBytes))
			}
			row("KV moved", mine, size(kv))
			if len(r.Client.NICs) > 0 && i == 0 {
				row("Carried by this machine's NICs", size(float64(r.Client.NICs.Most())), "")
			}
		}
		for _, l := range latencyRows {
			h := f.Latencies[l.key]
			if h.Values == 0 {
				continue
			}
			row("Mean "+l.name+" (ms)", ours(l.client, "%.2f"), fmt.Sprintf("%.2f", h.MeanMS))
			row("P99 "+l.name+" (ms), in a bucket", "", bucket(h.P99))
		}
		tables = append(tables, t)
	}
	return tables
}

// bucket is what is sure of a quantile.
func bucket(q quantile) string {
	if q.ToMS == 0 {
		return fmt.Sprintf("over %.4g", q.FromMS)
	}
	return fmt.Sprintf("%.4g to %.4g", q.FromMS, q.ToMS)
}
