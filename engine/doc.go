// Package engine says what an engine is to the rest of kvferry: requests and sequences,
// steps, who forms them and who computes them.
//
//	Event ─▶ Scheduler ─▶ Step ─▶ Executor ─▶ tokens, KV in blocks
//	             ▲                   │
//	             └────── Done ───────┘
//
// A step is one pass of the model over a batch. A [Scheduler] forms steps, package batching
// has those of vLLM and SGLang; package enginetest has what every scheduler must do. An [Executor] computes
// steps: neither the scheduler nor the node knows whether a step was waited out or
// computed.
//
// [CostModel] says how long a step takes on a modelled GPU; its parameters come from a
// [Profile] file. Package modelled waits that out.
//
// Times are durations on the driver's clock. A Step belongs to the executor from
// Launch until its Done event, and its slices are reused afterwards. Nothing
// here is safe for concurrent use: one driver owns a Scheduler.
package engine
