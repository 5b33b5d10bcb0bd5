// Package result reads the results of serving benchmarks from their files and sets them side by side, whoever measured:
// kvferry bench, mooncake and simulate, vLLM's `vllm bench serve` and SGLang's bench_serving.
//
//	folder, file or text ──Read──▶ []Run: what was run, figures, and requests where they are listed
//
// Names are kvferry's for all of them (those of summary.json), so that what reads results
// (Compare, package matrix) knows one set of names. Definitions are not made alike:
// each Run says by Tool whose they are, and SGLang's differ from vLLM's and ours (see package
// report, which writes these files).
//
// Whatever comes from outside is read with care. Python writes Infinity and NaN, which JSON
// does not have. Keys that are missing are left out, and never taken for 0. Lists of requests
// must be of one length, times finite and not negative; figures that are not finite are left
// out. An error is a FormatError, and names the file, which of its results, and the key.
//
// Units: times of requests in seconds, figures as their names end (_ms: milliseconds, _s:
// seconds), rates a second. A Run belongs to who has read it.
package result
