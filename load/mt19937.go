package load

// mt19937 is the Mersenne Twister as numpy's legacy RandomState uses it, which
// is what drew the published arrivals. math/rand has no MT19937, and another
// generator would replay another burst pattern: with other seeds the mean TTFT
// at 1024/q2 spreads from 375 to 580 ms (p5 to p95).
type mt19937 struct {
	state [624]uint32
	next  int
}

// newMT19937 is numpy.random.seed(seed): Knuth's initialiser init_genrand, not
// init_by_array.
func newMT19937(seed uint32) *mt19937 {
	m := &mt19937{next: 624}
	m.state[0] = seed
	for i := 1; i < len(m.state); i++ {
		prev := m.state[i-1]
		m.state[i] = 1812433253*(prev^prev>>30) + uint32(i)
	}
	return m
}

func (m *mt19937) twist() {
	const n, shift = 624, 397
	for i := range n {
		y := m.state[i]&0x80000000 | m.state[(i+1)%n]&0x7fffffff
		v := m.state[(i+shift)%n] ^ y>>1
		if y&1 != 0 {
			v ^= 0x9908b0df
		}
		m.state[i] = v
	}
	m.next = 0
}

func (m *mt19937) uint32() uint32 {
	if m.next == len(m.state) {
		m.twist()
	}
	y := m.state[m.next]
	m.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// float64 is uniform on [0, 1) with 53 bits, of two outputs.
func (m *mt19937) float64() float64 {
	a, b := m.uint32()>>5, m.uint32()>>6
	return (float64(a)*(1<<26) + float64(b)) / (1 << 53)
}
