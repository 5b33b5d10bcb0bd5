// Package client asks any server of completions what a load says (package load), and
// measures the answers: times of every token, TTFT, TPOT, ITL and E2EL. vLLM, SGLang,
// llama.cpp, a gateway, kvferry: which wire format it is says [Config].Backend, and what the
// server takes of it and tells is found by [Client.Probe] before a run, so that a run sends
// nothing that is refused. It needs the standard library, the precise timers of package clock,
// and package wire for many streams; no other library.
//
//	Ready ──▶ Probe: Accepts ──▶ Run
//	load ──▶ draw, encode (64 ahead) ──▶ dispatch.Queue: due, room, what it follows ──▶ POST, read the answer ──▶ Record ──▶ Meter
//
// In an open loop every request is sent at its intended time by a goroutine of its own,
// however slow the server is, and both the intended and the real sending time are
// recorded, so that nothing can hide in a client queue. With load.Load.InFlight the
// client waits for room as well, and says when there was some. So the same client is the
// open loop, the closed loop and vLLM's --max-concurrency. Nothing is sent twice.
//
// Times of tokens are those at which their bytes were read. How long the kernel had had them
// by then is in the record too (ReadDelay): a client that is too busy to read says so.
//
// Tokens are counted by the server's usage, else by a tokenizer, else a chunk is taken for a
// token; records say by whom. What goes wrong has its kind (Fault), what is unusual is noted
// (Notes), and [Record.VLLMCounts] and [Record.SGLangCounts] say whether those clients would
// have counted the request as successful.
//
// The client keeps nothing of a request that is over: its [Record] goes to whoever runs
// the load. A [Meter] takes records and has the figures, by the formulas of vLLM's
// benchmark_serving of November 2024; they are functions of the records alone.
//
// Times in records are seconds since the run's start, rounded to the microsecond;
// durations in figures are milliseconds where the name ends in MS.
//
// Ownership: the caller owns the load and closes it, owns the records that it is given,
// and closes the client when no run is under way. A client may run several loads at once.
package client
