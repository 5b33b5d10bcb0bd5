// Package sglang sets runs that SGLang's users published beside the same runs of modelled
// nodes: kvferry reproduce sglang.
//
// A workload is a record that was published ("deepseek-v3"), a setting one of its runs
// ("flashinfer/256x32": that attention backend, 256 requests, 32 at a time). runs.json has of
// each run what was asked and every figure of its report, as sglang.bench_serving printed it.
//
//	runs.json ──▶ Published ──▶ load.Spec ──▶ virtual time ──▶ records ──▶ Figures ──▶ relative errors
//	                  └──▶ profile of its server                  of each request
//
// The load is drawn as sglang.bench_serving draws it, the server is a profile (package engine)
// that ships with the program, and the figures are computed from records by package report, by
// SGLang's formulas. A profile is fitted to the record that it stands beside, so the errors are
// in sample.
//
// Units: figures whose name ends in _ms are milliseconds, in _s seconds; rates are a second.
package sglang
