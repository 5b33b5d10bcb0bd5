package calibrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/serve"
	"kvferry/bench/stats"
	"kvferry/kvcache"
	"kvferry/load"
)

// A Kind of point says how its requests come, and what is measured of them.
type Kind string

const (
	// Prompts come one after another, at rest between them: TTFT of the first, and of the others,
	// which may find the GPU hot.
	Prompts Kind = "prompts, one after another"
	// Relay are prompts of which two are under way at any time: one is computed, the other waits for it,
	// and the next is sent when one is answered. What surrounds requests passes while another one is
	// computed, so the time that all take is that of their steps.
	Relay Kind = "prompts, two at a time"
	// Decodes come together: ITL while all of them decode, the median: of a token that is late the
	// next gap is short.
	Decodes Kind = "decodes"
	// Beside are prompts that come one after another while another sequence decodes: its ITL, its
	// longest gaps, and those before them. So a step with a prompt is seen without what surrounds
	// requests. Of short ones the time of all gaps tells more than a gap does.
	Beside Kind = "prompts beside a decode"
	// Burst are prompts that come together while a long one is computed, and then go into steps
	// together: TTFT.
	Burst Kind = "prompts behind a long one"
	// Crowd are prompts that come one every Delay: TTFT, which grows with what is done for requests
	// one by one.
	Crowd Kind = "prompts in a crowd"
)

// A Point is a small load that shows one or two costs. Its requests have prompts of their own, so
// that no prefix cache knows them. Where TTFT is measured, a short request goes before the others and
// is not looked at: after a pause the first one is late, whatever it is, as caches are cold and
// processes asleep.
type Point struct {
	Kind   Kind
	Batch  int           // requests that are looked at
	Prompt int           // tokens of each of their prompts
	Output int           // tokens that each of a batch decodes, or the one that prompts come beside
	Long   int           // of a Burst: tokens of the long prompt
	Delay  time.Duration // of a Burst: from the long prompt to the others; of a Crowd: from one to the next; of a Relay: from the first to the second
}

func (p Point) String() string {
	switch p.Kind {
	case Prompts:
		return fmt.Sprintf("%s, of %d tokens", p.Kind, p.Prompt)
	case Burst:
		return fmt.Sprintf("%d %s of %d tokens", p.Batch, p.Kind, p.Long)
	case Crowd:
		return fmt.Sprintf("%d %s, one every %v", p.Batch, p.Kind, p.Delay)
	}
	return fmt.Sprintf("%d %s, of %d tokens", p.Batch, p.Kind, p.Prompt)
}

// Lengths of the series.
const (
	repeats = 3  // prompts one after another
	turns   = 16 // prompts, two at a time
	joining = 8  // short prompts beside a decode
	short   = 16 // tokens of a prompt whose length does not matter
	decoded = 40 // tokens that each of a batch decodes, at least
	// A request that starts together with the one that is looked at, and ends when that decodes:
	// then the first prompt beside it comes. No clock has to guess when.
	trigger = 4
	// Between one request that is over and the next: then the server has ended it, and is awake.
	rest = 20 * time.Millisecond
)

// tokens is how many tokens of KV the point needs at once, at most.
func (p Point) tokens() int {
	switch p.Kind {
	case Prompts:
		return p.Prompt + 1
	case Relay:
		return 2 * (p.Prompt + 1)
	case Decodes:
		return p.Batch * (p.Prompt + p.Output)
	case Beside:
		return p.Prompt + 2*short + p.Output + trigger
	case Burst, Crowd:
	}
	return p.Long + p.Batch*(p.Prompt+1)
}

// requests are what the point asks, with prompts of random tokens.
func (p Point) requests(rng *rand.Rand, vocab int) (list load.List) {
	add := func(r load.Request, tokens int) {
		r.Prompt = make([]kvcache.Token, tokens)
		for i := range r.Prompt {
			r.Prompt[i] = kvcache.Token(rng.IntN(vocab))
		}
		list = append(list, r)
	}
	if p.Kind == Prompts || !p.even() {
		add(load.Request{MaxTokens: 1}, short)
	}
	switch p.Kind {
	case Prompts:
		for i := range p.Batch {
			add(load.Request{MaxTokens: 1, After: []int{i}, Delay: rest}, p.Prompt)
		}
	case Relay:
		add(load.Request{MaxTokens: 1}, p.Prompt)
		add(load.Request{MaxTokens: 1, At: p.Delay}, p.Prompt)
		for i := range p.Batch - 2 {
			add(load.Request{MaxTokens: 1, After: []int{i}}, p.Prompt)
		}
	case Decodes:
		for range p.Batch {
			add(load.Request{MaxTokens: p.Output}, p.Prompt)
		}
	case Beside:
		add(load.Request{MaxTokens: p.Output}, short)
		add(load.Request{MaxTokens: trigger}, short)
		for i := range p.Batch {
			add(load.Request{MaxTokens: 1, After: []int{1 + i}, Delay: rest}, p.Prompt)
		}
	case Burst:
		add(load.Request{MaxTokens: 1, After: []int{0}, Delay: rest}, p.Long)
		for range p.Batch {
			add(load.Request{MaxTokens: 1, After: []int{0}, Delay: rest + p.Delay}, p.Prompt)
		}
	case Crowd:
		for i := range p.Batch {
			add(load.Request{MaxTokens: 1, After: []int{0}, Delay: rest + time.Duration(i)*p.Delay}, p.Prompt)
		}
	}
	return list
}

// ask asks a target the point's requests once, and returns what came of each, in order.
func (p Point) ask(ctx context.Context, t serve.Target, list load.List) (records []*client.Record, took time.Duration, err error) {
	took, err = t.Run(ctx, load.Load{Source: &list, Count: len(list)}, func(r *client.Record) { records = append(records, r) })
	if err == nil {
		slices.SortFunc(records, func(a, b *client.Record) int { return cmp.Compare(a.Index, b.Index) })
		err = p.check(records)
	}
	if err != nil {
		return nil, took, fmt.Errorf("%v: %w", p, err)
	}
	return records, took, nil
}

// Measures are what is measured of a point: names of what measure returns.
func (p Point) Measures() []string {
	switch p.Kind {
	case Prompts:
		return []string{"TTFT of the first", "mean TTFT of the others"}
	case Relay:
		return []string{"from the first answer to the last but one"}
	case Decodes:
		return []string{"median ITL"}
	case Beside:
		if p.Prompt <= short {
			return []string{"all gaps"}
		}
		return []string{"all gaps", "longest gaps, median", "gaps before these, median"}
	case Burst, Crowd:
	}
	return []string{"mean TTFT"}
}

// even reports whether the measures change evenly with the costs. Those of others jump, where one
// event comes before another.
func (p Point) even() bool { return p.Kind != Burst && p.Kind != Crowd }

// errChunks is what some records say of a server that is busy, and all of one that does not stream.
// A large batch's mean is the same with some.
var errChunks = errors.New("a server is measured here that heeds ignore_eos and streams a chunk for each token")

// check reports what makes the records useless.
func (p Point) check(records []*client.Record) error {
	for _, r := range records {
		if why := r.Failure(); why != "" {
			return fmt.Errorf("request %d failed: %s", r.Index, why)
		}
		got, want := len(r.TokenTimes), r.MaxTokens
		if few := p.Kind == Decodes && got > want*9/10; r.Output() != want || got > want || got < want && !few {
			return fmt.Errorf("%d tokens were asked for, %d came: %w: there were %d", want, r.Output(), errChunks, got)
		}
		if r.Usage != nil && r.Usage.CachedTokens > 0 {
			return fmt.Errorf("%d tokens of a prompt were in the prefix cache, and no prompt comes twice: is it another's?", r.Usage.CachedTokens)
		}
	}
	return nil
}

// measure is what the records say, in milliseconds: of each measure the times that it is the mean
// of, always as many, so that those of several rounds can be set side by side.
func (p Point) measure(records []*client.Record) [][]float64 {
	switch p.Kind {
	case Prompts:
		all := ttfts(records[1:])
		return [][]float64{all[:1], all[1:]}
	case Relay:
		all := answers(records)
		return [][]float64{{all[len(all)-2] - all[0]}}
	case Decodes:
		return [][]float64{{stats.Median(together(records))}}
	case Beside:
		return p.gaps(records)
	case Burst:
		return [][]float64{ttfts(records[2:])}
	case Crowd:
	}
	return [][]float64{ttfts(records[1:])}
}

// ways are how long the first tokens of prompts one after another took beyond what the server says
// that they waited and were computed: from the client to the engine and back, with what timers and
// wake-ups there take. They are nil where it does not say so of all.
func ways(records []*client.Record) (ms []float64) {
	for _, r := range records[1:] {
		b := r.Breakdown
		if b == nil || min(b.ProxyUS, b.QueueUS, b.PrefillUS) == client.Unknown {
			return nil
		}
		ms = append(ms, 1e3*r.TTFT()-float64(b.ProxyUS-b.ProxyOwnUS+b.QueueUS+b.PrefillUS)/1e3)
	}
	return ms
}

// answers are when the first tokens of requests came, in order.
func answers(records []*client.Record) (ms []float64) {
	for _, r := range records {
		ms = append(ms, 1e3*r.FirstToken)
	}
	slices.Sort(ms)
	return ms
}

// relayed reports whether the prompts of a Relay were computed one by one: where an answer takes longer
// to come, and the next request to go, than a prompt is computed, two of them share a step after a while.
// A token may leave with the next step, so the last answer says nothing.
func relayed(records []*client.Record) bool {
	all := answers(records)
	var gaps []float64
	for i, at := range all[1 : len(all)-1] {
		gaps = append(gaps, at-all[i])
	}
	return slices.Min(gaps) > stats.Median(gaps)/2
}

// sent are when requests were sent, in milliseconds after the first.
func sent(records []*client.Record) (ms []float64) {
	for _, r := range records {
		ms = append(ms, 1e3*(r.Sent-records[0].Sent))
	}
	return ms
}

func ttfts(records []*client.Record) (ms []float64) {
	for _, r := range records {
		ms = append(ms, 1e3*r.TTFT())
	}
	return ms
}

// together are the gaps between tokens while all of the requests decode, but for the first gaps of
// the last: the prompts may have come in one step or in several. They are all gaps, if the requests
// never decode together.
func together(records []*client.Record) (ms []float64) {
	from, to := 0.0, math.Inf(1)
	for _, r := range records {
		from, to = max(from, r.TokenTimes[2]), min(to, r.TokenTimes[len(r.TokenTimes)-1])
	}
	if from >= to {
		from, to = 0, math.Inf(1)
	}
	for _, r := range records {
		for i, t := range r.TokenTimes[1:] {
			if before := r.TokenTimes[i]; before >= from && t <= to {
				ms = append(ms, 1e3*(t-before))
			}
		}
	}
	return ms
}

// gaps are of the sequence that decodes, from just before the prompts begin to come: as many always,
// so that it does not matter when within a step they come.
func (p Point) gaps(records []*client.Record) [][]float64 {
	times := records[0].TokenTimes
	from, _ := slices.BinarySearch(times, records[1].TokenTimes[trigger-1])
	from = min(max(from-trigger/2, 0), 2*trigger)
	times = times[from : from+p.Output-2*trigger]
	var ms []float64
	for i, t := range times[1:] {
		ms = append(ms, 1e3*(t-times[i]))
	}
	sum := times[len(times)-1] - times[0]
	if p.Prompt <= short {
		return [][]float64{{1e3 * sum}}
	}
	// The longest gaps are of steps with prompts. Where tokens leave late, those before them are long
	// as well.
	order := make([]int, len(ms)-1)
	for i := range order {
		order[i] = i + 1
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(ms[b], ms[a]) })
	var longest, before []float64
	for _, i := range order[:p.Batch] {
		longest, before = append(longest, ms[i]), append(before, ms[i-1])
	}
	return [][]float64{{1e3 * sum}, {stats.Median(longest)}, {stats.Median(before)}}
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
