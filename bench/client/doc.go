// Package client asks a server of OpenAI's completions API what a load says (package
// load), and measures the answers: times of every token, TTFT, TPOT, ITL and E2EL. It
// needs the standard library and the precise timers of package clock, no other library.
//
//	load ──▶ draw, encode (64 ahead) ──▶ wait until due, and for room ──▶ POST, read SSE ──▶ Record ──▶ Meter
//
// In an open loop every request is sent at its intended time by a goroutine of its own,
// however slow the server is, and both the intended and the real sending time are
// recorded, so that nothing can hide in a client queue. With load.Load.InFlight the
// client waits for room as well, and says when there was some. So the same client is the
// open loop, the closed loop and vLLM's --max-concurrency.
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
