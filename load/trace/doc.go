// Package trace reads the files that loads are made of.
//
// [JSON] and [CSV] read one record at a time: a value of JSON, or a row. Of a file of
// millions of records one is in memory. An error names the file, the line on which its
// record begins, and the field; it comes again for ever.
//
// A [Reader] reads recorded runs of agents: sessions of calls to a model, of which some
// wait for others, for a tool, or for agents that were started in between.
//
//	Weka      sessions of coding agents, with the ids of their prompts' blocks
//	Spans     OpenTelemetry's spans of generative AI, with token counts or texts
//	TraceLab  rounds of coding agents, with token counts
//
// No format says which call waited for which. Times say it: a call follows those that
// had ended when it began, of its own agent and, for the first of an agent that another
// started, of that one. [Session].Calls have it worked out; see link. What lies between
// the end of the last of them and the call is its Delay: the tools' time, or a person's.
//
// Times of a session are since it began, lengths are tokens.
package trace
