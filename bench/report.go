package bench

import (
	"io"

	"kvferry/bench/client"
	"kvferry/bench/report"
)

// WriteReport prints a cell as vLLM's benchmark_serving printed the published
// tables (November 2024), to the character: 50-wide headings, labels padded to
// 40, numbers padded to 10. Failed requests, which that version hid, are named
// when there are any, where later versions name them, and so are those that were in
// flight when the run was interrupted.
func WriteReport(w io.Writer, m *client.Metrics) error {
	c, f := &m.Counts, &m.Figures
	var l report.Layout
	l.Heading(" Serving Benchmark Result ", "=")
	l.Count("Successful requests:", c.Successful)
	if m.Failed > 0 {
		l.Count("Failed requests:", m.Failed)
	}
	if m.Interrupted > 0 {
		l.Count("Interrupted requests:", m.Interrupted)
	}
	l.Number("Benchmark duration (s):", f.DurationS)
	l.Count("Total input tokens:", c.InputTokens)
	l.Count("Total generated tokens:", c.GeneratedTokens)
	l.Number("Request throughput (req/s):", f.RequestThroughput)
	l.Number("Output token throughput (tok/s):", f.OutputThroughput)
	l.Number("Total Token throughput (tok/s):", f.TotalThroughput)
	for i, title := range []string{"Time to First Token", "Time per Output Token (excl. 1st token)", "Inter-token Latency"} {
		l.Heading(title, "-")
		for j, stat := range []string{"Mean", "Median", "P99"} {
			l.Number(stat+" "+latencies[i].name+" (ms):", latencies[i].of(f)[j])
		}
	}
	l.Heading("", "=")
	_, err := io.WriteString(w, l.String())
	return err
}
