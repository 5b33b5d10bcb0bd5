// Package report says what a run of a serving benchmark came to: in the layouts of the
// clients that engineers know, vLLM's `vllm bench serve` and SGLang's bench_serving, and in
// its own.
//
//	[]client.Record + Setup ──▶ Run ──┬─▶ VLLM     text, JSON (one object, or a line a run)
//	                                  ├─▶ SGLang   text, a line of JSON
//	                                  └─▶ Summary  summary.json, table.md, report.html
//
// A [Run] is a list of records and a description. Every figure is a function of these, so a
// report can be made again from results.jsonl.
//
// The two clients do not measure the same. Both begin at sending, but vLLM's first token is
// the first chunk with choices, SGLang's the first with text; vLLM's request ends at the last
// chunk with choices, SGLang's at the last line that is not blank, usage and [DONE] too;
// SGLang counts a stream without a token as a success, and where the server says so little,
// as many tokens as were asked for. The type seen is one request as one of them sees it;
// vllm.go and sglang.go say where each differs, and follow vLLM 0.32.0 and SGLang 0.5.23 to
// the character (testdata has what these printed). Our own figures ([Metrics]) have vLLM's
// definitions, which those of kvferry reproduce mooncake have too.
//
// Units: times of records are seconds since the run's start; a figure whose name ends in MS
// or _ms is milliseconds; rates are a second. Percentiles are numpy.percentile's linear kind.
//
// Ownership: a Run belongs to its maker. Nothing here keeps or changes it.
package report
