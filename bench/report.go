package bench

import (
	"fmt"
	"io"
	"strings"

	"kvferry/bench/client"
)

// WriteReport prints a cell as vLLM's benchmark_serving printed the published
// tables (November 2024), to the character: 50-wide headings, labels padded to
// 40, numbers padded to 10. Failed requests, which that version hid, are named
// when there are any, where later versions name them, and so are those that were in
// flight when the run was interrupted.
func WriteReport(w io.Writer, m *client.Metrics) error {
	c, f := &m.Counts, &m.Figures
	var b strings.Builder
	heading := func(title string, fill string) {
		left := (50 - len(title)) / 2
		b.WriteString(strings.Repeat(fill, left) + title + strings.Repeat(fill, 50-len(title)-left) + "\n")
	}
	count := func(label string, n int) { fmt.Fprintf(&b, "%-40s %-10d\n", label, n) }
	number := func(label string, v float64) { fmt.Fprintf(&b, "%-40s %-10.2f\n", label, v) }

	heading(" Serving Benchmark Result ", "=")
	count("Successful requests:", c.Successful)
	if m.Failed > 0 {
		count("Failed requests:", m.Failed)
	}
	if m.Interrupted > 0 {
		count("Interrupted requests:", m.Interrupted)
	}
	number("Benchmark duration (s):", f.DurationS)
	count("Total input tokens:", c.InputTokens)
	count("Total generated tokens:", c.GeneratedTokens)
	number("Request throughput (req/s):", f.RequestThroughput)
	number("Output token throughput (tok/s):", f.OutputThroughput)
	number("Total Token throughput (tok/s):", f.TotalThroughput)
	for _, group := range []struct {
		title, name       string
		mean, median, p99 float64
	}{
		{"Time to First Token", "TTFT", f.MeanTTFTMS, f.MedianTTFTMS, f.P99TTFTMS},
		{"Time per Output Token (excl. 1st token)", "TPOT", f.MeanTPOTMS, f.MedianTPOTMS, f.P99TPOTMS},
		{"Inter-token Latency", "ITL", f.MeanITLMS, f.MedianITLMS, f.P99ITLMS},
	} {
		heading(group.title, "-")
		number("Mean "+group.name+" (ms):", group.mean)
		number("Median "+group.name+" (ms):", group.median)
		number("P99 "+group.name+" (ms):", group.p99)
	}
	heading("", "=")
	_, err := io.WriteString(w, b.String())
	return err
}
