// Package load says what a server is asked, and when: the one source of requests
// for the live client (package bench/client) and for the simulator (package sim), so
// that both are asked the same to the token and the nanosecond.
//
//	what   Source    the next request: its prompt and how many tokens are wanted
//	when   Arrivals  when the next request is due; Paced joins the two
//	how    Load      a source, and how many of its requests may be under way at once
//
// A [Source] is a stream. Nothing is drawn or read before it is asked for, and what
// was taken is forgotten, so that a load may have a million requests of a thousand
// tokens and takes the memory of one. The simulator takes the next request when the one
// before it arrives; the client a few ahead, so that drawing does not delay a sending.
//
// A request is sent when it is due and fewer than [Load].InFlight are under way. So
// there are three ways to ask, and no switch between them:
//
//	open loop     times, InFlight 0        what users do: they do not wait for one another
//	closed loop   all times 0, InFlight n  n users who ask again as soon as they are answered
//	both          times and InFlight n     vLLM's --max-concurrency
//
// A request may follow others: a turn the answer to the one before it, an agent's call the
// tools and the agents that it waited for. Package dispatch lets it go when those have ended.
//
// Kinds of load have names: [Spec] says which and how, [Kinds] lists them. Each declares its
// settings as [Knobs], from which flags, their help and their refusal beside other kinds
// come. To add one is a file with its source and a line in kinds.go; loadtest.TestSource is
// what every source must do. What no kind has to know of, [Spec].Open puts on each:
//
//	Arrivals   rates, ramps, other tools' arrivals, a trace of functions (Kind.Times)
//	Adapters   LoRA adapters, by other tools' draws or our own
//	Workers    several servers
//	Duration   an end
//
// Everything is deterministic: of equal Specs the streams are equal, on every machine.
// Units: times are durations since the start of the run, lengths are tokens.
package load
