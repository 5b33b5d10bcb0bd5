// Package serve is kvferry bench: any load against any server that speaks OpenAI's API or
// SGLang's, against a cluster that is started for it, or against the model of one in
// virtual time; and what came of it in every report that engineers know.
//
//	load.Spec ──▶ Target ──▶ []client.Record ──▶ report.Run ──▶ files, text
//	              │
//	              ├─ Server   answers at a URL (package bench/client asks it)
//	              ├─ Own      a cluster of child processes, then as Server
//	              └─ Model    the simulator (package sim), which computes the answers' times
//
// A [Target] is who answers. It says what it is ([Facts]), and then answers any number of
// loads, one after another: warm-up requests, the load itself, or the points of a rate
// search. Records have the same form from every target, and all figures are functions of
// them. So a command line runs on each, and [Config.Targets] may name two, whose results are
// set side by side.
//
// Times in records are seconds since the run's start. The caller owns the targets' makers;
// Run closes the targets that it opens.
package serve
