// Package compare sets results of serving benchmarks side by side, whoever measured them:
// kvbench, vLLM or SGLang (package result reads their files). The first result is what the
// others are compared with.
//
//	files ──result.Read──▶ []result.Run ──▶ Comparison ──▶ text, compare.json, table.md, report.html
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
package compare
