// Package batching is a continuous-batching [engine.Scheduler]: what may
// run shares a step, and a sequence joins and leaves between steps. What shares a step is a
// [Policy]: two of vLLM 0.6, one of vLLM since 0.8, one of SGLang.
//
// [Scheduler] is a pure state machine. It has no clock, goroutine or socket:
// Step(now, events) says what happened and returns what to do, and the time of
// the next thing it waits for. A driver executes the answer. The daemons' driver
// (package node) waits out every step on an absolute schedule; a simulation
// jumps from event to event. Both run this code, so what they measure is one
// scheduler under two clocks.
//
//	Add ─▶ future ─Ready─▶ waiting ─blocks─▶ in a step ─▶ running ─▶ finished
//	                          ▲  │                          │
//	                 preempted│  └─KV from elsewhere─▶ pending ─Landed─▶ running
//	                          └─────────────────────────────┘
//
// PrefillFirst does what vLLM 0.6 did by default: all waiting prompts
// up to a token budget in one step, during which every running sequence stalls. Chunked
// fills a small budget, decodes first. When a running sequence needs a block and the pool
// has none, the sequence admitted last is preempted and later recomputes its tokens, before
// any prompt that came after it. V1 and SGLang are described in v1.go and sglang.go.
package batching
