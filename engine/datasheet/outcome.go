package datasheet

import (
	"fmt"
	"strings"
	"time"

	"kvferry/engine"
)

// Lengths of prompts, batches that decode, and the context of each sequence in these, that a profile is
// described by.
var (
	promptTokens = []int{128, 1024, 8192}
	batches      = []int{1, 32, 256}
)

const contextTokens = 1024

// ttft is how long one prompt takes on a cold GPU that does nothing else, cut into steps of at most so many tokens.
func ttft(p *engine.Profile, tokens, most int) (at time.Duration) {
	m := engine.NewCostModel(p.Costs, p.KVGeometry)
	for from := 0; from < tokens; {
		n := min(most, tokens-from)
		at += m.Run(&engine.Step{Kind: engine.Prefill, At: at, Tokens: n, Works: []engine.Work{{Prompt: true, From: from, N: n}}})
		from += n
	}
	return at
}

// itl is how long a step takes that decodes so many sequences, each with a context of so many tokens.
func itl(p *engine.Profile, batch, context int) time.Duration {
	works := make([]engine.Work, batch)
	for i := range works {
		works[i] = engine.Work{From: context - 1, N: 1}
	}
	return engine.NewCostModel(p.Costs, p.KVGeometry).Run(&engine.Step{Kind: engine.Decode, Tokens: batch, Works: works})
}

// outcome says what comes out of the costs, by the model that nodes and the simulator have.
// A step has at most so many tokens.
func outcome(p *engine.Profile, most int) string {
	var b strings.Builder
	line := func(what string, each func(add func(format string, args ...any))) {
		var cells []string
		each(func(format string, args ...any) { cells = append(cells, fmt.Sprintf(format, args...)) })
		if len(cells) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", what, strings.Join(cells, ", "))
		}
	}
	seqs, _ := p.Batch()
	room := p.Blocks() * p.KVGeometry.BlockTokens
	b.WriteString("What comes out, of all GPUs together:\n")
	line("TTFT of one prompt in ms", func(add func(string, ...any)) {
		for _, n := range promptTokens {
			if n <= p.MaxModelLen && n <= room {
				add("%.1f (%d tokens)", milliseconds(ttft(p, n, most)), n)
			}
		}
	})
	line(fmt.Sprintf("ITL in ms, each sequence with a context of %d tokens", contextTokens), func(add func(string, ...any)) {
		for _, n := range batches {
			if n <= seqs && n*contextTokens <= room {
				add("%.1f (batch %d)", milliseconds(itl(p, n, contextTokens)), n)
			}
		}
	})
	fmt.Fprintf(&b, "room for %d tokens of KV\n", room)
	return b.String()
}
