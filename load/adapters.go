package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"kvferry/internal/config"
	"kvferry/load/tooldraws"
)

// Adapters are LoRA adapters, and how each request gets one. A request that follows another
// has that one's: a conversation stays with its adapter.
type Adapters struct {
	Names []string
	// Choice is one of the Adapter constants; empty is AdapterRandom.
	Choice string
	// Alpha is how uneven the choice is: of AdapterSkewed and AdapterZipf.
	Alpha float64
}

// Values of Adapters.Choice. Draws are those of Spec.Compat, from the generator that the
// tool takes them from.
const (
	// AdapterRandom: each as likely as the other; vLLM's random, SGLang's uniform.
	AdapterRandom = "random"
	// AdapterRoundRobin: one after the other; vLLM's round-robin, SGLang's distinct.
	AdapterRoundRobin = "round-robin"
	// AdapterSkewed: the n-th, from 0, in proportion to Alpha^-n, SGLang's skewed. Its help
	// calls it Zipf; it is geometric.
	AdapterSkewed = "skewed"
	// AdapterZipf: the n-th, from 1, in proportion to n^-Alpha. No tool has it.
	AdapterZipf = "zipf"
)

// check notes what is wrong. Alpha is looked at only where the choice has one: it is a flag
// with a default, which is set whatever the choice is.
func (a Adapters) check(s Spec, bad *config.Faults) {
	if len(a.Names) == 0 {
		bad.Refuse(a.Choice != "" && s.Functions.File == "", "Adapters.Names", nil, "name the adapters to choose from (--lora-name)")
		return
	}
	bad.Refuse(len(a.Names) > maxAdapters, "Adapters.Names", len(a.Names), "name %d at most", maxAdapters)
	for i, n := range a.Names {
		bad.Refuse(n == "", fmt.Sprintf("Adapters.Names[%d]", i), n, "name an adapter as the server does")
	}
	switch a.Choice {
	case "", AdapterRandom, AdapterRoundRobin:
	case AdapterSkewed:
		if !(a.Alpha > 1) || math.IsInf(a.Alpha, 1) {
			bad.Add("Adapters.Alpha", a.Alpha, "use more than 1: each adapter is asked for that much less often than the one before it")
		}
	case AdapterZipf:
		if !(a.Alpha > 0) || math.IsInf(a.Alpha, 1) {
			bad.Add("Adapters.Alpha", a.Alpha, "use more than 0: the n-th adapter is asked for in proportion to n to the power of minus this")
		}
	default:
		bad.Add("Adapters.Choice", a.Choice, "use %s", config.Or([]string{AdapterRandom, AdapterRoundRobin, AdapterSkewed, AdapterZipf}))
	}
	if s.Compat == CompatSGLang && len(a.Names) < 2 && (a.Choice == AdapterRoundRobin || a.Choice == AdapterSkewed) {
		bad.Add("Adapters.Names", a.Names, "name 2 or more, as SGLang wants for this --lora-request-distribution")
	}
}

// A chooser draws the place of the next adapter in the list.
type chooser func(from *Generators) int

// chooser is nil if there are no adapters.
func (a Adapters) chooser(s Spec) chooser {
	n := len(a.Names)
	switch {
	case n == 0:
		return nil
	case a.Choice == AdapterRoundRobin:
		next := -1
		return func(*Generators) int { next = (next + 1) % n; return next }
	case a.Choice == AdapterSkewed && s.Compat == CompatSGLang:
		p := skewed(n, a.Alpha)
		sum := tooldraws.PairwiseSum(p)
		for i := range p {
			p[i] /= sum
		}
		return func(from *Generators) int { return from.Numpy.Choice(p) }
	case a.Choice == AdapterSkewed:
		return weighted(s.Seed, skewed(n, a.Alpha))
	case a.Choice == AdapterZipf:
		p := make([]float64, n)
		for i := range p {
			p[i] = math.Pow(float64(i+1), -a.Alpha)
		}
		return weighted(s.Seed, p)
	case s.Compat != "":
		return func(from *Generators) int { return from.Python.Randrange(n) }
	}
	// A generator of its own: with and without adapters a seed draws the same prompts and times.
	rng := rand.New(rand.NewPCG(s.Seed, 0x6b7666616461700a))
	return func(*Generators) int { return rng.IntN(n) }
}

// skewed are SGLang's weights of n adapters, the first the largest. They are not scaled: numpy
// divides by their sum, and in which order that is added up shows in the last bit.
func skewed(n int, alpha float64) []float64 {
	p := make([]float64, n)
	for i := range p {
		p[i] = math.Pow(alpha, -float64(i))
	}
	return p
}

// weighted chooses in proportion to weights, with a generator of our own.
func weighted(seed uint64, weights []float64) chooser {
	rng := rand.New(rand.NewPCG(seed, 0x6b7666616461700b))
	sums := make([]float64, len(weights))
	sum := 0.0
	for i, w := range weights {
		sum += w
		sums[i] = sum
	}
	return func(*Generators) int {
		u := rng.Float64() * sum
		return sort.Search(len(sums)-1, func(i int) bool { return sums[i] > u })
	}
}

// assign puts adapters on a source's requests. The source goes first: it has drawn what the tool's data set and arrivals
// draw before the adapter of this request.
func (a Adapters) assign(s Spec, source Source, from *Generators) Source {
	chosen, follow := a.chooser(s), following{}
	return edit(source, func(r *Request) (bool, error) {
		r.Adapter = a.Names[follow.next(r, func() int { return chosen(from) })]
		return true, nil
	})
}

// following remembers what was chosen for a request, 2 bytes each, for those that follow it.
type following []uint16

// maxAdapters is how many it can tell apart.
const maxAdapters = 1 << 16

// next is the choice for the next request: that of the one it follows, or a new one.
func (f *following) next(r *Request, choose func() int) int {
	n := 0
	if len(r.After) > 0 && r.After[0] < len(*f) {
		n = int((*f)[r.After[0]])
	} else {
		n = choose()
	}
	// Every request has an entry, also one that follows: the next may follow it.
	*f = append(*f, uint16(n))
	return n
}
