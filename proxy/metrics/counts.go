package metrics

import (
	"slices"
	"time"

	"kvferry/proto"
)

// A Request is what is counted of one that was served.
type Request struct {
	Prompt, Cached int // tokens, and those of them that a prefix cache had
	Output         int // tokens delivered
	MaxTokens      uint32
	Stop           bool          // it ended by itself, not at MaxTokens
	E2E            time.Duration // from its arrival to its end
	Decode         time.Duration // from its first token to its last
	Breakdown      *proto.Breakdown
	Unknown        []string      // fields of it that are not known, by their names in JSON
	Proxy          time.Duration // the proxy's own part that is not in Breakdown
}

// Served counts a request that has ended well. Latencies and lengths are those of such
// requests only; tokens that a client has got count in any case. The transfer histograms have
// the requests that moved KV.
func (h *Model) Served(r Request) {
	if r.Stop {
		h.stop.Inc()
	} else {
		h.length.Inc()
	}
	prompt, output := float64(r.Prompt), float64(r.Output)
	h.generationTokens.Add(output)
	h.promptTokens.Add(prompt)
	h.promptTokensCached.Add(float64(min(r.Cached, r.Prompt)))
	h.e2e.Observe(r.E2E.Seconds())
	if r.Prompt > 0 { // engines do not always say
		h.promptLength.Observe(prompt)
	}
	h.generationLength.Observe(output)
	h.maxGeneration.Observe(output)
	h.completions.Observe(1)
	h.maxTokens.Observe(float64(r.MaxTokens))
	decode := r.Decode.Seconds()
	if r.Output > 1 {
		h.tpot.Observe(decode / (output - 1))
	}
	b := r.Breakdown
	h.migratedBytes.Add(float64(b.MigratedBytes))
	prefill := float64(b.PrefillUs) / 1e6
	known := func(stage int) bool { return !slices.Contains(r.Unknown, stageNames[stage]+"_us") }
	if known(stageQueue) {
		h.queue.Observe(float64(b.QueueUs) / 1e6)
	}
	if known(stagePrefill) {
		h.prefill.Observe(prefill)
		h.inference.Observe(prefill + decode)
	}
	h.decode.Observe(decode)
	for i, us := range [stageCount]uint32{
		stageProxy: b.ProxyUs + proto.Microseconds(r.Proxy), stageQueue: b.QueueUs, stagePrefill: b.PrefillUs, stagePost: b.PostUs,
		stageWire: b.WireUs, stageLand: b.LandUs, stageFirstDecode: b.FirstDecodeUs,
	} {
		if known(i) {
			h.stages[i].Observe(float64(us) / 1e6)
		}
	}
	if b.KvBytes > 0 {
		h.externalQueries.Add(prompt)
		h.externalHits.Add(prompt)
		h.nixlXfer.Observe(float64(b.WireUs) / 1e6)
		h.nixlPost.Observe(float64(b.PostUs) / 1e6)
		h.nixlBytes.Observe(float64(b.KvBytes))
		h.nixlDescriptor.Observe(float64(b.KvBlocksChecked))
	}
}

// Aborted counts a request whose client went away, after some tokens of output.
func (h *Model) Aborted(output int) {
	h.generationTokens.Add(float64(output))
	h.abort.Inc()
}

// Failed counts a request that was taken on and answered with an error, after some tokens of
// output. broken: by a fault of the server.
func (h *Model) Failed(output int, code string, broken bool) {
	h.generationTokens.Add(float64(output))
	if broken {
		h.broken.Inc()
	}
	h.Refused(code)
}

// Refused counts a request that was answered with an error and never started.
func (h *Model) Refused(code string) { h.failures.WithLabelValues(code).Inc() }

// Retried counts a request that is placed again after a node failed it.
func (h *Model) Retried() { h.retries.Inc() }

// BadBlocks counts KV blocks that went bad in the memory of a node of that role, or on the "wire".
func (h *Model) BadBlocks(owner string, n uint32) {
	h.badBlocks.WithLabelValues(owner).Add(float64(n))
}

// Ahead counts a prompt that goes ahead.
func (h *Model) Ahead() { h.ahead.Inc() }

// Undirected counts one that did, and was given up.
func (h *Model) Undirected() { h.undirected.Inc() }

// FirstToken counts a request's first token, so long after the request came.
func (h *Model) FirstToken(after time.Duration) { h.ttft.Observe(after.Seconds()) }

// NextToken counts any other, so long after the one before.
func (h *Model) NextToken(after time.Duration) { h.itl.Observe(after.Seconds()) }

// Iteration counts the tokens of one message of a node.
func (h *Engine) Iteration(tokens int) { h.iterationTokens.Observe(float64(tokens)) }

// Load counts what a node did between two of its reports, whose counts do not go back.
func (h *Engine) Load(old, l *proto.Load) {
	for i, c := range loadCounts {
		if h.counters[i] != nil {
			h.counters[i].Add(float64(*c.of(l)-*c.of(old)) / c.unit)
		}
	}
}

// Migrated counts a request that went on on another node, after so many microseconds without a
// token.
func (h *Model) Migrated(pauseUs uint32) {
	h.migrations.Inc()
	h.pause.Observe(float64(pauseUs) / 1e6)
}

// NotMigrated counts one that was to, and went on where it was.
func (h *Model) NotMigrated() { h.notMigrated.Inc() }
