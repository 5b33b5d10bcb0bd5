// Package bench measures a serving cluster through its OpenAI HTTP API and sets
// the result beside what Mooncake published for A10 GPUs.
//
// A row is a workload ("256/q8": prompts of about 256 tokens, 8 requests a
// second), a setting is what serves it ("nondisagg", "tcp", "layerwise"), a
// cell is one run of a row under a setting. Run goes through the cells: start a
// cluster, wait until it serves, send one request that is not counted, replay
// the published arrivals, write down what happened, stop the cluster.
//
// The client is package client's, open-loop. Metrics follow vLLM's benchmark_serving
// of November 2024, which made the published tables; its report layout is kept to the
// character.
//
// Raw records are the result. Records go to results.jsonl, one a request when it
// ends, so that whatever ends the run leaves all that had ended before; and every
// figure, table and plot is a function of them and of the published rows.
// Times in records are seconds since the run's start, rounded to the
// microsecond; durations in figures are milliseconds where the name ends in MS.
//
// The package knows a real cluster as a URL. What starts one is a Starter that the
// command provides, and what the numbers mean (which part was measured, which
// part modelled) is what the cluster says of itself in its Link. A server that
// somebody else started is asked (package server), and is unknown if it does not say.
//
// A machine that does something else at the same time disturbs all of this. Each
// measured row has its machine.Disturbance, and is measured again, and marked, above a
// threshold.
//
// In virtual time (package sim) the same cells are computed instead, of the same load:
// virtual.go makes records of the same kind, marked so in every row, and the tables set
// the two clocks side by side.
package bench
