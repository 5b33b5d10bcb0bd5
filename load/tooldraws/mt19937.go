package tooldraws

const (
	size  = 624 // words of state
	shift = 397
)

// A mersenneTwister is MT19937 (Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed
// uniform pseudo-random number generator", 1998), which both numpy and Python draw from. math/rand does not have it.
// It is for one goroutine. A copy continues independently of the original.
type mersenneTwister struct {
	state [size]uint32
	next  int
}

// newMersenneTwister is the generator that Knuth's initialiser makes of a seed, init_genrand of the
// reference implementation: numpy.random.seed(seed).
func newMersenneTwister(seed uint32) *mersenneTwister {
	s := &mersenneTwister{next: size}
	s.state[0] = seed
	for i := 1; i < size; i++ {
		prev := s.state[i-1]
		s.state[i] = 1812433253*(prev^prev>>30) + uint32(i)
	}
	return s
}

// newMersenneTwisterArray is the generator of a seed of several words, the lowest first, init_by_array of
// the reference implementation: Python's random.seed(n). The key has one word at least.
func newMersenneTwisterArray(key []uint32) *mersenneTwister {
	s := newMersenneTwister(19650218)
	i, j := 1, 0
	for range max(size, len(key)) {
		prev := s.state[i-1]
		s.state[i] = s.state[i] ^ (prev^prev>>30)*1664525
		s.state[i] += key[j] + uint32(j)
		if i++; i == size {
			s.state[0] = s.state[size-1]
			i = 1
		}
		j = (j + 1) % len(key)
	}
	for range size - 1 {
		prev := s.state[i-1]
		s.state[i] = s.state[i] ^ (prev^prev>>30)*1566083941
		s.state[i] -= uint32(i)
		if i++; i == size {
			s.state[0] = s.state[size-1]
			i = 1
		}
	}
	s.state[0] = 1 << 31
	return s
}

func (s *mersenneTwister) twist() {
	for i := range size {
		y := s.state[i]&0x80000000 | s.state[(i+1)%size]&0x7fffffff
		v := s.state[(i+shift)%size] ^ y>>1
		if y&1 != 0 {
			v ^= 0x9908b0df
		}
		s.state[i] = v
	}
	s.next = 0
}

// Uint32 is the next output.
func (s *mersenneTwister) Uint32() uint32 {
	if s.next == size {
		s.twist()
	}
	y := s.state[s.next]
	s.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// Float64 is uniform on [0, 1) with 53 bits, of two outputs: genrand_res53, which numpy's
// random_sample and Python's random are.
func (s *mersenneTwister) Float64() float64 {
	a, b := s.Uint32()>>5, s.Uint32()>>6
	return (float64(a)*(1<<26) + float64(b)) / (1 << 53)
}
