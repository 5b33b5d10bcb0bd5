package tooldraws

import (
	"math"
	"math/bits"
)

// A PythonRandom is Python's random.Random. It is for one goroutine.
type PythonRandom struct{ source *mersenneTwister }

// NewPythonRandom is random.Random(seed), and what random.seed(seed) leaves. Python takes a seed's
// absolute value, so -1 is 1.
func NewPythonRandom(seed int64) *PythonRandom {
	abs := uint64(seed)
	if seed < 0 {
		abs = -abs
	}
	key := []uint32{uint32(abs)}
	if high := uint32(abs >> 32); high != 0 {
		key = append(key, high)
	}
	return &PythonRandom{newMersenneTwisterArray(key)}
}

// Random is random(): uniform on [0, 1).
func (r *PythonRandom) Random() float64 { return r.source.Float64() }

// Getrandbits is getrandbits(k), of k from 1 to 64. The low word is drawn first.
func (r *PythonRandom) Getrandbits(k int) uint64 {
	if k <= 32 {
		return uint64(r.source.Uint32() >> (32 - k))
	}
	low := uint64(r.source.Uint32())
	return low | uint64(r.source.Uint32()>>(64-k))<<32
}

// Randrange is randrange(n), and the index of choice() among n: uniform on [0, n), n above 0.
// Python draws as many bits as n has, until they are below it.
func (r *PythonRandom) Randrange(n int) int {
	k := bits.Len64(uint64(n))
	for {
		if v := r.Getrandbits(k); v < uint64(n) {
			return int(v)
		}
	}
}

// Randint is randint(a, b): uniform on [a, b], both included.
func (r *PythonRandom) Randint(a, b int) int { return a + r.Randrange(b-a+1) }

// Shuffle is shuffle(x) of n elements: Fisher and Yates from the end. swap exchanges two.
func (r *PythonRandom) Shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, r.Randrange(i+1))
	}
}

// Sample are the indices of sample(population, k) of n elements: k of them without replacement,
// in the order in which they are drawn; k up to n. CPython keeps those that are left in a list
// where that is smaller than a set of those that are taken.
func (r *PythonRandom) Sample(n, k int) []int {
	list := 21 // elements that a small set and a list take alike
	if k > 5 {
		list += int(math.Pow(4, math.Ceil(math.Log(float64(k)*3)/math.Log(4))))
	}
	drawn := make([]int, k)
	if n <= list {
		left := make([]int, n)
		for i := range left {
			left[i] = i
		}
		for i := range drawn {
			j := r.Randrange(n - i)
			drawn[i], left[j] = left[j], left[n-i-1]
		}
		return drawn
	}
	taken := make(map[int]bool, k)
	for i := range drawn {
		j := r.Randrange(n)
		for taken[j] {
			j = r.Randrange(n)
		}
		taken[j], drawn[i] = true, j
	}
	return drawn
}

// Choices is the index of one of choices() among n, all equally likely. It takes a float,
// and so another draw than choice().
func (r *PythonRandom) Choices(n int) int { return int(r.Random() * float64(n)) }

// Clone is a generator that draws the same from here on, by itself.
func (r *PythonRandom) Clone() *PythonRandom {
	source := *r.source
	return &PythonRandom{&source}
}
