package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/document"
)

// latencyNames are the rows of the table of latencies, in its order.
var latencyNames = []struct{ name, label string }{
	{nameTTFT, "TTFT"},
	{nameTPOT, "TPOT"},
	{nameITL, "ITL"},
	{nameTTFC, "Time to first chunk"},
	{nameITLToken, "ITL per token"},
	{nameE2EL, "E2EL"},
	{nameTTFTDue, "TTFT from due time"},
	{nameE2ELDue, "E2EL from due time"},
	{nameQueue, "waited for room"},
	{nameLate, "client late"},
}

// latencyTable is every latency in milliseconds.
func (m *Metrics) latencyTable() document.Table {
	t := document.Table{Title: "Latency (ms)", Left: 1, Head: []string{"", "mean", "median", "P90", "P95", "P99", "max", "std", "values"}}
	for _, l := range latencyNames {
		s, ok := m.Latencies[l.name]
		if !ok {
			continue
		}
		row := []string{l.label}
		for _, v := range []float64{s.Mean, s.Median, s.P90, s.P95, s.P99, s.Max, s.Std} {
			row = append(row, document.Fixed(v, 2))
		}
		t.Add(append(row, strconv.Itoa(s.Values))...)
	}
	return t
}

// A column is a figure with its name above it.
type column struct{ head, value string }

// oneRow is a table of figures that are one of each.
func oneRow(title string, columns []column) document.Table {
	t := document.Table{Title: title}
	var row []string
	for _, c := range columns {
		t.Head, row = append(t.Head, c.head), append(row, c.value)
	}
	t.Add(row...)
	return t
}

// rateTable is what the run came to a second.
func (m *Metrics) rateTable() document.Table {
	columns := []column{
		{"duration (s)", document.Fixed(m.DurationS, 2)},
		{"requests/s", document.Fixed(m.RequestThroughput, 2)},
		{"input tokens/s", document.Fixed(per(float64(m.InputTokens), m.DurationS), 1)},
		{"output tokens/s", document.Fixed(m.OutputThroughput, 1)},
		{"most output tokens in 1 s", document.Fixed(m.PeakOutput, 0)},
		{"in flight, mean", document.Fixed(m.Concurrency, 2)},
		{"in flight, most", strconv.Itoa(m.MaxConcurrency)},
	}
	if m.Goodput != nil {
		columns = append(columns, column{"goodput (requests/s)", document.Fixed(*m.Goodput, 2)}, column{"kept the SLO (%)", document.Fixed(100**m.Attained, 1)})
	}
	return oneRow("Throughput", columns)
}

// countTable is how many requests and tokens there were, who counted and what ended them.
func (m *Metrics) countTable() document.Table {
	columns := []column{{"successful", strconv.Itoa(m.Successful)}, {"failed", strconv.Itoa(m.Failed)}}
	add := func(head string, n int) {
		if n > 0 {
			columns = append(columns, column{head, strconv.Itoa(n)})
		}
	}
	add("interrupted", m.Interrupted)
	add("never sent", m.Skipped)
	columns = append(columns, column{"input tokens", strconv.Itoa(m.InputTokens)}, column{"output tokens", strconv.Itoa(m.GeneratedTokens)}, column{"chunks", strconv.Itoa(m.Chunks)})
	add("cached input tokens", m.CachedTokens)
	if n := m.Migrations; n > 0 {
		columns = append(columns, column{"went on elsewhere", strconv.FormatInt(n, 10)},
			column{"MB moved for that", document.Fixed(float64(m.MigratedBytes)/1e6, 1)}, column{"mean pause (ms)", document.Fixed(float64(m.MigrationPauseUS)/1e3/float64(n), 2)})
	}
	for _, by := range slices.Sorted(maps.Keys(m.CountedBy)) {
		add("counted by "+by, m.CountedBy[by])
	}
	for _, why := range slices.Sorted(maps.Keys(m.FinishReasons)) {
		add("ended by "+why, m.FinishReasons[why])
	}
	return oneRow("Requests", columns)
}

// slowest is how many requests the list of the slowest has: a screen of them, to look for what they
// have in common.
const slowest = 15

// slowestTable is the requests that took longest from their due time, with where their time
// went: in the client, to the first token, to the last; and by the server's own account where
// it gives one.
func (r *Run) slowestTable() document.Table {
	records := r.slowest()
	t := document.Table{Title: "The slowest requests (ms)", Left: 2, Head: []string{
		"request", "id", "due at s", "prompt", "output", "total", "waited for room", "client late", "TTFT", "decoding", "longest gap",
	}}
	var shown []int // stages that took time in one of them
	for i, name := range client.StageNames {
		if slices.ContainsFunc(records, func(rec *client.Record) bool { return rec.Breakdown != nil && stages(rec.Breakdown)[i] > 0 }) {
			shown, t.Head = append(shown, i), append(t.Head, name)
		}
	}
	for _, rec := range records {
		gap := 0.0
		for g := range rec.ITL() {
			gap = max(gap, g)
		}
		ms := func(seconds float64) string { return document.Fixed(seconds*1e3, 1) }
		row := []string{
			strconv.Itoa(rec.Index), shortened(rec.RequestID, 24), document.Fixed(rec.Intended, 2), strconv.Itoa(rec.Input()), strconv.Itoa(rec.Output()),
			ms(rec.E2EL() + rec.Sent - rec.Intended), ms(max(rec.Room-rec.Intended, 0)), ms(rec.Late()), ms(rec.TTFT()), ms(rec.E2EL() - rec.TTFT()), ms(gap),
		}
		for _, i := range shown {
			row = append(row, document.Known(rec.Breakdown, func(b client.Breakdown) string { return document.Fixed(stages(&b)[i], 1) }))
		}
		t.Add(row...)
	}
	return t
}

// slowest are the requests that took longest, from the slowest on.
func (r *Run) slowest() []*client.Record {
	var list []*client.Record
	for i := range r.Records {
		if rec := &r.Records[i]; rec.Failure() == "" {
			list = append(list, rec)
		}
	}
	slices.SortStableFunc(list, func(a, b *client.Record) int {
		return cmp.Compare(b.E2EL()+b.Sent-b.Intended, a.E2EL()+a.Sent-a.Intended)
	})
	return list[:min(slowest, len(list))]
}

// stages are the parts of a request's life by the server's account, in milliseconds, in the
// order of client.StageNames.
func stages(b *client.Breakdown) (ms [len(client.StageNames)]float64) {
	for i, us := range []client.Count{b.ProxyUS, b.QueueUS, b.PrefillUS, b.PostUS, b.WireUS, b.LandUS, b.FirstDecodeUS} {
		ms[i] = us.MS()
	}
	return ms
}

// shortened is a text's first n letters, the last of which says that there were more.
func shortened(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// stageTable breaks down the mean request by the server's account. It has no rows if the server gives none.
func (m *Metrics) stageTable() document.Table {
	if m.Stages == nil {
		return document.Table{}
	}
	var columns []column
	for i, name := range client.StageNames {
		columns = append(columns, column{name, document.Fixed(*m.Stages.Parts()[i], 2)})
	}
	return oneRow("Where the mean request's time went, by the server (ms)", columns)
}

// machineTable lists what else the client's machine did. It has no rows if the machine was not watched.
func (r *Run) machineTable() document.Table {
	d := r.Disturbance
	if d == nil {
		return document.Table{}
	}
	columns := []column{
		{"timers late, mean (ms)", document.Fixed(d.LateMeanMS, 2)},
		{"P99", document.Fixed(d.LateP99MS, 2)},
		{"max", document.Fixed(d.LateMaxMS, 2)},
		{"over 5 ms late (%)", document.Fixed(d.LateTimersPct, 2)},
	}
	if c := d.CPU; c != nil {
		columns = append(columns, column{"CPUs", strconv.Itoa(c.CPUs)}, column{"used by kvferry (%)", document.Fixed(c.OwnPct, 1)},
			column{"by others (%)", document.Fixed(c.OthersPct, 1)}, column{"stolen (%)", document.Fixed(c.StealPct, 1)})
	}
	verdict := "no"
	if r.disturbed() {
		verdict = "yes"
	}
	return oneRow("The client's machine meanwhile", append(columns, column{"disturbed", verdict}))
}

// groupTables are the figures by adapter and by server, where there are several.
func (r *Run) groupTables() []document.Table {
	var tables []document.Table
	for _, g := range []struct {
		title, head string
		of          func(*client.Record) string
	}{
		{"By adapter (ms)", "adapter", func(rec *client.Record) string { return rec.Adapter }},
		{"By server (ms)", "server", func(rec *client.Record) string { return rec.Worker }},
	} {
		by := map[string]*Run{}
		for i := range r.Records {
			rec := r.Records[i]
			name := cmp.Or(g.of(&rec), "-")
			if by[name] == nil {
				by[name] = &Run{Setup: r.Setup, Duration: r.Duration}
			}
			by[name].Records = append(by[name].Records, rec)
		}
		if len(by) < 2 {
			continue
		}
		t := document.Table{Title: g.title, Left: 1, Head: []string{g.head, "requests", "failed", "output tokens", "mean TTFT", "P99 TTFT", "mean TPOT", "mean E2EL", "P99 E2EL"}}
		for _, name := range slices.Sorted(maps.Keys(by)) {
			m := by[name].Metrics()
			ttft, e2el := m.Latencies[nameTTFT], m.Latencies[nameE2EL]
			t.Add(
				name, strconv.Itoa(len(by[name].Records)), strconv.Itoa(m.Failed), strconv.Itoa(m.GeneratedTokens),
				document.Fixed(ttft.Mean, 1), document.Fixed(ttft.P99, 1), document.Fixed(m.Latencies[nameTPOT].Mean, 2), document.Fixed(e2el.Mean, 1), document.Fixed(e2el.P99, 1),
			)
		}
		tables = append(tables, t)
	}
	return tables
}

// failureTable lists the reasons why requests failed.
func (r *Run) failureTable() document.Table {
	t := document.Table{Title: "Failed requests", Left: 1, Head: []string{"reason", "requests", "first"}}
	for _, f := range r.failures() {
		t.Add(shortened(f.reason, 120), strconv.Itoa(f.count), strconv.Itoa(f.first))
	}
	return t
}

// setupTable is what was run.
func (r *Run) setupTable() document.Table {
	t := document.Table{Title: "What was run", Left: 2, Head: []string{"", ""}}
	add := func(name, value string) {
		if value != "" {
			t.Add(name, value)
		}
	}
	add("server", r.asked())
	add("servers", strings.Join(r.Worker, ", "))
	add("cluster", r.Cluster)
	add("backend", r.Backend)
	add("model", r.Model)
	add("tokenizer", cmp.Or(r.Tokenizer, "none: the server counts"))
	add("data set", strings.TrimSpace(r.Dataset+" "+r.DatasetPath))
	add("requests", strconv.Itoa(r.NumPrompts))
	add("arrivals", r.arrivals())
	add("concurrency", map[bool]string{true: "at most " + strconv.Itoa(r.MaxConcurrency), false: "not bounded"}[r.bounded()])
	add("SLO", r.sloText())
	add("seed", strconv.FormatUint(r.Seed, 10))
	add("adapters", strings.TrimSpace(strings.Join(r.LoRA, ", ")+" "+r.LoRAPick))
	add("as", r.Compat)
	add("clock", r.Clock)
	add("command", strings.Join(r.Command, " "))
	return t
}

// asked is the URL of the requests; empty where there were several servers. Endpoint is the whole
// path, and BaseURL may have the beginning of it: /v1.
func (r *Run) asked() string {
	u, err := url.Parse(r.BaseURL)
	if err != nil || r.BaseURL == "" {
		return r.Endpoint
	}
	u.Path = r.Endpoint
	return u.String()
}

// arrivals say when requests are sent.
func (r *Run) arrivals() string {
	switch {
	case r.TraceTimestamps:
		return "when the trace says"
	case r.RampUp != nil:
		return fmt.Sprintf("from %d to %d a second, %s", r.RampUp.Start, r.RampUp.End, r.RampUp.Strategy)
	case math.IsInf(r.rate(), 1):
		return "all at once"
	}
	return fmt.Sprintf("%g a second, burstiness %g", r.RequestRate, r.Burstiness)
}

func (r *Run) sloText() string { return r.Goodput.Text("up to", ", ") }
