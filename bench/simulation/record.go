package simulation

import (
	"time"

	"kvferry/bench/client"
	"kvferry/bench/stats"
	"kvferry/sim"
)

// Record is a request that was simulated, in the form that a client's are in, so that its
// figures are computed by the same formulas. Token times need sim.Config.RecordTokens.
func Record(o *sim.Outcome) *client.Record {
	us := func(d time.Duration) client.Count { return client.Count(d.Round(time.Microsecond).Microseconds()) }
	r := &client.Record{
		Index: o.Index, RequestID: o.ID, Adapter: o.Adapter, PromptTokens: o.PromptTokens, MaxTokens: o.MaxTokens,
		Intended: stats.Seconds(o.Due), Sent: stats.Seconds(o.Arrived), FirstToken: stats.Seconds(o.First), Finish: stats.Seconds(o.Last),
		Status: client.StatusOK, TokenTimes: make([]float64, len(o.TokenTimes)),
		Usage: &client.Usage{PromptTokens: o.PromptTokens, CompletionTokens: o.Tokens, CachedTokens: o.Cached},
		Breakdown: &client.Breakdown{
			ProxyUS: us(o.Breakdown.Proxy), QueueUS: us(o.Breakdown.Queue), PrefillUS: us(o.Breakdown.Prefill), PostUS: us(o.Breakdown.Post),
			WireUS: us(o.Breakdown.Wire), LandUS: us(o.Breakdown.Land), FirstDecodeUS: us(o.Breakdown.FirstDecode), KVBytes: client.Count(o.Breakdown.Bytes),
			Migrations: client.Count(o.Migrations), MigrationPauseUS: us(o.Paused), MigratedBytes: client.Count(o.Breakdown.Migrated),
		},
		FirstText: stats.Seconds(o.First), LastLine: stats.Seconds(o.Last),
		InputTokens: o.PromptTokens, OutputTokens: o.Tokens, CountedBy: client.CountUsage,
	}
	for i, t := range o.TokenTimes {
		r.TokenTimes[i] = stats.Seconds(t)
	}
	if o.Arrived > o.Due {
		r.Room = r.Sent // what else would have kept it
	}
	if o.Err != nil {
		r.Status, r.Error = client.StatusFailed, o.Err.Error()
		r.Usage, r.CountedBy, r.FirstToken, r.FirstText = nil, "", 0, 0
	}
	return r
}
