package load

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/tooldraws"
)

// The published runs: 200 requests a row, 6 tokens each.
const (
	PublishedPrompts = 200
	PublishedTokens  = 6
)

// A Workload is one row of the tables that Mooncake published.
type Workload struct {
	Name     string  // "256/q8"
	InputLen int     // nominal prompt length: 256 or 1024
	QPS      float64 // mean request rate, requests/s
}

// Workloads are the rows that were published, in the tables' order.
func Workloads() []Workload {
	return []Workload{
		{"1024/q2", 1024, 2},
		{"256/q2", 256, 2},
		{"256/q4", 256, 4},
		{"256/q6", 256, 6},
		{"256/q8", 256, 8},
	}
}

// publishedKinds are the published rows by their names.
func publishedKinds() []Kind {
	var kinds []Kind
	for _, w := range Workloads() {
		kinds = append(kinds, Kind{
			Name:  w.Name,
			About: fmt.Sprintf("the published load: prompts of about %d tokens at %g requests a second", w.InputLen, w.QPS),
			Knobs: Knobs{seedKnob},
			Check: func(s Spec, bad *config.Faults) {
				config.Between(bad, "Requests", s.Requests, 1, 1<<20)
				config.Between(bad, "Seed", s.Seed, 0, math.MaxUint32)
				config.Between(bad, "Vocab", s.Vocab, 1, 1<<30)
			},
			Open: func(s Spec) (Load, error) { return w.Load(s.Requests, uint32(s.Seed), "0", s.Vocab), nil },
		})
	}
	return kinds
}

// promptLengths says how long the prompts of a nominal length really were.
// Total is the published "Total input tokens" of 200 prompts; the standard
// deviation is an assumption of the calibration, the published tables do not
// give it.
var promptLengths = map[int]struct {
	total int
	std   float64
}{
	1024: {202314, 15},
	256:  {49054, 6.6},
}

// LengthsDraw numbers the draw of prompt lengths that stands for the published
// ones, of which only the sum is known. The lengths decide which of two figures a
// few latencies show: at 1024/q2 the median TPOT lies in a gap between requests
// that met another prompt, 50 ms and more, and those that did not, 13 at most. Of
// the draws 0 to 299, with the fitted engine in virtual time, 29 give all 18
// published non-disaggregated figures at 1024 (means and medians within 6 %, P99s
// within 15), 46 give all 72 at 256, and 6 both; this is the first of the six.
// The parameters of the disaggregated settings were fitted to it and another.
const LengthsDraw = 86

// Load is n requests of the workload, at the published times if the seed is 0. Lengths
// depend on the input length and the seed alone, so that every row and setting of one
// length sees the same ones; they add up to the published total, scaled by n/200. Token
// ids differ from request to request from the first token on, because the published runs
// had no prefix cache and a shared first block would be a hit in one. Salt keeps the
// repeats of a row apart in the same way. Ids are below vocab, the model's vocabulary
// (Qwen2.5: 151,936).
//
// The lengths are drawn at once, as their sum decides them: 8 bytes a request.
func (w Workload) Load(n int, seed uint32, salt string, vocab int) Load {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %d", w.Name, salt, seed)
	rng := rand.New(rand.NewPCG(h.Sum64(), uint64(w.InputLen)))
	rows := &workload{
		lengths: w.lengths(n, seed), rng: rng, vocab: vocab, first: rng.IntN(vocab), run: uint32(h.Sum64()),
	}
	return Load{Source: Paced(rows, publishedArrivals(w.QPS, seed)), Count: n, End: w.End(n, seed)}
}

// End is when the gap after the last of n requests has passed. The published client
// slept that gap too before it waited for the answers, so a run lasts at least this long.
func (w Workload) End(n int, seed uint32) time.Duration {
	gaps := publishedArrivals(w.QPS, seed)
	for range n {
		gaps.sleep()
	}
	return gaps.at
}

// workload is the requests of a Workload, without their times.
type workload struct {
	lengths []int // of those to come
	rng     *rand.Rand
	vocab   int
	first   int    // token of the first request
	run     uint32 // in the ids
	n       int    // requests so far
}

func (w *workload) Next() (Request, bool, error) {
	if len(w.lengths) == 0 {
		return Request{}, false, nil
	}
	prompt := make([]kvcache.Token, w.lengths[0])
	for i := range prompt {
		prompt[i] = kvcache.Token(w.rng.IntN(w.vocab))
	}
	prompt[0] = kvcache.Token((w.first + w.n) % w.vocab)
	r := Request{ID: fmt.Sprintf("kvferry-%08x-%d", w.run, w.n), Prompt: prompt, MaxTokens: PublishedTokens}
	w.lengths = w.lengths[1:]
	w.n++
	return r, true, nil
}

func (w Workload) lengths(n int, seed uint32) []int {
	dist, ok := promptLengths[w.InputLen]
	if !ok {
		dist.total, dist.std = w.InputLen*PublishedPrompts, 0
	}
	mean := float64(dist.total) / PublishedPrompts
	total := int(math.Round(mean * float64(n)))
	rng := rand.New(rand.NewPCG(uint64(seed)+LengthsDraw, uint64(w.InputLen)))
	lengths := make([]int, n)
	sum := 0
	for i := range lengths {
		lengths[i] = max(1, int(math.Round(mean+dist.std*rng.NormFloat64())))
		sum += lengths[i]
	}
	// The draw misses the total by about std*sqrt(n), 93 or 212 tokens of 200
	// prompts: spread one token at a time that moves a length by one or two.
	for i := 0; sum != total; i = (i + 1) % n {
		switch {
		case sum < total:
			lengths[i]++
			sum++
		case lengths[i] > 1:
			lengths[i]--
			sum--
		}
	}
	return lengths
}

// ClientDrift is how much later than drawn each gap of the published client
// ended: asyncio.sleep wakes about a millisecond late and the published client
// slept gap by gap, so the lateness added up. Read off the published durations
// (98.72 s where the gaps sum to 98.504 s).
const ClientDrift = 1200 * time.Microsecond

// publishedArrivals are those of the published runs, for seed 0: vLLM's of 2024, and the
// drift of that client.
func publishedArrivals(qps float64, seed uint32) *legacy {
	return &legacy{gaps: gaps{from: tooldraws.NewRandomState(seed), rate: qps, burstiness: 1}, drift: ClientDrift}
}
